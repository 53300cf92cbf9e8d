"""TorchRec for bench_end_to_end.py: 26 tables in a FusedEmbeddingBagCollection, whose rows FBGEMM updates in backward.

It is the form without a wrapper around it: the sharded collection of one process does the same and copies more.
KeyedJaggedTensors are made before the clock starts. Row-wise Adagrad and SGD are FBGEMM's exact kernels for the CPU,
which merge duplicates as ours do.

    python end_to_end_torchrec.py RANK SIZE PORT FOLDER    (jobs on stdin, see end_to_end_parts.Server)
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from end_to_end_parts import BLOCK, DIM, EPS, LR, NUM_IDS, Batches, Case, DenseStep, first_rows, serve_contender
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad

COLUMNS = [f"C{i + 1}" for i in range(NUM_IDS)]


class TorchRec:
    def __init__(self, folder: Path, case: Case) -> None:
        rule: Any = torch.optim.SGD if case.rule == "sgd" else RowWiseAdagrad
        arguments = {"lr": LR} if case.rule == "sgd" else {"lr": LR, "eps": EPS}
        configs = [
            EmbeddingBagConfig(name=f"t_{name}", embedding_dim=DIM, num_embeddings=size, feature_names=[name])
            for name, size in zip(COLUMNS, case.sizes, strict=True)
        ]
        self.rows = FusedEmbeddingBagCollection(configs, rule, arguments, device=torch.device("cpu"))
        _begin_rows(self.rows)
        self.dense = DenseStep(case)
        rows = Batches(folder, case)
        self.batches = [
            (_jagged(ids, case), numbers, labels) for ids, numbers, labels in (rows[n] for n in range(rows.size))
        ]

    def steps(self, first: int, setting: dict[str, int]) -> Generator[float, None, None]:
        for number in count(first):
            ids, numbers, labels = self.batches[number % len(self.batches)]
            vectors = self.rows(ids).values().view(-1, NUM_IDS, DIM)
            loss = self.dense.loss(numbers, vectors, labels)
            loss.backward()
            self.dense.optimizer.step()
            self.dense.optimizer.zero_grad(set_to_none=True)
            yield float(loss.detach())


@torch.no_grad()
def _begin_rows(rows: FusedEmbeddingBagCollection) -> None:
    weights = rows.state_dict()
    for table, name in enumerate(COLUMNS):
        weight, block = weights[f"embedding_bags.t_{name}.weight"], torch.from_numpy(first_rows(table))
        weight = weight.local_shards()[0].tensor if hasattr(weight, "local_shards") else weight
        for begin in range(0, weight.shape[0], BLOCK):
            part = weight[begin : begin + BLOCK]
            part.copy_(block[: part.shape[0]])


def _jagged(ids: np.ndarray, case: Case) -> KeyedJaggedTensor:
    """Of ids [F, B L]."""
    lengths = torch.full((NUM_IDS * case.batch,), case.bag, dtype=torch.int32)
    found = KeyedJaggedTensor(keys=COLUMNS, values=torch.from_numpy(ids).flatten(), lengths=lengths)
    found.offsets()  # which it keeps
    return found


if __name__ == "__main__":
    serve_contender(TorchRec)

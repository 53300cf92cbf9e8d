"""DeepFM of deepctr-torch 0.3.0 for bench_end_to_end.py: what its user has, by its own model and torch's Adam.

It is no peer: its embeddings have dense gradients, so a step costs as much as the tables are large, and tables beyond
a few million rows are out of its reach. It also has a first-order weight for each id, which the others leave out here.

    python end_to_end_deepctr.py RANK SIZE PORT FOLDER    (jobs on stdin, see end_to_end_parts.Server)
"""

# ruff: noqa: E402  see sys.stdout
from __future__ import annotations

import sys
from collections.abc import Generator
from itertools import count
from pathlib import Path

sys.stdout = sys.stderr  # the library prints as it is imported, and a thread of it later; answers go to the descriptor

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM
from end_to_end_parts import DENSE_LR, DIM, HIDDEN, NUM_NUMBERS, Batches, Case, serve_contender
from torch import Tensor


class DeepCTR:
    def __init__(self, folder: Path, case: Case) -> None:
        assert case.model == "deepfm" and case.bag == 1, "the other cases are not its own"
        ids = [SparseFeat(f"C{i + 1}", size, embedding_dim=DIM) for i, size in enumerate(case.sizes)]
        columns = [*ids, *(DenseFeat(f"I{i + 1}", 1) for i in range(NUM_NUMBERS))]
        self.model = DeepFM(
            columns,
            columns,
            dnn_hidden_units=HIDDEN,
            l2_reg_embedding=0,
            l2_reg_linear=0,
            l2_reg_dnn=0,
            device="cpu",
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=DENSE_LR)
        rows = Batches(folder, case)
        self.batches = [(_joined(ids, numbers), labels) for ids, numbers, labels in (rows[n] for n in range(rows.size))]

    def steps(self, first: int, setting: dict[str, int]) -> Generator[float, None, None]:
        self.model.train()
        for number in count(first):
            columns, labels = self.batches[number % len(self.batches)]
            loss = torch.nn.functional.binary_cross_entropy(self.model(columns).squeeze(1), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield float(loss.detach())


def _joined(ids: np.ndarray, numbers: Tensor) -> Tensor:
    """float32 [B, 39], as the library wants its columns."""
    return torch.cat([torch.from_numpy(ids.T.astype(np.float32)), numbers], dim=1)


if __name__ == "__main__":
    serve_contender(DeepCTR)

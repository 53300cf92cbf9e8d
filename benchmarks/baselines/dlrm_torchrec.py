"""One rank of TorchRec for bench_processes.py: an EmbeddingBagCollection of 26 tables, sharded by its own planner.

Gloo, FBGEMM's kernels for CPUs, rows updated in the backward pass (fused SGD or row-wise Adagrad); the dense part is
replicated by TorchRec's DistributedModelParallel. KeyedJaggedTensors are made before the clock starts.

The planner may choose between whole tables and parts of their rows. Left to itself it replicates small tables, whose
row-wise Adagrad then comes to other numbers in TorchRec 1.8.0: after 12 steps of 1,024 rows a loss of 0.601, where
a plain twin, ours, and one process of TorchRec with all tables sharded have 0.588 or 0.589. (Two such processes have
0.584; why is not known. With SGD all agree.)

    python dlrm_torchrec.py RANK SIZE PORT FOLDER    (jobs on stdin, see processes_model.serve)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from processes_model import (
    DIM,
    LR,
    NUM_IDS,
    STD,
    Clock,
    PlainDLRM,
    dense_optimizer,
    loss_share,
    parts_in_memory,
    place,
    serve,
    table_sizes,
)
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ModuleSharder, ShardingType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

SHARDING = [ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value]
COLUMNS = [f"C{i}" for i in range(1, NUM_IDS + 1)]
SHARDED = {f"t_{name}": ParameterConstraints(sharding_types=SHARDING) for name in COLUMNS}


class Embedded(nn.Module):
    """The dense part over the tables."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        configs = [
            EmbeddingBagConfig(
                name=f"t_{name}",
                embedding_dim=DIM,
                num_embeddings=size,
                feature_names=[name],
                pooling=PoolingType.SUM,
                init_fn=lambda weight: nn.init.normal_(weight, std=STD),
            )
            for name, size in zip(COLUMNS, sizes, strict=True)
        ]
        self.rows = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = PlainDLRM()

    def forward(self, numbers: Tensor, ids: KeyedJaggedTensor) -> Tensor:
        vectors = self.rows(ids).values().view(-1, NUM_IDS, DIM)
        return cast(Tensor, self.dense(numbers, vectors))


class Rank:
    """Answers jobs."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self.folder = rank, size, folder

    def model(self, rule: str) -> tuple[nn.Module, Embedded]:
        model = Embedded(table_sizes(self.folder))
        optimizer: Any = torch.optim.SGD if rule == "sgd" else RowWiseAdagrad
        apply_optimizer_in_backward(optimizer, model.rows.parameters(), {"lr": LR})
        sharders = [cast(ModuleSharder[nn.Module], EmbeddingBagCollectionSharder())]
        planner = EmbeddingShardingPlanner(topology=Topology(self.size, "cpu"), constraints=SHARDED)
        group = dist.GroupMember.WORLD
        assert group is not None
        plan = planner.collective_plan(model, sharders, group)
        return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders), model

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(1 + self.rank)  # each begins the rows that it has
        model, own = self.model(job["rows"])
        optimizer = dense_optimizer(own.dense)
        parts = [
            (torch.from_numpy(numbers), _jagged(torch.from_numpy(ids)), torch.from_numpy(labels))
            for numbers, ids, labels in parts_in_memory(self.folder, job, self.rank, self.size)
        ]
        clock = Clock()
        for numbers, ids, labels in parts:
            # gradients are averaged over ranks, and our shares add up to the loss
            loss = loss_share(model(numbers, ids), labels, job["batch"]) * self.size
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            shown = float(loss.detach()) / self.size
            clock.tick()
        return {"step_s": clock.step_s(job["warm"]), "loss": shown}


def _jagged(ids: Tensor) -> KeyedJaggedTensor:
    """Of ids [B, 26], one id a row and column."""
    lengths = torch.ones(ids.numel(), dtype=torch.int32)
    return KeyedJaggedTensor(keys=COLUMNS, values=ids.T.contiguous().flatten(), lengths=lengths)


def main() -> None:
    rank, size, port, folder = place(sys.argv[1:])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    serve(Rank(rank, size, folder).answer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

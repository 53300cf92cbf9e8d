"""One rank of plain torch for bench_processes.py: DistributedDataParallel over a DLRM and one big sparse embedding.

All columns' rows lie in one nn.EmbeddingBag(sparse=True), each row once: the form in which DDP sends its gradients in
one go (gloo gathers every rank's rows on every rank). Every rank has the whole table. Rows are updated by torch's SGD,
or by its Adagrad, which has an accumulator an element: torch has none a row.

    python dlrm_ddp.py RANK SIZE PORT FOLDER    (jobs on stdin, see processes_model.serve)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
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
from torch.nn.parallel import DistributedDataParallel


class Embedded(nn.Module):
    """The dense part over one embedding of all columns."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(num_rows, DIM, mode="sum", sparse=True)
        nn.init.normal_(self.rows.weight, std=STD)
        self.dense = PlainDLRM()

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        vectors = self.rows(ids.flatten().unsqueeze(1)).view(-1, NUM_IDS, DIM)
        return self.dense(numbers, vectors)


class Rank:
    """Answers jobs."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank, self.size, self.folder = rank, size, folder

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(1)
        sizes = table_sizes(self.folder)
        first = np.cumsum([0, *sizes[:-1]])
        own = Embedded(sum(sizes))
        model = DistributedDataParallel(own)
        rule = torch.optim.SGD if job["rows"] == "sgd" else torch.optim.Adagrad
        optimizers = [rule(own.rows.parameters(), lr=LR), dense_optimizer(own.dense)]
        parts = [
            (torch.from_numpy(numbers), torch.from_numpy(ids + first), torch.from_numpy(labels))
            for numbers, ids, labels in parts_in_memory(self.folder, job, self.rank, self.size)
        ]
        clock = Clock()
        for numbers, ids, labels in parts:
            # DDP takes the mean over ranks of gradients, and our shares add up to the loss
            loss = loss_share(model(numbers, ids), labels, job["batch"]) * self.size
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            shown = float(loss.detach()) / self.size
            clock.tick()
        return {"step_s": clock.step_s(job["warm"]), "loss": shown}


def main() -> None:
    rank, size, port, folder = place(sys.argv[1:])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    serve(Rank(rank, size, folder).answer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

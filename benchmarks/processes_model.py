"""What ours and the rivals of bench_processes.py have in common: the dense part of a DLRM, and how a rank is asked.

It imports torch and numpy alone, since rivals run in environments of their own.

  B rows, F keyed features and the vector of the numbers, D dim
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

NUM_IDS, NUM_NUMBERS, DIM = 26, 13, 16
HIDDEN = (512, 256)
LR = 0.02
STD = 0.01
"""Of rows at their beginning."""


class PlainDLRM(nn.Module):
    """Naumov et al. 2019, with dot products: bottom MLP 13-64-D, top MLP of HIDDEN. Weights follow from the seed 0."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.bottom = nn.Sequential(nn.Linear(NUM_NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
            pairs = torch.tril_indices(NUM_IDS + 1, NUM_IDS + 1, offset=-1)
            widths = [DIM + pairs.shape[1], *HIDDEN]
            layers: list[nn.Module] = []
            for before, after in pairwise(widths):
                layers += [nn.Linear(before, after), nn.ReLU()]
            self.top = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
        self.register_buffer("pairs", pairs[0] * (NUM_IDS + 1) + pairs[1], persistent=False)

    def forward(self, numbers: Tensor, vectors: Tensor) -> Tensor:
        """Logits [B] from [B, 13] and [B, F, D]."""
        bottom = self.bottom(numbers)
        fields = torch.cat([bottom.unsqueeze(1), vectors], dim=1)
        dots = torch.bmm(fields, fields.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, dots], dim=1)).squeeze(1)


def loss_share(logits: Tensor, labels: Tensor, whole: int) -> Tensor:
    """This rank's share of the mean over the `whole` rows of all ranks."""
    return binary_cross_entropy_with_logits(logits, labels, reduction="sum") / whole


def dense_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR)


class Clock:
    """Seconds of each step, from the end of the one before; the first ones are left out."""

    def __init__(self) -> None:
        self._times = [time.perf_counter()]

    def tick(self) -> None:
        self._times.append(time.perf_counter())

    def step_s(self, warm: int) -> list[float]:
        return np.diff(self._times)[warm:].tolist()


def parts_in_memory(
    folder: Path, job: dict[str, Any], rank: int, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """A rival's rows of each step: numbers [B, 13], ids [B, 26] that count from 0 in each column, labels [B]."""
    numbers, ids, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("numbers", "ids", "labels"))
    for begin in range(0, job["steps"] * job["batch"], job["batch"]):
        own = slice(begin + rank, begin + job["batch"], size)
        yield tuple(np.ascontiguousarray(array[own]) for array in (numbers, ids, labels))  # type: ignore[misc]


def table_sizes(folder: Path) -> list[int]:
    """Distinct ids of each column: a rival is told what ids there will be."""
    sizes: list[int] = json.loads((folder / "sizes.json").read_text())
    return sizes


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer jobs, a line of JSON each on stdin, by a line on what was stdout; what else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


def place(arguments: Sequence[str]) -> tuple[int, int, int, Path]:
    """rank, size, port and the folder of the data, as team.Team gives them."""
    rank, size, port, folder = arguments
    return int(rank), int(size), int(port), Path(folder)

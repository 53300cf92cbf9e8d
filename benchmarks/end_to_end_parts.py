"""What the contenders of bench_end_to_end.py have in common: the rows, the dense parts, and how one is asked.

It imports torch and numpy alone, since rivals run in environments of their own. A contender takes a case when it is
opened and gives a generator of steps; the clock runs over steps that it takes one after the other.

  B rows, L ids a row and column, F keyed columns, D dim
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from processes_model import Clock, place, serve
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

DIM, NUM_NUMBERS = 16, 13
HIDDEN = (512, 256)
LR, EPS = 0.02, 1e-8
"""Of rows."""
DENSE_LR = 1e-3
ZIPF = 1.05
CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27),
    *(14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Distinct ids of the 26 columns of Criteo's display advertising challenge."""
NUM_IDS = len(CRITEO)
BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Case:
    """model: "dlrm" or "deepfm". rule: of rows, "rowwise" (Adagrad) or "sgd". bag: L. rows: of all tables together."""

    model: str
    rule: str
    bag: int
    bf16: bool
    rows: int
    batch: int
    num_batches: int

    @property
    def sizes(self) -> list[int]:
        """Rows of each table: as in Criteo, the large ones in proportion."""
        share = self.rows / sum(CRITEO)
        return [min(size, max(1000, round(size * share))) for size in CRITEO]

    @property
    def data(self) -> str:
        """What names the rows that it trains."""
        return f"{self.bag}-{self.rows}"

    def __str__(self) -> str:
        hot = "one-hot" if self.bag == 1 else f"{self.bag}-hot"
        rule = "row-wise Adagrad" if self.rule == "rowwise" else "SGD"
        name = {"dlrm": "DLRM", "deepfm": "DeepFM"}[self.model]
        return f"{name}, {hot}, {'bf16' if self.bf16 else 'fp32'}, {rule}"

    def as_job(self) -> dict[str, Any]:
        return {"do": "open", "case": asdict(self)}


# ---------------------------------------------------------------------------------------------------------------- rows


def first_rows(table: int) -> np.ndarray:
    """float32 [BLOCK, D], N(0, 0.01): row r of a table begins as row r modulo BLOCK of its block."""
    return np.random.default_rng(table).standard_normal((BLOCK, DIM), np.float32) * np.float32(0.01)


def write_batches(folder: Path, case: Case) -> None:
    """Arrays of all batches, for cases of equal `data`: ids [N, F, B L], numbers [N, B, 13], labels [N, B]."""
    rng = np.random.default_rng(1)
    shape = (case.num_batches, case.batch)
    ids = [_zipf(rng, (*shape, case.bag), size).reshape(case.num_batches, -1) for size in case.sizes]
    numbers = rng.standard_normal((*shape, NUM_NUMBERS)).astype(np.float32)
    labels = (rng.random(shape) < 1 / (1 + np.exp(1 - numbers[..., 0]))).astype(np.float32)
    for name, array in (("ids", np.stack(ids, axis=1)), ("numbers", numbers), ("labels", labels)):
        np.save(folder / f"{name}-{case.data}.npy", array)


def _zipf(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """int64 ids below `size`, whose ranks are drawn as rank**-ZIPF and lie scattered over the table."""
    top = (size + 1) ** (1 - ZIPF) - 1
    ranks = ((rng.random(shape) * top + 1) ** (1 / (1 - ZIPF))).astype(np.int64) - 1
    return np.minimum(ranks, size - 1) * 2654435761 % size


class Batches:
    """A case's rows in memory, as torch has them."""

    def __init__(self, folder: Path, case: Case) -> None:
        self._arrays = {name: np.load(folder / f"{name}-{case.data}.npy") for name in ("ids", "numbers", "labels")}
        self.size = case.num_batches

    def __getitem__(self, number: int) -> tuple[np.ndarray, Tensor, Tensor]:
        """ids int64 [F, B L], numbers float32 [B, 13], labels float32 [B]."""
        at = number % self.size
        numbers, labels = (torch.from_numpy(self._arrays[name][at]) for name in ("numbers", "labels"))
        return self._arrays["ids"][at], numbers, labels


# --------------------------------------------------------------------------------------------------------- dense parts


class DLRM(nn.Module):
    """Naumov et al. 2019, with dot products: bottom MLP 13-64-D, top MLP of HIDDEN."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUM_NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        pairs = torch.tril_indices(NUM_IDS + 1, NUM_IDS + 1, offset=-1)
        self.top = _mlp(DIM + pairs.shape[1])
        self.register_buffer("pairs", pairs[0] * (NUM_IDS + 1) + pairs[1], persistent=False)

    def forward(self, numbers: Tensor, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Logits [B] from [B, 13] and [B, F, D], or F of [B, D]."""
        bottom = self.bottom(numbers)
        if isinstance(vectors, Tensor):
            fields = torch.cat([bottom.unsqueeze(1), vectors], dim=1)
        else:
            fields = torch.stack([bottom, *vectors], dim=1)
        dots = torch.bmm(fields, fields.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([bottom, dots], dim=1)).squeeze(1)


class DeepFM(nn.Module):
    """Guo et al. 2017 over the vectors of ids and numbers; without first-order weights of ids, for which FBGEMM, whose
    rows are of at least four numbers, would need a second collection."""

    def __init__(self) -> None:
        super().__init__()
        self.number_vectors = nn.Parameter(torch.randn(NUM_NUMBERS, DIM) * 0.01)
        self.first_order = nn.Linear(NUM_NUMBERS, 1)
        self.deep = _mlp((NUM_IDS + NUM_NUMBERS) * DIM)

    def forward(self, numbers: Tensor, vectors: Tensor | Sequence[Tensor]) -> Tensor:
        """Logits [B] from [B, 13] and [B, F, D], or F of [B, D]."""
        of_ids = vectors if isinstance(vectors, Tensor) else torch.stack(list(vectors), dim=1)
        fields = torch.cat([of_ids, numbers.unsqueeze(2) * self.number_vectors], dim=1)
        machine = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(1)
        return self.first_order(numbers).squeeze(1) + machine + self.deep(fields.flatten(1)).squeeze(1)


def _mlp(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise((width, *HIDDEN)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))


class DenseStep:
    """The dense part of a case with its optimizer, the same in all contenders."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = DLRM() if case.model == "dlrm" else DeepFM()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=DENSE_LR, fused=True)
        self._bf16 = case.bf16

    def loss(self, numbers: Tensor, vectors: Tensor | Sequence[Tensor], labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            logits = self.model(numbers, vectors)
        return binary_cross_entropy_with_logits(logits.float(), labels)


# ----------------------------------------------------------------------------------------------------------- contender


class Contender(Protocol):
    """One that trains a case. settings: how it may use the machine's threads, in words of its own."""

    def steps(self, first: int, setting: dict[str, int]) -> Generator[float, None, None]:
        """The loss of each step from batch `first` on, without end."""
        ...


class Server:
    """Answers jobs: {"do": "open", "case": ...}, then any number of {"do": "steps", ...}."""

    def __init__(self, make: Callable[[Path, Case], Contender], folder: Path) -> None:
        self._make, self._folder = make, folder
        self._open: Contender | None = None
        self._done = 0

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["do"] == "open":
            self._open, self._done = None, 0  # the case before gives back its memory first
            self._open = self._make(self._folder, Case(**job["case"]))
            return {}
        assert self._open is not None, "steps were asked for before a case was opened"
        torch.set_num_threads(job["setting"]["torch"])
        clock, losses = Clock(), []
        with closing(self._open.steps(self._done, job["setting"])) as steps:
            for loss in islice(steps, job["warm"] + job["count"]):
                losses.append(loss)
                clock.tick()
        self._done += len(losses)
        return {"step_s": clock.step_s(job["warm"]), "losses": losses}


def serve_contender(make: Callable[[Path, Case], Contender]) -> None:
    serve(Server(make, place(sys.argv[1:])[3]).answer)

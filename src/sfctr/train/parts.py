"""What the loop is made of and works with, as it asks for it: steps, and what a run has beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfctr.spec.batch import I64, Batch
from sfctr.spec.exchange import F64, Whole
from sfctr.spec.peers import ALONE, Peers

from .log import Line
from .progress import ProgressLine
from .scoring import Labels, Rows, Scorer
from .state import State


class Part(Protocol):
    """What learning asks of a lookahead.RowRange."""

    size: int
    batch: Batch
    whole_size: int

    @property
    def places(self) -> I64: ...
    def features(self) -> dict[str, Tensor]: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def label_mask(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor | None: ...


class Step(Part, Protocol):
    """What learning asks of a lookahead.Ready."""

    @property
    def whole(self) -> Whole | None: ...
    def micro_batches(self, count: int) -> Iterator[Part]: ...
    def merge(self, dense: Dense | None, extras: F64 | None) -> F64: ...
    def step(
        self,
        optimizer: torch.optim.Optimizer | None,
        *,
        clip: float | None = None,
        lr_factor: float = 1.0,
        check: bool = False,
    ) -> float | None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *exc: Any) -> None: ...


class Dense(Protocol):
    """What the loop asks of whoever has the dense part on all ranks; parallel.DenseParallel, where there are several.

    needs_every_rank: whether a rank without rows must call the model all the same.
    """

    needs_every_rank: bool

    def rows(self, part: Part) -> AbstractContextManager[None]:
        """The model's forward and backward for these rows are inside."""
        ...

    def sum_gradients(self, extras: F64) -> F64:
        """Sum the gradients of the dense part over all ranks. extras: float64 [n]; returns every rank's, [P, n]."""
        ...

    def square_norm(self) -> float:
        """Of all gradients of the dense part, once they are summed."""
        ...


class Checkpointing(Protocol):
    """What the loop asks of whoever keeps its checkpoints, with the rows as they are at that moment."""

    def save(self, state: State, best_step: int | None) -> None: ...
    def wait(self) -> None: ...


class Following(Protocol):
    """What the loop asks of whoever writes deltas of the rows as they are at that moment."""

    def write_if_due(self, step: int) -> None: ...
    def write(self, step: int) -> None: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of, put together by fit.

    lookahead: batches to steps whose rows are in place. scorer: for progressive validation.
    evaluate: metrics of the validation part, or None without one. save: keeps the model under a name, with its facts.
    checkpoint: keeps the loop's state, with the rows, or None without checkpoints.
    wire: bytes that went between ranks until now, by kind; see log.py.
    deltas: writes them, or None without any. peers: the ranks that train together, for the loop's thread; dense: what
        has the dense part on all of them, or None where there is one rank. failed: tells the others what ends this one.
    call: calls the model in training for features of so many rows of all ranks, or None: the model is called.
    step_ended: told after each step, outside of it; see threads.KernelThreads.
    restore_generators: has the generators of random numbers go on from where the run that is to go on had left them.
    log: takes each line of metrics.jsonl. counters: of each table, see Store.table_counters. membership: by table with
        such options, counts of keys; see Store.membership. held: what the rows take now; see log.py.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    source: Rows
    labels: Labels
    lookahead: Callable[[Iterable[Batch]], Iterable[Step]]
    scorer: Scorer
    evaluate: Callable[[], dict[str, Any]] | None
    save: Callable[[str, dict[str, Any]], None]
    log: Callable[[Line], None]
    progress: ProgressLine
    membership: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    counters: Callable[[], Mapping[str, Mapping[str, int]]] = field(default=dict)
    held: Callable[[], Mapping[str, Mapping[str, int]]] = dict
    wire: Callable[[], Mapping[str, int]] = dict
    restore_generators: Callable[[], None] = lambda: None
    checkpoint: Checkpointing | None = None
    deltas: Following | None = None
    peers: Peers = ALONE
    failed: Callable[[BaseException], None] = lambda error: None
    dense: Dense | None = None
    call: Callable[[dict[str, Tensor], int], Any] | None = None
    step_ended: Callable[[], None] = lambda: None

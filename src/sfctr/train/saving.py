"""What the loop asks of whoever keeps checkpoints, and when one is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfctr.spec.runfile import Checkpoints, RunFile
from sfctr.store import Store

Strings = Mapping[str, Mapping[int, str]]
"""Table -> key -> text of hashed keys."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """All that a run is made of, between two steps; its step is the store's count of steps.

    trainer: plain data (JSON; a float comes back to the bit). tensors: what the trainer keeps in tensors.
    facts: of the run. best_step: of the best evaluation so far. strings: gives, to any thread, table -> key -> text of
    hashed keys; ones of later rows may be among them.
    """

    run: RunFile
    store: Store
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    trainer: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    best_step: int | None
    strings: Callable[[], Strings]


class Saver(Protocol):
    """Keeps checkpoints of one run, with the rows, dense tables, membership and clock of its store, and generators."""

    def save(self, state: TrainingState) -> object:
        """Take the run as it is now and return; it is written while training goes on.

        Waits for the checkpoint before, and raises the CheckpointError that that one came to.
        """

    def wait(self) -> None:
        """Until what was taken is complete on disk. Raises CheckpointError."""

    def close(self) -> None:
        """The same. Calling it again does nothing."""


class Saved(Protocol):
    """A checkpoint that is there and sound."""

    @property
    def step(self) -> int: ...
    @property
    def run(self) -> RunFile: ...
    @property
    def trainer(self) -> Mapping[str, Any]: ...
    def trainer_tensors(self) -> dict[str, Tensor]: ...

    def load_store(self, store: Store) -> None:
        """Rows, dense tables, membership, clock and count of steps, into a store of the same tables and any tiers."""

    def load_model(self, model: nn.Module) -> None:
        """Raises CheckpointError where the model is another one."""

    def load_optimizer(self, optimizer: torch.optim.Optimizer | None, model: nn.Module, store: Store) -> None: ...

    def restore_random_states(self) -> None:
        """Have the generators of random numbers go on from where the run had left them."""

    def strings(self) -> Strings: ...


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How checkpoints are written and found, given the directory that holds them all.

    newest: the newest that is sound, saying which are not and why; None where there is none at all. Raises
        CheckpointError where there are some, and none is sound.
    saver: of a run whose store holds what was loaded from the given checkpoint, or began anew (None).
    """

    newest: Callable[[Path], Saved | None]
    saver: Callable[[Path, Checkpoints, Store, Any], Saver]


class Due:
    """Tells when a checkpoint is due, by steps and by minutes."""

    def __init__(self, options: Checkpoints, now: Callable[[], float] = monotonic) -> None:
        self._options, self._now = options, now
        self.saved_at: int | None = None
        self._last = now()

    def at(self, step: int) -> bool:
        if step == self.saved_at:
            return False
        by_steps = self._options.every_steps is not None and step % self._options.every_steps == 0
        minutes = self._options.every_minutes
        return by_steps or (minutes > 0 and self._now() - self._last >= 60 * minutes)

    def saved(self, step: int) -> None:
        """A checkpoint of `step` is there, or being written."""
        self.saved_at, self._last = step, self._now()

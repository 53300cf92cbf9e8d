"""Deltas of a run that trains: when they are due, what they are of, and how they go on with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from sfctr.export import Chain, Deltas, Trained
from sfctr.spec.batch import U64
from sfctr.spec.owned import Owns
from sfctr.spec.runfile import Export
from sfctr.store import Unsent
from sfctr.telemetry import span

from .generators import generators_kept
from .state import State

_FIELDS = ("keys", "beside", "gone")


class RunDeltas:
    """trained: what is exported, as it is now. owns: which keys are this rank's; None: all."""

    def __init__(
        self, options: Export, deltas: Deltas, trained: Callable[[], Trained], owns: Owns | None = None
    ) -> None:
        self._every, self._deltas, self._trained, self._owns = options.delta_every, deltas, trained, owns

    def write_if_due(self, step: int) -> None:
        """Between two steps, the last of which is `step`."""
        if self._every is not None and step and step % self._every == 0:
            self.write(step)

    def write(self, step: int) -> None:
        """Unless that of this step is there."""
        if self._every is None or (self._deltas.chain is not None and self._deltas.chain.step == step):
            return
        with span("delta", step=step), generators_kept():
            self._deltas.write(self._trained())

    def state(self) -> State:
        chain = self._deltas.chain
        if self._every is None or chain is None:
            return State()
        unsent = self._deltas.unsent()
        if not unsent:  # the next one is a base; or this is not the first rank, which tells for all
            return State()
        tables = list(unsent)
        tensors = {
            f"{number}.{field}": _as_tensor(getattr(unsent[name], field))
            for number, name in enumerate(tables)
            for field in _FIELDS
        }
        return State({"chain": msgspec.to_builtins(chain), "tables": tables}, tensors)

    def restore(self, state: State) -> None:
        """The rows are those of the same moment."""
        if self._every is None:
            return
        if not state.plain:
            self._deltas.begin()
            return
        unsent = {
            name: Unsent(**{field: _as_keys(state.tensors[f"{number}.{field}"]) for field in _FIELDS})
            for number, name in enumerate(state.plain["tables"])
        }
        self._deltas.go_on(msgspec.convert(state.plain["chain"], Chain), unsent, self._owns)


def _as_tensor(keys: U64) -> Tensor:
    return torch.from_numpy(keys.view(np.int64))


def _as_keys(tensor: Tensor) -> Any:
    return tensor.numpy().view(np.uint64)

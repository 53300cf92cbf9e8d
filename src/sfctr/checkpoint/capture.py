"""What a checkpoint takes of a run between two steps, at once: copies that training cannot change, all but the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.runfile import RunFile
from sfctr.store import Store

from .dense import copies, model_tensors, optimizer_fields, parameter_names, split_fields
from .layout import RecordLayout, layout_of
from .parts import clock_parts, stored, waiting_parts
from .random_states import random_states

Strings = Mapping[str, Mapping[int, str]]
"""Table -> key -> text of hashed keys."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """All that a run is made of. Its step is the store's count of steps.

    trainer: plain data (JSON; a float comes back to the bit). tensors: what the trainer keeps in tensors.
    facts: for the manifest. best_step: of the best evaluation so far; its checkpoint is kept.
    strings: asked for while the checkpoint is written, so it may know keys of later steps. parts: what each of several
    ranks has of the dense part, where that is not all of it.
    """

    run: RunFile
    store: Store
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    best_step: int | None = None
    strings: Callable[[], Strings] = dict
    parts: DenseParts | None = None


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A TrainingState that nobody changes any more: num_rows, membership and waiting are of this rank's rows."""

    step: int
    run: RunFile
    tensors: dict[str, Tensor]
    state_text: str
    waiting: list[tuple[str, pa.Table]]
    clock: list[tuple[str, pa.Table]]
    layouts: tuple[RecordLayout, ...]
    num_rows: dict[str, int]
    membership: dict[str, dict[str, int]]
    facts: dict[str, Any]
    best_step: int | None
    strings: Callable[[], Strings]


def capture(state: TrainingState, *, is_first: bool = True) -> Captured:
    """Raises CheckpointError where the optimizer has a parameter of its own.

    is_first: on rank 0; the dense part of the others is not kept.
    """
    store = state.store
    membership = store.membership()  # first: rows that have expired go now
    names = parameter_names(state.model, store, state.parts)
    fields, plain_fields = split_fields(optimizer_fields(state.optimizer, names, state.parts))
    tensors = model_tensors(state.model, store, state.parts) | fields
    tensors |= {f"random.{name}": value for name, value in random_states().items()}
    tensors |= {f"trainer.{name}": value for name, value in state.tensors.items()}
    return Captured(
        step=store.steps,
        run=state.run,
        tensors=copies(tensors) if is_first else {},
        state_text=json.dumps({"trainer": state.trainer, "optimizer": plain_fields}),
        waiting=list(waiting_parts(store)),
        clock=list(clock_parts(store)),
        layouts=tuple(layout_of(group) for group in store.groups),
        num_rows={table.name: store.num_rows(table.name) for table in stored(list(store.tables.values()))},
        membership=membership,
        facts=json.loads(json.dumps(dict(state.facts), allow_nan=False)),
        best_step=state.best_step,
        strings=state.strings,
    )

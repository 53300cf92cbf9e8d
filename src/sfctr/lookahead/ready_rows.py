"""ReadyRows: a batch of one's own, in training; what Ready is to batches of a schema.

Life: made by Lookahead, then the model's embedded modules read its rows, any number of times, and backward; then
exactly one of step() or discard().

  N ids of a call, U unique keys of a table, D dim
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import I64, Bools
from sfctr.spec.errors import ModelError

from .id_batches import Column, IdBatch, IdBatches, Ids
from .placing import place
from .prepared import Prepared, Rows
from .ready import Ready


class ReadyRows:
    """A batch of one's own whose ids' rows are in place, and the one optimizer step that it stands for.

    batch: as the loader gave it. number: of steps committed before it. Every id that was announced for a table must
    have been read by step(), or none: an optimizer moves the rows that a step reads, and one that was announced and not
    read would be moved as if its gradient were zero.
    """

    def __init__(self, batch: IdBatch, ready: Ready) -> None:
        self.batch: Any = batch.given
        self._ids, self._ready = batch, ready
        self._weights: dict[bool, dict[str, Tensor]] = {}  # by whether gradients are collected
        self._sorted: dict[str, tuple[I64, I64]] = {}
        self._read: dict[str, Bools] = {}

    @property
    def number(self) -> int:
        return self._ready.number

    @property
    def is_open(self) -> bool:
        return self._ready.is_open

    def step(
        self,
        optimizer: torch.optim.Optimizer | None,
        *,
        clip: float | None = None,
        lr_factor: float = 1.0,
        check: bool = False,
    ) -> float | None:
        """As Ready.step(). Raises ModelError, and the batch stays open, where announced ids were not read."""
        for table, columns in self._ids.columns.items():
            self._require_all_read(table, columns)
        return self._ready.step(optimizer, clip=clip, lr_factor=lr_factor, check=check)

    def discard(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """As Ready.discard()."""
        self._ready.discard(optimizer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ready.__exit__(kind, error, trace)

    # ------------------------------------------------------------------------------------ for the modules that read it

    def weight(self, table: str) -> Tensor:
        """[U, D]: the rows of the table's announced keys; gradients that reach it are collected."""
        assert self._ids.placed is not None
        has_gradient = torch.is_grad_enabled()
        if has_gradient not in self._weights:
            self._weights[has_gradient] = self._ids.placed.vectors(self._ready.features())
        found = self._weights[has_gradient]
        store = self._ids.embedded.store
        return found[table] if table in found else torch.empty((0, store.tables[table].dim), device=store.device)

    def places(self, table: str, ids: I64) -> I64 | None:
        """int64 [N]: rows of weight() for ids that are no padding; None where some were not announced."""
        for column in self._ids.columns.get(table, []):
            if np.array_equal(column.ids, ids):
                column.is_read |= torch.is_grad_enabled()
                return column.places
        keys, order = self._sorted_keys(table)
        at = np.searchsorted(keys, ids)
        if not np.array_equal(keys[np.minimum(at, keys.size - 1)] if keys.size else keys, ids):
            return None
        if torch.is_grad_enabled() and ids.size:
            self._read.setdefault(table, np.zeros(keys.size, np.bool_))[order[at]] = True
        return order[at]

    def missing_id(self, table: str, ids: I64) -> int:
        """The first of `ids` that was not announced."""
        return int(ids[~np.isin(ids, self._sorted_keys(table)[0])][0])

    def _sorted_keys(self, table: str) -> tuple[I64, I64]:
        """The table's announced keys in rising order, and where each is in weight()."""
        if table not in self._sorted:
            keys = self._ids.keys.get(table, np.empty(0, np.uint64)).view(np.int64)
            order = np.argsort(keys)
            self._sorted[table] = keys[order], order
        return self._sorted[table]

    def _require_all_read(self, table: str, columns: Sequence[Column]) -> None:
        """Nothing, or everything that was announced for a table, may have been read."""
        read = self._read.get(table)
        if all(column.is_read for column in columns) or not (read is not None or any(c.is_read for c in columns)):
            return
        read = np.zeros(self._ids.keys[table].size, np.bool_) if read is None else read.copy()
        for column in columns:
            if column.is_read:
                read[column.places] = True
        for column in columns:
            unread = column.ids[~read[column.places]]
            if unread.size:
                raise ModelError(
                    f"column {column.label!r} announces id {unread[0]} for table '{table}', and the model has read"
                    " others of the table and not this one, which the optimizer would move all the same; announce"
                    " what the model reads and no more, if need be by ids=lambda batch: {module: ids}"
                )


class IdReader:
    """What Lookahead asks of batches of one's own: batches, their working sets, and the Ready of each."""

    def __init__(self, batches: Iterable[Any], rows: Rows, ids: Ids) -> None:
        self._rows, self._batches = rows, IdBatches(batches, rows.store, ids)

    def __iter__(self) -> Iterator[IdBatch]:
        return iter(self._batches)

    def working_sets(self, batch: IdBatch) -> tuple[_native.WorkingSet, ...]:
        batch.placed = place(self._rows.store, batch.find_unique())
        return batch.placed.working_sets

    def ready(self, prepared: Prepared, on_end: Callable[[], None]) -> ReadyRows:
        batch: IdBatch = prepared.batch
        assert batch.placed is not None
        placed, embedded = batch.placed, batch.embedded

        def ended() -> None:
            embedded.batch = None
            on_end()

        own = Prepared(placed.batch, prepared.own, prepared.shared)
        ready = Ready(placed.reader, own, self._rows, on_end=ended)
        embedded.batch = rows = ReadyRows(batch, ready)
        return rows

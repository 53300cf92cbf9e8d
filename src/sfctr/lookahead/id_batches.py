"""Batches of one's own for an embedded model: which ids each one reads, and the Ready that their rows are in place for.

A batch is whatever the loader gives. `ids` says where its ids are:

  ids={"item": model.item_embedding, "seen": [model.item_embedding, model.item_bias]}     batch["item"], batch["seen"]
  ids={0: model.item_embedding}                                                           batch[0] of a tuple or list
  ids=lambda batch: {model.embedding: batch["x"] + model.offsets}                         anything else

A column is a tensor or array of integers of any shape, a pair (values, offsets), or a list of ids or of lists of ids.

  N ids of a column, U unique keys of a table, D dim
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import I64, U64, Bools
from sfctr.spec.errors import ConfigError, DataError, ModelError
from sfctr.store import Store

from .embedded import Embedded, EmbeddedModule, TableRows
from .placing import Placed, place
from .ready import Ready

Columns = Mapping[EmbeddedModule, Any]
Ids = Mapping[Any, EmbeddedModule | Sequence[EmbeddedModule]] | Callable[[Any], Columns]


@dataclass(slots=True)
class _Column:
    """Ids that a batch announces: int64 [N] without the padding; later their places among the table's unique keys."""

    label: Hashable
    ids: I64
    places: I64 | None = None
    is_read: bool = False


class IdBatch:
    """A batch of the loader's, the ids that it announces for each table, and later where their rows are."""

    def __init__(self, given: Any, embedded: Embedded, columns: Mapping[str, list[_Column]]) -> None:
        self.given, self.embedded, self.columns = given, embedded, columns
        self.keys: dict[str, U64] = {}
        self.placed: Placed | None = None

    def find_unique(self) -> Mapping[str, U64]:
        """Unique keys of each table."""
        self.keys = {table: _unique(columns) for table, columns in self.columns.items()}
        return self.keys


def _unique(columns: Sequence[_Column]) -> U64:
    """Unique keys of the columns in order of first appearance; tells each column where its ids are among them."""
    keys = [
        _native.FeatureKeys(0, "sum", c.ids.view(np.uint64), np.array([0, c.ids.size], dtype=np.int64)) for c in columns
    ]
    found = _native.WorkingSet(1, 1, keys)
    for number, column in enumerate(columns):
        column.places = found.virtual_ids(number).astype(np.int64)
    unique: U64 = found.keys().copy()
    return unique


class IdBatches:
    """Iterates over a loader's batches as IdBatch. Raises DataError that names the batch (from 1) and the column."""

    def __init__(self, batches: Iterable[Any], store: Store, ids: Ids) -> None:
        self._batches, self._store, self._ids = batches, store, ids
        self._embedded: Embedded | None = None
        if not callable(ids):
            for label, modules in _entries(ids):
                for module in modules:
                    self._rows_of(module, f"ids[{label!r}]")
            if self._embedded is None:
                raise ConfigError("ids= is empty; name a column, as in ids={'item': model.item_embedding}")

    def __iter__(self) -> Iterator[IdBatch]:
        for number, given in enumerate(self._batches, 1):
            columns: dict[str, list[_Column]] = {}
            for label, module, value in self._announced(given, number):
                rows = self._rows_of(module)
                if rows.is_trained:
                    kept = _without_padding(_flat_ids(value, label, number), rows)
                    _refuse_outside(kept, rows, label, number)
                    columns.setdefault(rows.table, []).append(_Column(label, kept))
            if self._embedded is None:
                raise ConfigError(f"ids= named no module for batch {number}; give {{module: ids}}")
            yield IdBatch(given, self._embedded, columns)

    def _announced(self, given: Any, number: int) -> Iterator[tuple[Hashable, EmbeddedModule, Any]]:
        if callable(self._ids):
            for module, value in self._ids(given).items():
                yield module.rows.name if isinstance(module, EmbeddedModule) else "ids", module, value
            return
        for label, modules in _entries(self._ids):
            try:
                value = given[label]
            except (KeyError, IndexError, TypeError):
                has = f" among {sorted(map(str, given))}" if isinstance(given, Mapping) else ""
                raise DataError(
                    f"batch {number} has no column {label!r}{has}", remedy="name the loader's columns in ids="
                ) from None
            for module in modules:
                yield label, module, value

    def _rows_of(self, module: object, where: str = "ids=") -> TableRows:
        if not isinstance(module, EmbeddedModule):
            raise ConfigError(
                f"{where} names {module!r} and must name an embedded module, such as model.item_embedding after"
                " sfctr.embed(model, store)"
            )
        self._embedded = self._embedded or module.rows.embedded
        if module.rows.embedded is not self._embedded or self._embedded.store is not self._store:
            raise ConfigError(f"{where} names '{module.rows.name}', a module of another model or store than the rest")
        return module.rows


def _entries(ids: Mapping[Any, Any]) -> Iterator[tuple[Hashable, Sequence[Any]]]:
    """(column, its modules)"""
    for label, modules in ids.items():
        yield label, modules if isinstance(modules, list | tuple) else [modules]


def _flat_ids(value: Any, label: Hashable, number: int) -> I64:
    """int64 [N] of a column, in order."""
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], int):
        value = value[0]
    if isinstance(value, list | tuple):
        nested = bool(value) and isinstance(value[0], list | tuple | np.ndarray | Tensor)
        value = np.array(list(chain.from_iterable(value) if nested else value) or np.empty(0, np.int64))
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "iu":
        raise DataError(
            f"batch {number}: column {label!r} has {array.dtype} values",
            remedy="ids are integers from 0 on: number them before they reach the loader",
        )
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int64)


def _without_padding(ids: I64, rows: TableRows) -> I64:
    """The ids whose rows are trained: all but the padding."""
    return ids if rows.padding_idx is None else ids[ids != rows.padding_idx]


def _refuse_outside(ids: I64, rows: TableRows, label: Hashable, number: int) -> None:
    outside = (ids < 0) | (ids >= rows.num_embeddings)
    if outside.any():
        raise DataError(
            f"batch {number}: column {label!r} has id {ids[outside][0]} and '{rows.name}' has rows 0 to"
            f" {rows.num_embeddings - 1}",
            remedy="raise num_embeddings, or leave the id out",
        )


class ReadyRows:
    """A batch of one's own whose ids' rows are in place, and the one optimizer step that it stands for.

    batch: as the loader gave it. number: of steps committed before it. The model's embedded modules read its rows until
    step() or discard(), and every id that it announced must be read by then: the optimizers move the rows that a step
    reads, and a row that was announced and not read would be moved as if its gradient were zero.
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
        self, optimizer: torch.optim.Optimizer | None, *, clip: float | None = None, lr_factor: float = 1.0
    ) -> float | None:
        """As Ready.step(). Raises ModelError, and the batch stays open, where announced ids were not read."""
        for table, columns in self._ids.columns.items():
            self._require_all_read(table, columns)
        return self._ready.step(optimizer, clip=clip, lr_factor=lr_factor)

    def discard(self) -> None:
        """Forget the batch and its gradients; no row and no count changes."""
        self._ready.discard()

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

    def _require_all_read(self, table: str, columns: Sequence[_Column]) -> None:
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

    def __init__(self, batches: Iterable[Any], store: Store, ids: Ids) -> None:
        self._store, self._batches = store, IdBatches(batches, store, ids)

    def __iter__(self) -> Iterator[IdBatch]:
        return iter(self._batches)

    def working_sets(self, batch: IdBatch) -> tuple[_native.WorkingSet, ...]:
        batch.placed = place(self._store, batch.find_unique())
        return batch.placed.working_sets

    def ready(
        self, batch: IdBatch, working_sets: Sequence[_native.WorkingSet], on_end: Callable[[], None]
    ) -> ReadyRows:
        assert batch.placed is not None
        placed, embedded = batch.placed, batch.embedded

        def ended() -> None:
            embedded.batch = None
            on_end()

        ready = Ready(placed.reader, placed.batch, working_sets, self._store, on_end=ended)
        embedded.batch = rows = ReadyRows(batch, ready)
        return rows

"""Batches of one's own for an embedded model, and which ids each one reads.

A batch is whatever the loader gives. `ids` says where its ids are:

  ids={"item": model.item_embedding, "seen": [model.item_embedding, model.item_bias]}     batch["item"], batch["seen"]
  ids={0: model.item_embedding}                                                           batch[0] of a tuple or list
  ids=lambda batch: {model.embedding: batch["x"] + model.offsets}                         anything else

A column is a tensor or array of integers of any shape, a pair (values, offsets), or a list of ids or of lists of ids.

  N ids of a column
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import I64, U64
from sfctr.spec.errors import ConfigError, DataError
from sfctr.store import Store

from .embedded import Embedded, EmbeddedModule, TableRows
from .placing import Placed

Columns = Mapping[EmbeddedModule, Any]
Ids = Mapping[Any, EmbeddedModule | Sequence[EmbeddedModule]] | Callable[[Any], Columns]


@dataclass(slots=True)
class Column:
    """Ids that a batch announces: int64 [N] without the padding; later their places among the table's unique keys."""

    label: Hashable
    ids: I64
    places: I64 | None = None
    is_read: bool = False


class IdBatch:
    """A batch of the loader's, the ids that it announces for each table, and later where their rows are."""

    def __init__(self, given: Any, embedded: Embedded, columns: Mapping[str, list[Column]]) -> None:
        self.given, self.embedded, self.columns = given, embedded, columns
        self.keys: dict[str, U64] = {}
        self.placed: Placed | None = None

    def find_unique(self) -> Mapping[str, U64]:
        """Unique keys of each table."""
        self.keys = {table: _unique(columns) for table, columns in self.columns.items()}
        return self.keys


def _unique(columns: Sequence[Column]) -> U64:
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
            columns: dict[str, list[Column]] = {}
            for label, module, value in self._announced(given, number):
                rows = self._rows_of(module)
                if rows.is_trained:
                    kept = _without_padding(_flat_ids(value, label, number), rows)
                    _refuse_outside(kept, rows, label, number)
                    columns.setdefault(rows.table, []).append(Column(label, kept))
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

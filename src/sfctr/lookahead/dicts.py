"""Batches given as dicts of columns, for a schema: {"item": ids [B], "tags": lists of ids, "price": [B], "click": [B]}.

A column is a tensor, an array or a list of B values. Ids of a bag or sequence are, for all rows together, one of
  a list of B lists;  an array [B, L], L ids a row;  a pair (ids [B, L], mask [B, L]) with True where an id is;
  a pair (ids [N], offsets [B] or [B + 1]), row b from offsets[b] on.
Ids are integers and keep all 64 bits; numbers are taken as they are: NaN is a missing one, None a missing id. What is
work of a reader (strings, transforms, buckets, parts of times, crosses) is refused: open_source does it.
Keys are made as docs/format/ids.md says. Errors name batch (from 1) and column.

  B rows, L length, N ids of all rows
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sfctr.spec.batch import F32, I64, U64, Batch, Bools, Keys
from sfctr.spec.errors import DataError, SchemaError
from sfctr.spec.schema import Bag, Categorical, Dense, Feature, Schema, Sequence

Array = npt.NDArray[Any]


class DictBatches:
    """Iterates over batches of a schema; those that are dicts become spec Batch, the others pass."""

    def __init__(self, batches: Iterable[Any], schema: Schema) -> None:
        self._batches, self._schema = batches, schema

    def __iter__(self) -> Iterator[Batch]:
        batches, num_rows = iter(self._batches), 0
        try:
            for number, batch in enumerate(batches, 1):
                if not isinstance(batch, Batch):
                    batch = batch_of(batch, self._schema, number, num_rows)
                num_rows += batch.size
                yield batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def batch_of(
    columns: object, schema: Schema, number: int = 1, first_row: int = 0, *, with_labels: bool = True
) -> Batch:
    """The batch of one dict. number: of the batch, for messages. first_row: position of its first row in the stream.

    Without labels the batch has none (K = 0), and no weights.
    Raises DataError where a column does not hold what its feature needs, SchemaError for a feature that needs a reader.
    """
    for feature in schema.features:
        _refuse_reading(feature)
    return _Converter(columns, schema, number, with_labels=with_labels).batch(first_row)


def _refuse_reading(feature: Feature) -> None:
    asked = {
        "transform": isinstance(feature, Dense) and feature.transform != "none",
        "clip": isinstance(feature, Dense) and feature.clip is not None,
        "standardize": isinstance(feature, Dense) and (feature.standardize or feature.mean is not None),
        "strings": getattr(feature, "dtype", "auto") == "string",
        "a separator": getattr(feature, "separator", None) is not None,
        f"kind {type(feature).__name__}": not isinstance(feature, Dense | Categorical | Bag | Sequence),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise SchemaError(
                f"feature '{feature.name}' has {what}, which batches of dicts do not go through; apply it before, or"
                " read the data by open_source"
            )


class _Converter:
    """One dict on its way to a Batch."""

    def __init__(self, columns: object, schema: Schema, number: int, *, with_labels: bool) -> None:
        self._schema, self._number, self._with_labels = schema, number, with_labels
        if not isinstance(columns, Mapping):
            self._refuse(None, f"is a {type(columns).__name__}", "give dicts of columns, or spec Batch")
        self._columns = columns
        self._size = self._count()

    def _count(self) -> int:
        """Rows, by the first label, else by the first feature."""
        name = self._schema.labels[0] if self._with_labels else self._schema.features[0].columns[0]
        value = self._column(name)
        if not self._with_labels and isinstance(value, tuple) and len(value) == 2:
            ids, second = _array(value[0]), _array(value[1])
            return len(second) - (ids.ndim == 1 and second.size > 0 and second[-1] == ids.size)
        if not isinstance(value, list) and _array(value).ndim == 0:
            self._refuse(name, "is a single value, and a list or array [B] is needed")
        return len(value)

    def batch(self, first_row: int) -> Batch:
        labels, mask = self._labels()
        weight = None if self._schema.weight is None or not self._with_labels else self._weight(self._schema.weight)
        keys: dict[str, Keys] = {}
        for feature in self._schema.keyed:
            assert isinstance(feature, Categorical | Bag | Sequence)
            keys[feature.name] = self._one(feature) if isinstance(feature, Categorical) else self._many(feature)
        return Batch(
            size=self._size,
            dense={feature.name: self._dense(feature) for feature in self._schema.dense},
            keys=keys,
            labels=labels,
            label_mask=mask,
            weight=weight,
            rows=np.arange(first_row, first_row + self._size, dtype=np.int64),
        )

    def _refuse(self, column: str | None, problem: str, remedy: str = "") -> NoReturn:
        raise DataError(problem, file=f"batch {self._number}", column=column, remedy=remedy)

    def _column(self, name: str) -> Any:
        if name not in self._columns:
            known = ", ".join(sorted(map(str, self._columns)))
            self._refuse(name, f"is not there; columns are {known}", "add it, or name another by column=")
        return self._columns[name]

    def _numbers(self, name: str, width: int = 1) -> npt.NDArray[np.float64]:
        """float64 [B, width]; NaN where missing."""
        try:
            values = _array(self._column(name)).astype(np.float64)
        except (TypeError, ValueError):
            self._refuse(name, "holds values that are no numbers", "give a float array [B]")
        if values.shape not in {(self._size, width), (self._size,) if width == 1 else ()}:
            self._refuse(name, f"has shape {values.shape} and needs [{self._size}, {width}]")
        return values.reshape(self._size, width)

    def _labels(self) -> tuple[F32, Bools]:
        if not self._with_labels:
            return np.zeros((self._size, 0), np.float32), np.zeros((self._size, 0), np.bool_)
        values = np.concatenate([self._numbers(name) for name in self._schema.labels], axis=1)
        known = ~np.isnan(values)
        for name, column, is_known in zip(self._schema.labels, values.T, known.T, strict=True):
            bad = is_known & ~((column >= 0) & (column <= 1))
            if bad.any():
                self._refuse(
                    name, f"label {column[bad][0]:g} lies outside of [0, 1]", "a label is 0, 1 or between them"
                )
        return np.where(known, values, 0).astype(np.float32), known

    def _weight(self, name: str) -> F32:
        values = self._numbers(name)[:, 0]
        if not (np.isfinite(values) & (values >= 0)).all():
            self._refuse(name, "a weight is no finite number of at least 0", "give every row a weight of 0 or more")
        return values.astype(np.float32)

    def _dense(self, feature: Dense) -> F32:
        name = feature.columns[0]
        values = self._numbers(name, feature.size).astype(np.float32)
        if np.isinf(values).any():
            self._refuse(name, "holds a number that is infinite as a 32-bit float", "clip it, or leave it out (NaN)")
        missing = np.isnan(values)
        out = np.zeros((self._size, feature.width), np.float32)
        np.copyto(out[:, : feature.size], values, where=~missing)
        if feature.indicator:
            out[:, feature.size] = missing.any(axis=1)
        return out

    def _one(self, feature: Categorical) -> Keys:
        name = feature.columns[0]
        array = _array(self._column(name))
        nulls: Array | None = None
        if array.dtype == object and array.ndim == 1:
            nulls = np.array([value is None for value in array])
            array = _array([0 if value is None else value for value in array])
        if array.shape != (self._size,):
            self._refuse(name, f"has shape {array.shape} and needs [{self._size}], an id a row", "use Bag for lists")
        has_nulls = nulls is not None and nulls.any()
        return Keys(
            keys=self._ids(name, array), nulls=nulls.astype(np.uint8) if has_nulls and nulls is not None else None
        )

    def _ids(self, name: str, array: Array) -> U64:
        if array.dtype.kind not in "iub" and array.size:
            self._refuse(name, f"holds {array.dtype} values", "ids are integers: number or hash them before")
        wide = array.astype(np.uint64) if array.dtype.kind == "u" else array.astype(np.int64).view(np.uint64)
        return np.ascontiguousarray(wide)

    def _many(self, feature: Bag | Sequence) -> Keys:
        name = feature.columns[0]
        values, offsets = self._ragged(name)
        kept = self._kept(feature, values, offsets)
        weights = None
        if isinstance(feature, Bag) and feature.weights is not None:
            weights = self._bag_weights(feature.weights, offsets)[kept]
        if not kept.all():
            offsets = np.concatenate([[0], np.cumsum(kept)])[offsets]
            values = _array(values[kept].tolist())
        first, length = _cut(offsets, feature.max_length, latest=isinstance(feature, Sequence))
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        chosen = np.repeat(first - offsets[:-1], length) + np.arange(offsets[-1])
        return Keys(
            keys=self._ids(name, values)[chosen],
            offsets=offsets,
            weights=None if weights is None else np.ascontiguousarray(weights[chosen]),
        )

    def _kept(self, feature: Bag | Sequence, values: Array, offsets: I64) -> Bools:
        """[N]: the ids that are there, in this list and in all that share its positions."""
        kept = _is_there(values)
        if not isinstance(feature, Sequence):
            return kept
        leader = feature.aligned_with or feature.name
        for other in self._schema.keyed:
            if not isinstance(other, Sequence) or other is feature or leader not in (other.aligned_with, other.name):
                continue
            others, own = self._ragged(other.columns[0])
            if not np.array_equal(own, offsets):
                self._refuse(other.columns[0], f"has lists of other lengths than those of '{feature.name}'")
            kept = kept & _is_there(others)
        return kept

    def _bag_weights(self, name: str, offsets: I64) -> F32:
        values, own = self._ragged(name)
        if not np.array_equal(own, offsets):
            self._refuse(name, "holds lists of other lengths than the ids it weighs", "give every id one weight")
        return values.astype(np.float32)

    def _ragged(self, name: str) -> tuple[Array, I64]:
        """(values [N], offsets [B + 1]) of a column of lists."""
        value = self._column(name)
        if isinstance(value, tuple) and len(value) == 2:
            first, second = _array(value[0]), _array(value[1])
            if second.dtype == np.bool_ and first.ndim == 2 and first.shape == second.shape:
                return self._checked(name, first[second], _offsets(second.sum(axis=1)))
            if first.ndim == 1 and second.ndim == 1 and second.dtype.kind in "iu":
                return self._checked(name, first, _closed(second.astype(np.int64), first.size, self._size))
            self._refuse(name, "is a pair, and neither (ids [N], offsets) nor (ids [B, L], bool mask [B, L])")
        if isinstance(value, list):
            rows = [[] if row is None else row for row in value]
            if rows and np.ndim(rows[0]) == 0:
                self._refuse(name, "holds single ids, and lists are needed", "use Categorical for one id a row")
            return self._checked(name, _array(list(chain.from_iterable(rows))), _offsets([len(row) for row in rows]))
        array = _array(value)
        if array.ndim != 2:
            self._refuse(name, f"has shape {array.shape}", "give lists, [B, L], or a pair (see sfctr.lookahead.dicts)")
        return self._checked(name, array.reshape(-1), np.arange(array.shape[0] + 1, dtype=np.int64) * array.shape[1])

    def _checked(self, name: str, values: Array, offsets: I64) -> tuple[Array, I64]:
        if offsets.size != self._size + 1:
            self._refuse(name, f"has {offsets.size - 1} rows and the labels have {self._size}")
        if offsets[0] != 0 or offsets[-1] != values.size or (np.diff(offsets) < 0).any():
            self._refuse(name, f"has offsets that do not rise from 0 to {values.size}, the number of ids")
        return values, offsets


def _array(value: Any) -> Array:
    """A column's values; lists of ids with None in them as objects."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _is_there(values: Array) -> Bools:
    return np.array([value is not None for value in values]) if values.dtype == object else np.ones(values.size, bool)


def _offsets(lengths: Any) -> I64:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def _closed(offsets: I64, num_values: int, num_rows: int) -> I64:
    """Offsets with their end, which torch leaves out."""
    return np.append(offsets, num_values) if offsets.size == num_rows else offsets


def _cut(offsets: I64, max_length: int | None, *, latest: bool) -> tuple[I64, I64]:
    """First value and number of values of each row, of which it keeps its first (or latest) max_length."""
    length = np.diff(offsets)
    kept = length if max_length is None else np.minimum(length, max_length)
    return (offsets[1:] - kept if latest else offsets[:-1]), kept

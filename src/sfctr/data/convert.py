"""Chunks of Arrow columns to batches of final arrays, by a resolved schema.

A `Converter` has no position and may be called from several threads at once: each row becomes the same numbers whatever
chunk it comes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Lock

import numpy as np

from sfctr.spec.batch import F32, I64, U64, Batch, Bools, Keys
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, KeyedFeature, Schema, Sequence, TimePart

from .chunk import Chunk
from .column import Column
from .keys import (
    OneKey,
    Remember,
    bucket_column,
    constant_key,
    cross_keys,
    identity_keys,
    key_column,
)
from .labels import labels, weights
from .lists import bag_column, sequence_columns, sequence_groups
from .numeric import dense, dense_constant
from .texts import Texts
from .times import time_part, times, zone_named


class Strings:
    """The texts behind hashed keys, seen so far."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._texts: dict[int, str] = {}

    def remember(self, keys: U64, texts: Texts) -> None:
        distinct, first = np.unique(keys, return_index=True)
        with self._lock:
            for key, at in zip(distinct.tolist(), first.tolist(), strict=True):
                if key not in self._texts and texts.starts[at] < texts.ends[at]:
                    self._texts[key] = texts[at]

    def restore(self, texts: Mapping[int, str]) -> None:
        with self._lock:
            self._texts = {**texts, **self._texts}

    def snapshot(self) -> Mapping[int, str]:
        with self._lock:
            return dict(self._texts)


class Converter:
    """Turns chunks into batches under one resolved schema.

    with_labels: read labels and weights. serving: features with serve_as take that value, and their column is not read.
    present:     columns the input has; time and kept columns that it lacks are left out where labels are not read.
    """

    def __init__(self, schema: Schema, *, with_labels: bool, serving: bool, present: frozenset[str]) -> None:
        self.schema = schema
        self.with_labels = with_labels
        self._serving, self._present = serving, present
        self._labels = schema.labels if with_labels else ()
        self._weight = schema.weight if with_labels else None
        optional = frozenset() if with_labels else frozenset(schema.keep) | _time_names(schema)
        self._left_out = optional - present
        self._fixed = {f.name for f in schema.features if serving and getattr(f, "serve_as", None) is not None}
        self._zones = {f.name: zone_named(f.zone, f.name) for f in schema.features if isinstance(f, TimePart)}
        self._groups = sequence_groups(schema)
        self.strings = {f.columns[0]: Strings() for f in schema.keyed if _keeps(f)}
        self._remember: dict[str, Remember] = {
            f.name: self.strings[f.columns[0]].remember for f in schema.keyed if _keeps(f)
        }

    def with_schema(self, schema: Schema) -> Converter:
        return Converter(schema, with_labels=self.with_labels, serving=self._serving, present=self._present)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read, each once."""
        names = list(self.decision_columns)
        if self._weight is not None:
            names.append(self._weight)
        for feature in self.schema.features:
            if feature.name not in self._fixed:
                names.extend(feature.columns)
        names.extend(c for c in self.schema.keep if c not in self._left_out)
        return tuple(dict.fromkeys(names))

    @property
    def decision_columns(self) -> tuple[str, ...]:
        """Columns that decide which rows are kept."""
        time = self.schema.time_column
        return (*self._labels, *(() if time is None or time.column in self._left_out else (time.column,)))

    def remember_for(self, table: str) -> Remember | None:
        """What keeps the texts of a table's keys; None where they are not kept."""
        return next((self._remember[f.name] for f in self.schema.keyed if _keeps(f) and f.table_name == table), None)

    def restore_strings(self, table: str, texts: Mapping[int, str]) -> None:
        """Keep these texts of a table's keys too, where its texts are kept."""
        for feature in self.schema.keyed:
            if _keeps(feature) and feature.table_name == table:
                self.strings[feature.columns[0]].restore(texts)

    def time(self, chunk: Chunk) -> I64 | None:
        """Nanoseconds of the schema's time column."""
        time = self.schema.time_column
        return None if time is None or time.column in self._left_out else times(chunk[time.column], time.format)

    def labels(self, chunk: Chunk) -> tuple[F32, Bools]:
        return labels([chunk[name] for name in self._labels], chunk.size)

    def batch(self, chunk: Chunk, picked: I64 | None, time: I64 | None, known: tuple[F32, Bools]) -> Batch:
        """The chunk's rows `picked` (None: all), given the whole chunk's times and labels."""
        size = chunk.size if picked is None else len(picked)
        columns = _Columns(chunk, picked)
        rows = chunk.position + (np.arange(size) if picked is None else picked)
        label, mask = known
        if picked is not None:
            label, mask, time = label[picked], mask[picked], None if time is None else time[picked]
        keys: dict[str, Keys] = {}
        for group in self._groups:
            keys.update(sequence_columns(columns, group, {f.name: f.dtype for f in group}, self._remember))
        for feature in self.schema.keyed:
            if not isinstance(feature, Sequence):
                keys[feature.name] = self._keys(feature, columns, size)
        return Batch(
            size=size,
            dense={f.name: self._dense(f, columns, size) for f in self.schema.dense},
            keys={f.name: keys[f.name] for f in self.schema.keyed},
            labels=label,
            label_mask=mask,
            weight=None if self._weight is None else weights(columns[self._weight]),
            rows=rows,
            time=time,
            keep={c: identity_keys(columns[c]) for c in self.schema.keep if c not in self._left_out},
        )

    def empty(self) -> Batch:
        """A batch without rows, of arrays as `batch` gives them."""
        time, kept = self.schema.time_column, [c for c in self.schema.keep if c not in self._left_out]
        return Batch(
            size=0,
            dense={f.name: np.zeros((0, f.width), np.float32) for f in self.schema.dense},
            keys={f.name: _no_keys(f) for f in self.schema.keyed},
            labels=np.zeros((0, len(self._labels)), np.float32),
            label_mask=np.zeros((0, len(self._labels)), np.bool_),
            weight=None if self._weight is None else np.zeros(0, np.float32),
            rows=np.zeros(0, np.int64),
            time=None if time is None or time.column in self._left_out else np.zeros(0, np.int64),
            keep={c: np.zeros(0, np.uint64) for c in kept},
        )

    def _dense(self, feature: Dense, columns: Mapping[str, Column], size: int) -> F32:
        if feature.name in self._fixed:
            assert feature.serve_as is not None
            return dense_constant(feature.serve_as, size, feature)
        return dense(columns[feature.columns[0]], feature)

    def _keys(self, feature: KeyedFeature, columns: Mapping[str, Column], size: int) -> Keys:
        if isinstance(feature, Bag):
            return bag_column(columns, feature, feature.dtype, self._remember.get(feature.name))
        if feature.name in self._fixed:
            return Keys(keys=np.full(size, self._constant(feature)))
        one = self._one_key(feature, columns, size)
        return Keys(keys=one.keys, nulls=one.nulls)

    def _one_key(self, feature: KeyedFeature, columns: Mapping[str, Column], size: int) -> OneKey:
        if isinstance(feature, Categorical):
            return key_column(columns[feature.columns[0]], feature.dtype, self._remember.get(feature.name))
        if isinstance(feature, Bucket):
            return bucket_column(columns[feature.columns[0]], feature)
        if isinstance(feature, TimePart):
            ns = times(columns[feature.column], time_format(self.schema, feature))
            return time_part(ns, feature.part, self._zones[feature.name])
        assert isinstance(feature, Cross) and feature.dtypes is not None
        parts = [key_column(columns[c], d) for c, d in zip(feature.of, feature.dtypes, strict=True)]
        return OneKey(cross_keys(parts, size), None)

    def _constant(self, feature: KeyedFeature) -> np.uint64:
        if isinstance(feature, Bucket):
            assert feature.serve_as is not None
            return np.uint64(np.searchsorted(feature.boundaries, feature.serve_as, side="right"))
        assert isinstance(feature, Categorical)
        return constant_key(feature.serve_as, feature.dtype, feature.name)


class _Columns(Mapping[str, Column]):
    """The picked rows of a chunk's columns, each taken when first asked for."""

    def __init__(self, chunk: Chunk, picked: I64 | None) -> None:
        self._chunk, self._picked = chunk, picked
        self._taken: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._taken:
            column = self._chunk[name]
            self._taken[name] = column if self._picked is None else column.take(self._picked)
        return self._taken[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._chunk.arrays)

    def __len__(self) -> int:
        return len(self._chunk.arrays)


def time_format(schema: Schema, feature: TimePart) -> str | None:
    """The format a TimePart reads its column in: the time column's own, where it is the same."""
    time = schema.time_column
    return time.format if time is not None and time.column == feature.column else feature.format


def _no_keys(feature: KeyedFeature) -> Keys:
    weighted = isinstance(feature, Bag) and (feature.weights is not None or feature.weight_separator is not None)
    return Keys(
        keys=np.zeros(0, np.uint64),
        offsets=np.zeros(1, np.int64) if isinstance(feature, Bag | Sequence) else None,
        weights=np.zeros(0, np.float32) if weighted else None,
    )


def _keeps(feature: KeyedFeature) -> bool:
    return isinstance(feature, Categorical | Bag | Sequence) and feature.keep_strings


def _time_names(schema: Schema) -> frozenset[str]:
    time = schema.time_column
    return frozenset() if time is None else frozenset((time.column,))

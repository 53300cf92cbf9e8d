"""One pass over an input before training: how many rows each part has, and the mean and deviation of its numbers.

Only the columns that this needs are read. Sums run over the rows in order, however the rows come in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing

import msgspec
import numpy as np

from sfctr.spec.batch import I64
from sfctr.spec.schema import Dense, Schema

from .chunk import Chunk, Scan
from .convert import Converter
from .numeric import numbers, transformed
from .split import Rule
from .texts import F64


class _Moments:
    """Count, mean and deviation of the numbers seen, summed about the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self._pivot = self._sum = self._squares = 0.0

    def add(self, values: F64) -> None:
        if not len(values):
            return
        if not self.count:
            self._pivot = float(values[0])
        self.count += len(values)
        off = values - self._pivot
        self._sum = _running_sum(self._sum, off)
        self._squares = _running_sum(self._squares, off * off)

    @property
    def mean(self) -> float:
        return self._pivot + self._sum / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Population deviation; 1 where the numbers are all the same, so that they become 0."""
        if not self.count:
            return 1.0
        variance = self._squares / self.count - (self._sum / self.count) ** 2
        return math.sqrt(variance) if variance > 0 else 1.0


def _running_sum(start: float, values: F64) -> float:
    """start + values[0] + values[1] ... in this order, whatever the chunks."""
    return float(np.add.accumulate(np.concatenate([[start], values]))[-1])


def unknown_moments(schema: Schema) -> list[Dense]:
    """Features that are to be standardised, and whose mean and deviation are not known."""
    return [f for f in schema.dense if f.standardize and f.mean is None]


def survey(scan: Scan, converter: Converter, rules: Sequence[Rule], threads: int) -> tuple[list[int], Converter]:
    """Rows that each rule takes, and the converter with means and deviations of the first rule's rows filled in."""
    features = unknown_moments(converter.schema)
    moments = {f.name: _Moments() for f in features}
    extra = [c for rule in rules for c in rule.columns] + [f.columns[0] for f in features]
    columns = tuple(dict.fromkeys((*converter.decision_columns, *extra)))
    counts = [0] * len(rules)
    with closing(scan.chunks(columns, threads=threads)) as chunks:
        for chunk in chunks:
            time, known = converter.time(chunk), converter.labels(chunk)
            for index, rule in enumerate(rules):
                picked = rule.picked(chunk, time, known)
                counts[index] += chunk.size if picked is None else len(picked)
                if index == 0:
                    for feature in features:
                        moments[feature.name].add(_values(chunk, feature, picked))
    filled = {
        name: msgspec.structs.replace(converter.schema[name], mean=m.mean, std=m.std) for name, m in moments.items()
    }
    schema = msgspec.structs.replace(
        converter.schema, features=tuple(filled.get(f.name, f) for f in converter.schema.features)
    )
    return counts, converter.with_schema(schema)


def counted(scan: Scan, threads: int) -> int:
    """Rows of the input: read through where nothing else tells."""
    if scan.num_rows is not None:
        return scan.num_rows
    with closing(scan.chunks((), threads=threads)) as chunks:
        return sum(chunk.size for chunk in chunks)


def _values(chunk: Chunk, feature: Dense, picked: I64 | None) -> F64:
    """The numbers that are there, after clip and transform."""
    column = chunk[feature.columns[0]]
    if picked is not None:
        column = column.take(picked)
    values, _ = numbers(column)
    there = np.flatnonzero(~np.isnan(values))
    return transformed(values[there], column.place.of_rows(there), feature)

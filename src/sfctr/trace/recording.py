"""What one pass over batches leaves behind: counts of everything, and each table's accesses, in bounded memory.

  T tables, B batches

Where the accesses would take more than the bound, the largest log forgets half of its keys, chosen by hash, and goes on
with the rest (spatial sampling; SHARDS, Waldspurger et al., FAST 2015). What it then holds is what it would hold had
those keys been the only ones from the first batch on. Counts are exact whatever is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfctr import _native
from sfctr.spec.batch import I64, Batch
from sfctr.spec.errors import ConfigError
from sfctr.spec.schema import Schema

LEAST_MEMORY = 1_000_000
_FEWEST_ROWS = 256
"""A log of no more rows is halved no further: less would say little, and most of the memory never goes there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTable:
    """A table as a trace sees it. row_bytes: of a row with its optimizer state; index_bytes: of a key's place in the
    index, which holds every key; buckets: as the table has them, or None."""

    name: str
    row_bytes: int
    index_bytes: int
    buckets: int | None = None


def traced_features(schema: Schema, tables: Sequence[TracedTable]) -> list[tuple[str, int]]:
    """The features that look keys up in these tables, each with its table's place. ConfigError where there is none."""
    places = {table.name: place for place, table in enumerate(tables)}
    found = [(f.name, places[f.table_name]) for f in schema.keyed if f.table_name in places]
    if not found:
        raise ConfigError(
            "no feature looks its keys up in a table that grows with the data, so there is nothing to trace;"
            " a trace is about categorical features, bags and sequences"
        )
    return found


class Recording:
    """Takes batches one by one. One thread at a time.

    tables: those to be traced; features of others are left out. memory_bytes: bound on what the logs of all tables
    take; where no log has more than 256 rows left, they may exceed it.
    Raises ConfigError where no feature uses one of the tables, or for a bound below a megabyte.
    """

    def __init__(self, schema: Schema, tables: Sequence[TracedTable], memory_bytes: int) -> None:
        if memory_bytes < LEAST_MEMORY:
            raise ConfigError(f"the memory of a trace is {memory_bytes:,} bytes and must be at least {LEAST_MEMORY:,}")
        self.tables = tuple(tables)
        self._features = traced_features(schema, tables)
        self._memory_bytes = memory_bytes
        self.logs = [_native.AccessLog() for _ in tables]
        self.num_rows = 0
        self.lookups = np.zeros(len(tables), np.int64)
        self.missing = np.zeros(len(tables), np.int64)
        self._unique: list[I64] = []

    def add(self, batch: Batch) -> None:
        keys = [self._feature_keys(batch, name, place) for name, place in self._features]
        working_set = _native.WorkingSet(len(self.tables), batch.size, keys)
        _native.log_working_set(working_set, self.logs)
        self._unique.append(np.diff(working_set.table_begin()).reshape(-1, 2).sum(axis=1))
        self.num_rows += batch.size
        while self._kept_bytes() > self._memory_bytes and self._halve_largest():
            pass

    def features_of(self, place: int) -> tuple[str, ...]:
        """Names of the features that look keys up in a table."""
        return tuple(name for name, used in self._features if used == place)

    def unique(self) -> I64:
        """int64 [B, T]: distinct keys of each batch, a missing value counted as one."""
        return np.stack(self._unique) if self._unique else np.zeros((0, len(self.tables)), np.int64)

    def _feature_keys(self, batch: Batch, name: str, place: int) -> _native.FeatureKeys:
        keys = batch.keys[name]
        self.lookups[place] += len(keys.keys)
        self.missing[place] += 0 if keys.nulls is None else np.count_nonzero(keys.nulls)
        pooling = "one" if keys.offsets is None else "sum"
        buckets = self.tables[place].buckets or 0
        return _native.FeatureKeys(place, pooling, keys.keys, keys.offsets, keys.nulls, None, 0, buckets)

    def _kept_bytes(self) -> int:
        return sum(log.memory_bytes for log in self.logs)

    def _halve_largest(self) -> bool:
        """False where no log has enough rows to be halved."""
        large = [log for log in self.logs if log.num_rows > _FEWEST_ROWS]
        if large:
            max(large, key=lambda log: log.memory_bytes).halve()
        return bool(large)

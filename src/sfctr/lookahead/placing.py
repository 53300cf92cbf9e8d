"""Rows of tables by key alone: a batch of one row in which each table's keys are one sequence, a vector for each key.

It is how rows are read and trained that no schema knows of.

  U keys of a table, all different; D its dim
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import U64, Batch, Keys
from sfctr.spec.schema import Schema, Sequence
from sfctr.store import Store

from .features import FeatureReader
from .layout import Layout, Lookup, group_layout


@dataclass(frozen=True, slots=True)
class Placed:
    """keys: of each table, as given, tables without any left out. working_sets: of all groups of the store."""

    keys: Mapping[str, U64]
    reader: FeatureReader
    batch: Batch
    working_sets: tuple[_native.WorkingSet, ...]

    def vectors(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Table -> [U, D], of what the reader read."""
        return {table: features[str(number)][0] for number, table in enumerate(self.keys)}


def place(store: Store, keys: Mapping[str, U64]) -> Placed:
    """The batch that stands for these keys of tables that are not dense. Independent of what the store holds."""
    keys = {table: wanted for table, wanted in keys.items() if wanted.size}
    lookups = {table: _lookup(str(number), store, table, keys[table].size) for number, table in enumerate(keys)}
    groups = tuple(group_layout(store, group, lookups.values()) for group in store.groups)
    features = [Sequence(name=x.name, table=x.table, max_length=x.max_length) for x in lookups.values()]
    schema = Schema(label="none", features=tuple(features) or (_NOTHING,))
    batch = Batch(
        size=1,
        keys={lookup.name: _in_one_row(keys[table]) for table, lookup in lookups.items()} or {_NOTHING.name: _NO_KEYS},
        labels=np.zeros((1, 1), np.float32),
        label_mask=np.zeros((1, 1), np.bool_),
        rows=np.zeros(1, np.int64),
    )
    layout = Layout(schema=schema, groups=groups, dense_tables=())
    return Placed(keys, FeatureReader(layout, store), batch, layout.working_sets(batch))


def _lookup(name: str, store: Store, table: str, length: int) -> Lookup:
    dim = store.tables[table].dim
    return Lookup(name=name, table=table, pooling="sequence", dim=dim, max_length=length, linear=False, buckets=0)


def _in_one_row(keys: U64) -> Keys:
    return Keys(keys=keys, offsets=np.array([0, keys.size], dtype=np.int64))


_NOTHING = Sequence(name="nothing", max_length=1)  # a schema needs a feature
_NO_KEYS = _in_one_row(np.empty(0, np.uint64))

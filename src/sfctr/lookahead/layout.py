"""Where each feature's keys are looked up: one `GroupLayout` for every group of the store, and the dense tables' list.

  F features of a group

Pure apart from reading which groups a store has; made once, shared by training and evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sfctr import _native
from sfctr.spec.batch import Batch
from sfctr.spec.errors import ConfigError, SchemaError
from sfctr.spec.inputs import inputs_of
from sfctr.spec.schema import Bag, KeyedFeature, Schema, Sequence
from sfctr.spec.struct_tree import rebuilt
from sfctr.store import Group, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """One feature's look-up: which table, how its positions are pooled, and the shape that comes out."""

    name: str
    table: str
    pooling: str
    dim: int
    max_length: int
    linear: bool
    buckets: int

    @property
    def is_sequence(self) -> bool:
        return self.pooling == "sequence"

    @property
    def vectors_per_row(self) -> int:
        return self.max_length if self.is_sequence else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLayout:
    """The look-ups that one group of the store serves, in the schema's order, with their tables' places in it."""

    lookups: tuple[Lookup, ...]
    places: tuple[int, ...]
    num_tables: int
    rare_tables: tuple[int, ...]

    def working_set(self, batch: Batch) -> _native.WorkingSet:
        """Unique keys and virtual ids of a batch; independent of what the store holds."""
        return _native.WorkingSet(
            self.num_tables,
            batch.size,
            [_feature_keys(batch, lookup, place) for lookup, place in zip(self.lookups, self.places, strict=True)],
            self.rare_tables,
        )


def _feature_keys(batch: Batch, lookup: Lookup, place: int) -> _native.FeatureKeys:
    keys = batch.keys[lookup.name]
    return _native.FeatureKeys(
        place, lookup.pooling, keys.keys, keys.offsets, keys.nulls, keys.weights, lookup.max_length, lookup.buckets
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How features() of a schema are served by a store."""

    schema: Schema
    groups: tuple[GroupLayout, ...]
    dense_tables: tuple[Lookup, ...]

    def working_sets(self, batch: Batch) -> tuple[_native.WorkingSet, ...]:
        return tuple(group.working_set(batch) for group in self.groups)


def layout_of(schema: Schema, store: Store) -> Layout:
    """The layout of a schema over a store. Raises ConfigError where the tables do not fit the schema's features."""
    schema = rebuilt(schema, "schema")
    inputs_of(schema, tuple(store.tables.values()))
    lookups = [_lookup(feature, store) for feature in schema.keyed]
    groups = tuple(group_layout(store, group, lookups) for group in store.groups)
    dense = tuple(lookup for lookup in lookups if store.tables[lookup.table].dense)
    return Layout(schema=schema, groups=groups, dense_tables=dense)


def group_layout(store: Store, group: Group, lookups: Iterable[Lookup]) -> GroupLayout:
    """The look-ups that a group serves, of all those there are."""
    mine = tuple(lookup for lookup in lookups if lookup.table in group.tables)
    return GroupLayout(
        lookups=mine,
        places=tuple(group.tables[lookup.table] for lookup in mine),
        num_tables=len(group.tables),
        rare_tables=tuple(place for name, place in group.tables.items() if store.tables[name].unseen == "rare"),
    )


def _lookup(feature: KeyedFeature, store: Store) -> Lookup:
    table = store.tables[feature.table_name]
    if table.dense and table.buckets is None and getattr(feature, "dtype", "int64") == "string":
        raise ConfigError(
            f"table '{table.name}' is dense with keys 0 to {table.rows_of_dense - 1}, and feature '{feature.name}' has"
            " strings; give the table buckets"
        )
    match feature:
        case Sequence():
            pooling, length = "sequence", feature.max_length
        case Bag():
            pooling, length = feature.pooling, 0
        case _:
            pooling, length = "one", 0
    return Lookup(
        name=feature.name,
        table=table.name,
        pooling=pooling,
        dim=table.dim,
        max_length=length,
        linear=table.linear is not None,
        buckets=table.buckets or 0,
    )


def schema_of(batches: object, schema: Schema | None) -> Schema:
    """The schema given, else the one that a source carries."""
    found = schema if schema is not None else getattr(batches, "schema", None)
    if not isinstance(found, Schema):
        raise SchemaError("these batches carry no schema; pass schema= (or ids=, for a model that embed() took in)")
    return found

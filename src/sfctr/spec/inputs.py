"""What features() will hand a model, told before the first batch: one `Input` a feature, in the schema's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import ConfigError, SchemaError, nearest
from .schema import Dense, KeyedFeature, Schema
from .schema import Sequence as SequenceFeature
from .tables import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One entry of features().

    kind:   "dense" float32 [B, width]; "pooled" [B, dim]; "sequence" [B, max_length, dim], with name + ".mask" bool
            [B, max_length].
    linear: whether name + ".linear", float32 [B, 1] of pooled first-order weights, is there too.
    target: for a sequence, the name of the pooled input it is to be compared with.
    aligned_with: for a side sequence, the name of the sequence whose positions (and mask) it shares.
    A table of dim 0 has no vectors: its features have their ".linear" entry alone.
    """

    name: str
    kind: str
    width: int = 0
    dim: int = 0
    max_length: int = 0
    linear: bool = False
    target: str | None = None
    aligned_with: str | None = None
    table: str | None = None


def tables_by_name(schema: Schema, tables: Sequence[Table]) -> Mapping[str, Table]:
    """The tables that the schema's features use, by name.

    Raises ConfigError where one is missing or there twice, SchemaError where one needs a time column.
    """
    by_name: dict[str, Table] = {}
    for table in tables:
        if table.name in by_name:
            raise ConfigError(f"table '{table.name}' is there twice")
        by_name[table.name] = table
    for feature in schema.keyed:
        if feature.table_name not in by_name:
            raise ConfigError(
                f"feature '{feature.name}' uses table '{feature.table_name}', which is not among the tables"
                + nearest(feature.table_name, by_name)
            )
    unused = set(by_name) - {feature.table_name for feature in schema.keyed}
    if unused:
        raise ConfigError(
            f"table '{sorted(unused)[0]}' is used by no feature; remove it, or name it in a feature's table"
        )
    _check_times(schema, by_name)
    return by_name


def _check_times(schema: Schema, tables: Mapping[str, Table]) -> None:
    for table in tables.values():
        if table.expire_after is not None and schema.time_column is None:
            raise SchemaError(
                f"table '{table.name}' has expire_after = {table.expire_after!r} and the schema names no time column;"
                " name it (schema.time), or use expire_after_steps"
            )


def inputs_of(schema: Schema, tables: Sequence[Table]) -> tuple[Input, ...]:
    """The entries of features() for this schema over these tables."""
    by_name = tables_by_name(schema, tables)
    return tuple(
        Input(name=f.name, kind="dense", width=f.width) if isinstance(f, Dense) else _keyed(f, by_name[f.table_name])
        for f in schema.features
    )


def _keyed(feature: KeyedFeature, table: Table) -> Input:
    linear = table.linear is not None
    if isinstance(feature, SequenceFeature):
        return Input(
            name=feature.name,
            kind="sequence",
            dim=table.dim,
            max_length=feature.max_length,
            linear=linear,
            target=feature.target,
            aligned_with=feature.aligned_with,
            table=table.name,
        )
    return Input(name=feature.name, kind="pooled", dim=table.dim, linear=linear, table=table.name)

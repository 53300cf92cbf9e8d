"""Rows for others: one Parquet file a table, with the keys as the data had them.

key     int64, uint64, bool or string as the column was; null for the row of a missing value. Strings whose text was
        not kept are their 64-bit hash (uint64); keys of a table with buckets are bucket numbers (int64).
hash    uint64, where keys are text: what the text is hashed to
vector  list of float32, where the table has vectors
linear  float32, where the table has first-order weights
rare    bool, for tables with unseen = "rare": True for the row that keys without one read as (its key is null)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from sfctr.data.parquet_writer import WholeParquet
from sfctr.spec.batch import U64, Bools
from sfctr.spec.errors import ConfigError
from sfctr.spec.schema import Schema, key_type_of_table
from sfctr.spec.tables import Table
from sfctr.store import RARE_KEY, RowBlock, Store
from sfctr.telemetry import notice

from .files import rows_file

_TYPES = {"int64": pa.int64(), "uint64": pa.uint64(), "bool": pa.bool_(), "string": pa.string()}


def export_rows(
    store: Store, schema: Schema, out: Path, *, strings: Mapping[str, Mapping[int, str]] | None = None
) -> list[Path]:
    """Write `<table>.parquet` for every table into the directory `out` (made if needed); returns the paths.

    strings: table -> key -> text of hashed keys. Each file is complete or absent. Raises
    ConfigError where `out` is a file or cannot be written into, CapacityError where the disk is full.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file and a directory is needed to export into")
    types = key_type_of_table(schema)
    return [
        _export_table(store, table, types[name], out, (strings or {}).get(name)) for name, table in store.tables.items()
    ]


def _export_table(store: Store, table: Table, key_type: str, out: Path, texts: Mapping[int, str] | None) -> Path:
    if table.buckets is not None or table.dense:
        key_type, texts = "int64", None
    elif key_type == "string" and texts is None:
        notice(f"table '{table.name}': keys are exported as 64-bit hashes; keep_strings = true keeps their text")
        key_type = "uint64"
    path = out / rows_file(table.name)
    fields = [pa.field("key", _TYPES[key_type])]
    if key_type == "string":
        fields.append(pa.field("hash", pa.uint64()))
    if table.dim:
        fields.append(pa.field("vector", pa.list_(pa.float32())))
    if table.linear is not None:
        fields.append(pa.field("linear", pa.float32()))
    if table.unseen == "rare":
        fields.append(pa.field("rare", pa.bool_()))
    arrow_schema = pa.schema(fields)
    with WholeParquet(path, arrow_schema) as writer:
        for block in store.rows(table.name):
            columns = [_keys(block.keys, block.nulls, key_type, texts), *_values(block, table)]
            if key_type == "string":
                columns.insert(1, pa.array(block.keys, mask=block.nulls))
            writer.write(pa.Table.from_arrays(columns, schema=arrow_schema))
    return path


def _keys(keys: U64, nulls: Bools, key_type: str, texts: Mapping[int, str] | None) -> pa.Array:
    if key_type == "string":
        assert texts is not None
        return pa.array(
            [None if null else texts[key] for key, null in zip(keys.tolist(), nulls.tolist(), strict=True)], pa.string()
        )
    values = {"int64": keys.view(np.int64), "uint64": keys, "bool": keys.astype(np.bool_)}[key_type]
    return pa.array(values, mask=nulls)


def _values(block: RowBlock, table: Table) -> list[pa.Array]:
    columns = []
    if table.dim:
        offsets = np.arange(block.keys.size + 1, dtype=np.int32) * table.dim
        flat = np.ascontiguousarray(block.vectors).reshape(-1)
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat)))
    if block.linear is not None:
        columns.append(pa.array(np.ascontiguousarray(block.linear)))
    if table.unseen == "rare":
        columns.append(pa.array(block.nulls & (block.keys == RARE_KEY)))
    return columns

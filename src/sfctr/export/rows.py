"""Rows for others: one Parquet file a table, with the keys as the data had them.

key     int64, uint64, bool or string as the column was; null for the row of a missing value. Strings whose text was
        not kept are their 64-bit hash (uint64); keys of a table with buckets are bucket numbers (int64).
hash    uint64, where keys are text: what the text is hashed to
vector  list of float32, where the table has vectors
linear  float32, where the table has first-order weights
rare    bool, for tables with unseen = "rare": True for the row that keys without one read as (its key is null)

The bytes of a file follow from its rows alone, whatever blocks they came in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from sfctr.data.parquet_writer import WholeParquet
from sfctr.spec.batch import U64, Bools
from sfctr.spec.errors import ConfigError
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.schema import Schema, key_type_of_table
from sfctr.spec.tables import Table
from sfctr.spec.together import Together
from sfctr.store import RARE_KEY, RowBlock, Store
from sfctr.telemetry import notice

from .files import rows_file
from .gathered import Gathered

_TYPES = {"int64": pa.int64(), "uint64": pa.uint64(), "bool": pa.bool_(), "string": pa.string()}


def export_rows(
    store: Store,
    schema: Schema,
    out: Path,
    *,
    strings: Mapping[str, Mapping[int, str]] | None = None,
    peers: Peers = ALONE,
) -> list[Path]:
    """Write `<table>.parquet` for every table into the directory `out` (made if needed); returns the paths.

    strings: table -> key -> text of hashed keys; of all ranks, on rank 0. Each file is complete or absent. peers: all
    ranks, who hold the rows between them: rank 0 writes them. Raises ConfigError where `out` is a file or cannot be
    written into, CapacityError where the disk is full.
    """
    with Together(peers, "export") as together:
        if together.is_first and out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file and a directory is needed to export into")
        return _write_tables(store, key_type_of_table(schema), out, strings or {}, Gathered(peers, together))


def _write_tables(
    store: Store,
    types: Mapping[str, str],
    out: Path,
    strings: Mapping[str, Mapping[int, str]],
    gathered: Gathered,
) -> list[Path]:
    paths = []
    for name, table in store.tables.items():
        paths.append(out / rows_file(name))
        rows = gathered.rows(table, store.rows(name))
        if not gathered.is_first:
            deque(rows, maxlen=0)  # sends them
            continue
        if types[name] == "string" and table.buckets is None and name not in strings:
            notice(f"table '{name}': keys are exported as 64-bit hashes; keep_strings = true keeps their text")
        columns = Columns(table, types[name], strings.get(name))
        write_rows(paths[-1], table, columns.schema, map(columns.of, rows))
    return paths


class Columns:
    """How the rows of a table look to others: `schema`, and blocks of rows in it.

    key_type: of the data's column. texts: key -> text of hashed keys, where it was kept.
    """

    def __init__(self, table: Table, key_type: str, texts: Mapping[int, str] | None) -> None:
        if table.buckets is not None or table.dense:
            key_type = "int64"
        elif key_type == "string" and texts is None:
            key_type = "uint64"
        self._table, self._key_type, self._texts = table, key_type, texts
        fields = [pa.field("key", _TYPES[key_type])]
        if key_type == "string":
            fields.append(pa.field("hash", pa.uint64()))
        if table.dim:
            fields.append(pa.field("vector", pa.list_(pa.float32())))
        if table.linear is not None:
            fields.append(pa.field("linear", pa.float32()))
        if table.unseen == "rare":
            fields.append(pa.field("rare", pa.bool_()))
        self.schema = pa.schema(fields)

    def of(self, block: RowBlock) -> pa.Table:
        columns = {**self.keys(block.keys, block.nulls), **_values(block, self._table)}
        return pa.Table.from_pydict(columns, schema=self.schema)

    def keys(self, keys: U64, nulls: Bools) -> dict[str, pa.Array]:
        """The columns that say whose rows they are."""
        if self._key_type != "string":
            values = {"int64": keys.view(np.int64), "uint64": keys, "bool": keys.astype(np.bool_)}[self._key_type]
            return {"key": pa.array(values, mask=nulls)}
        assert self._texts is not None
        texts = [None if n else self._texts[key] for key, n in zip(keys.tolist(), nulls.tolist(), strict=True)]
        return {"key": pa.array(texts, pa.string()), "hash": pa.array(keys, mask=nulls)}


def _values(block: RowBlock, table: Table) -> dict[str, pa.Array]:
    columns = {}
    if table.dim:
        offsets = np.arange(block.keys.size + 1, dtype=np.int32) * table.dim
        flat = np.ascontiguousarray(block.vectors).reshape(-1)
        columns["vector"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))
    if block.linear is not None:
        columns["linear"] = pa.array(np.ascontiguousarray(block.linear))
    if table.unseen == "rare":
        columns["rare"] = pa.array(block.nulls & (block.keys == RARE_KEY))
    return columns


def write_rows(path: Path, table: Table, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """A file of such rows, complete or absent. Raises as export_rows."""
    with WholeParquet(path, schema) as writer:
        for rows in _regrouped(parts, max(64, min(65536, (8 << 20) // (4 * table.dim + 16)))):
            writer.write(rows)


def _regrouped(parts: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows, `size` at a time and each column in one piece: row groups and pages are then always the same."""
    held: list[pa.Table] = []
    for part in parts:
        held.append(part)
        while sum(rows.num_rows for rows in held) >= size:
            rows = pa.concat_tables(held)
            yield rows.slice(0, size).combine_chunks()
            held = [rows.slice(size)]
    rest = pa.concat_tables(held) if held else None
    if rest is not None and rest.num_rows:
        yield rest.combine_chunks()

"""A base and its deltas, put together: the full export of the last one's step, with the same rows in the same order.

One table at a time is in memory, with what the deltas say of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.data.whole_directory import beside, put_in_place, sync_all
from sfctr.spec.batch import I64
from sfctr.spec.errors import CheckpointError, ConfigError, writing
from sfctr.spec.schema import Schema, key_type_of_table
from sfctr.spec.struct_tree import build
from sfctr.spec.tables import Table

from .chain import Chain, Delta, read_delta
from .files import FACTS_FILE, MODEL_FILE, facts_of, read_facts, rows_file, write_facts
from .keys import hashes, keys_of
from .rows import Columns, write_rows


def apply_deltas(base: Path, deltas: Sequence[Path], out: Path) -> list[Path]:
    """Write what `base` is after `deltas` into the directory `out`, complete or absent; returns the paths.

    base: RUN/deltas/base, or what this wrote before. A delta that it has already changes nothing. out: a new directory,
    or an export that is replaced, `base` too.
    Raises CheckpointError, naming it, for a delta that is damaged, of another base, or does not follow the one before;
    ConfigError and CapacityError where `out` cannot be written.
    """
    facts = read_facts(base)
    chain = _chain_of(base, facts)
    to_apply: list[Path] = []
    for path in deltas:
        delta = read_delta(path)
        if delta.id not in chain.ids:
            _check_follows(path, delta, base, chain)
            chain = chain.followed_by(delta)
            to_apply.append(path)
    if out.exists() and not (out.is_dir() and ((out / FACTS_FILE).exists() or not any(out.iterdir()))):
        raise ConfigError(f"{out} is there already and is no export; give a directory that is new")
    with writing(out):
        written = beside(out)
    try:
        paths = _write(written, [base, *to_apply], facts, chain)
        with writing(out):
            sync_all(written)
            put_in_place(written, out)
    except BaseException:
        shutil.rmtree(written, ignore_errors=True)
        raise
    return [out / path.name for path in paths]


def _chain_of(base: Path, facts: dict[str, Any]) -> Chain:
    if "chain" not in facts:
        raise CheckpointError(
            f"{base}: no delta follows this export; give RUN/deltas/base, which a run with export.delta_every writes,"
            " or what 'sfctr apply' wrote"
        )
    return msgspec.convert(facts["chain"], Chain)


def _check_follows(path: Path, delta: Delta, base: Path, chain: Chain) -> None:
    if delta.base != chain.ids[0]:
        raise CheckpointError(
            f"{path} follows base {delta.base} and {base} is of base {chain.ids[0]}; give the base that lies beside the"
            " delta"
        )
    if delta.number > chain.number + 1:
        missing = ", ".join(f"{number:06}" for number in range(chain.number + 1, delta.number))
        raise CheckpointError(
            f"{path} is delta {delta.number:06} and what it is to be applied to is at {chain.number:06}; give {missing}"
            " before it"
        )
    if delta.number <= chain.number or delta.after != chain.ids[-1]:
        raise CheckpointError(
            f"{path} is delta {delta.number:06} of another course of the run than the deltas applied until now: it was"
            " stopped and went another way from an earlier step; begin with the base again"
        )


def _write(folder: Path, sources: Sequence[Path], facts: dict[str, Any], chain: Chain) -> list[Path]:
    types = key_type_of_table(build(facts["schema"], Schema, "schema"))
    paths = []
    for plain in facts["tables"]:
        table: Table = build(plain, Table, "tables")
        name = rows_file(table.name)
        parts = [pq.read_table(source / name) for source in sources]
        texts: dict[int, str] | None = {} if "hash" in parts[0].schema.names else None
        schema = Columns(table, types[table.name], texts).schema
        paths.append(folder / name)
        write_rows(paths[-1], table, schema, _dense(parts[-1], schema) if table.dense else _merged(parts, schema))
    paths.append(folder / MODEL_FILE)
    with writing(folder):
        shutil.copyfile(sources[-1] / MODEL_FILE, paths[-1])
    files = msgspec.to_builtins(facts_of(paths))
    return [*paths, write_facts(folder, {**facts, "files": files, "chain": msgspec.to_builtins(chain)})]


def _dense(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """A delta has all rows of a dense table."""
    yield rows.select(schema.names).cast(schema)


def _merged(parts: Sequence[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows of the base and of its deltas, oldest first: of each key the newest, unless it was removed."""
    rows = pa.concat_tables([part.select(schema.names) for part in parts])
    removed = np.concatenate([_marks(part, "removed") for part in parts])
    order = _newest(rows)
    order = order[~removed[order]]
    for begin in range(0, order.size, 1 << 16):
        yield rows.take(pa.array(order[begin : begin + (1 << 16)])).cast(schema)


def _newest(rows: pa.Table) -> I64:
    """Where the last row of each key is, in the order that rows have in a store: keys, then the rows beside them."""
    nulls, rare = _marks(rows, "key", is_null=True), _marks(rows, "rare")
    hashed = hashes(np.where(nulls, rare.astype(np.uint64), keys_of(rows)))
    order = np.lexsort((hashed, nulls))  # which leaves rows of one key as they came
    is_last = np.ones(order.size, np.bool_)
    is_last[:-1] = (hashed[order[1:]] != hashed[order[:-1]]) | (nulls[order[1:]] != nulls[order[:-1]])
    return order[is_last]


def _marks(rows: pa.Table, name: str, *, is_null: bool = False) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if name not in rows.schema.names:
        return np.zeros(rows.num_rows, np.bool_)
    marks: np.ndarray[Any, np.dtype[np.bool_]] = (rows[name].is_null() if is_null else rows[name]).to_numpy()
    return marks

"""A saved model: everything that evaluation, scoring and export need, in one directory.

  run.toml            the resolved run file
  dense.safetensors   the model's state and the dense tables
  rows/NNN.parquet    one file for each table that is not dense and has rows: key, null, vector, linear, state; and
                      last, the step that trained the row last, for tables with options of membership. The row of a
                      missing value is a null with key 0, that of rare keys a null with key 1.
  waiting/NNN.parquet for tables with such options: keys without a row that steps have reached: key, count, last
  clock.parquet       where rows expire by event time: step, time (ns since 1970) at which the greatest time rose
  strings/NNN.parquet the text of hashed keys, for tables that keep it
  manifest.json       format version, facts of the run, counters of membership, sizes and CRC-32 of the files above;
                      written last

It is complete or absent: written beside, synced and renamed. Where an older one is replaced it stays under the name
"<name>.old" until the new one is in place, and is used if the change was cut short between the two renames.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sfctr.spec.batch import F32
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.spec.tables import Table
from sfctr.store import NO_CLOCK, EventClock, RowBlock, Store, Waiting

FORMAT_VERSION = 2
READABLE = (1, 2)
"""Version 1 has nothing of membership, and no table in it had such options."""


def save_model(
    directory: Path,
    *,
    run: RunFile,
    store: Store,
    model: nn.Module,
    facts: Mapping[str, Any],
    strings: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Write a saved model to `directory`, replacing one that is there.

    facts: plain data kept in the manifest (step, metrics, ...). strings: table -> key -> text of its hashed keys.
    Raises CheckpointError where the disk refuses.
    """
    beside = directory.with_name(directory.name + ".new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _write(beside, run, store, model, strings or {})
        _write_manifest(beside, facts, store)
        _swap(beside, directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{directory}: the model could not be saved ({why}); what was saved before is intact,"
            " free space there or choose another run directory"
        ) from error


def _write(
    directory: Path, run: RunFile, store: Store, model: nn.Module, strings: Mapping[str, Mapping[int, str]]
) -> None:
    (directory / "run.toml").write_text(render_run_file(run), encoding="utf-8")
    state = {f"model.{name}": value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    state |= {f"table.{n}": v.detach().cpu().contiguous() for n, v in store.dense_state().items()}
    save_file(_without_aliases(state), directory / "dense.safetensors")
    (directory / "rows").mkdir()
    for number, table in enumerate(_stored(store)):
        _write_rows(directory / "rows" / f"{number:03}.parquet", table, store)
    _write_membership(directory, store)
    if strings:
        (directory / "strings").mkdir()
    for number, table in enumerate(_stored(store)):
        if table.name in strings:
            _write_strings(directory / "strings" / f"{number:03}.parquet", strings[table.name])


def _without_aliases(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share memory, as tied weights do; each gets its own copy."""
    seen: set[int] = set()
    for name, value in state.items():
        if value.data_ptr() in seen:
            state[name] = value.clone()
        seen.add(value.data_ptr())
    return state


def _stored(store: Store) -> list[Table]:
    return [table for table in store.tables.values() if not table.dense]


def _write_rows(path: Path, table: Table, store: Store) -> None:
    """Columns without numbers (the vector of dim 0, the state of plain SGD) are left out: Parquet has no empty lists
    of fixed size."""
    writer: pq.ParquetWriter | None = None
    try:
        for block in store.rows(table.name):
            columns = pa.table(_columns(block))
            if writer is None:
                writer = pq.ParquetWriter(
                    path, columns.schema, compression="none", use_dictionary=False, write_statistics=False
                )
            writer.write_table(columns)
    finally:
        if writer is not None:
            writer.close()


def _columns(block: RowBlock) -> dict[str, pa.Array]:
    columns = {"key": pa.array(block.keys), "null": pa.array(block.nulls)}
    if block.last is not None:
        columns["last"] = pa.array(block.last)
    if block.linear is not None:
        columns["linear"] = pa.array(np.ascontiguousarray(block.linear))
    for name, values in (("vector", block.vectors), ("state", block.state)):
        if values.shape[1]:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return columns


def _write_membership(directory: Path, store: Store) -> None:
    numbered = [(n, table.name) for n, table in enumerate(_stored(store)) if table.has_membership]
    if numbered:
        (directory / "waiting").mkdir()
    for number, name in numbered:
        waiting = store.waiting(name)
        columns = {"key": waiting.keys, "count": waiting.counts, "last": waiting.last}
        pq.write_table(pa.table(columns), directory / "waiting" / f"{number:03}.parquet")
    clock = store.clock()
    if clock.steps.size:
        pq.write_table(pa.table({"step": clock.steps, "time": clock.times}), directory / "clock.parquet")


def _write_strings(path: Path, strings: Mapping[int, str]) -> None:
    keys = pa.array(np.fromiter(strings.keys(), dtype=np.uint64, count=len(strings)))
    pq.write_table(pa.table({"key": keys, "text": pa.array(strings.values(), type=pa.string())}), path)


def _write_manifest(directory: Path, facts: Mapping[str, Any], store: Store) -> None:
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "crc32": _crc32(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = {"format": "sfctr.model", "version": FORMAT_VERSION, "steps": store.steps, "facts": dict(facts)}
    manifest["membership"] = store.membership()
    manifest["files"] = files
    path = directory / "manifest.json"
    path.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")
    for each in (*(directory / name for name in files), path):
        _sync(each)
    for each in (*(p for p in directory.rglob("*") if p.is_dir()), directory):
        _sync(each)


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return value


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(beside: Path, directory: Path) -> None:
    old = directory.with_name(directory.name + ".old")
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    beside.rename(directory)
    _sync(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A saved model whose files are there and sound."""

    directory: Path
    run: RunFile
    facts: Mapping[str, Any]
    steps: int
    membership: Mapping[str, Mapping[str, int]]

    def load_rows(self, store: Store) -> None:
        """Put every stored row, with its state, the count of steps, and who waits for a row into a store of the same
        tables."""
        store.restore_clock(self.steps, self._clock())
        for number, table in enumerate(_stored(store)):
            for block in self._blocks(self.directory / "rows" / f"{number:03}.parquet"):
                store.load_rows(table.name, block)
            if table.has_membership:
                store.restore_membership(table.name, self.membership.get(table.name, {}), self._waiting(number))
        tables = {k[len("table.") :]: v for k, v in self._dense().items() if k.startswith("table.")}
        store.load_dense_state(tables)

    def load_model(self, model: nn.Module) -> None:
        """Load the dense part. Raises CheckpointError where the module's parameters differ from what was saved."""
        state = {k[len("model.") :]: v for k, v in self._dense().items() if k.startswith("model.")}
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            words = " ".join(str(error).split())
            raise CheckpointError(
                f"{self.directory}: the saved model does not fit {type(model).__name__}: {words}"
            ) from None

    def strings(self) -> dict[str, dict[int, str]]:
        """Table -> key -> text of hashed keys, for tables that keep it."""
        found: dict[str, dict[int, str]] = {}
        for number, table in enumerate(t for t in self.run.tables if not t.dense):
            path = self.directory / "strings" / f"{number:03}.parquet"
            if path.exists():
                columns = pq.read_table(path)
                found[table.name] = dict(zip(columns["key"].to_pylist(), columns["text"].to_pylist(), strict=True))
        return found

    def _clock(self) -> EventClock:
        path = self.directory / "clock.parquet"
        if not path.exists():
            return NO_CLOCK
        columns = pq.read_table(path)
        return EventClock(steps=columns["step"].to_numpy(), times=columns["time"].to_numpy())

    def _waiting(self, number: int) -> Waiting:
        columns = pq.read_table(self.directory / "waiting" / f"{number:03}.parquet")
        return Waiting(
            keys=columns["key"].to_numpy(), counts=columns["count"].to_numpy(), last=columns["last"].to_numpy()
        )

    def _dense(self) -> dict[str, torch.Tensor]:
        return load_file(self.directory / "dense.safetensors")

    def _blocks(self, path: Path) -> Iterator[RowBlock]:
        if not path.exists():  # a table that has no rows yet
            return
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):  # iter_batches would keep all that it has read
                [batch] = file.read_row_group(number).combine_chunks().to_batches()
                yield RowBlock(
                    keys=batch["key"].to_numpy(),
                    nulls=batch["null"].to_numpy(zero_copy_only=False),
                    vectors=_lists(batch, "vector"),
                    linear=batch["linear"].to_numpy() if "linear" in batch.schema.names else None,
                    state=_lists(batch, "state"),
                    last=batch["last"].to_numpy() if "last" in batch.schema.names else None,
                )


def _lists(batch: pa.RecordBatch, name: str) -> F32:
    if name not in batch.schema.names:
        return np.empty((batch.num_rows, 0), dtype=np.float32)
    values: F32 = batch[name].flatten().to_numpy().reshape(batch.num_rows, -1)
    return values


def open_model(directory: Path) -> SavedModel:
    """The saved model in `directory`, its files checked. Raises CheckpointError where it is missing or damaged."""
    if not directory.exists():
        old = directory.with_name(directory.name + ".old")
        if not old.exists():
            raise CheckpointError(f"{directory}: there is no saved model; give the directory of a run that was trained")
        directory = old
    manifest = _read(directory / "manifest.json", json.loads)
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{directory / 'manifest.json'}: the saved model is damaged (no JSON object)")
    if manifest.get("format") != "sfctr.model" or manifest.get("version") not in READABLE:
        raise CheckpointError(
            f"{directory}: format {manifest.get('format')!r} version {manifest.get('version')!r} was found and"
            f" 'sfctr.model' version {' or '.join(map(str, READABLE))} is needed; use the release that wrote it"
        )
    for name, what in manifest["files"].items():
        _check_file(directory / name, what["bytes"], what["crc32"])
    run = _read(directory / "run.toml", lambda text: decode_run_file(text, str(directory / "run.toml")))
    return SavedModel(
        directory=directory,
        run=run,
        facts=manifest["facts"],
        steps=manifest["steps"],
        membership=manifest.get("membership", {}),
    )


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: the saved model is damaged ({error})") from error


def _check_file(path: Path, size: int, crc32: int) -> None:
    found = path.stat().st_size if path.exists() else None
    if found != size or _crc32(path) != crc32:
        what = "is missing" if found is None else f"has {found} bytes" if found != size else "has other bytes"
        raise CheckpointError(
            f"{path} {what} and the manifest says {size} bytes with CRC-32 {crc32}; the model is damaged"
        )

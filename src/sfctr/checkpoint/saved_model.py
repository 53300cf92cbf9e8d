"""A saved model: everything that evaluation, scoring and export need, in one directory.

  run.toml            the resolved run file
  dense.safetensors   the model's state and the dense tables
  rows/NNN.parquet    one file for each table that is not dense and has rows: key, null, vector, linear, state; and
                      last, the step that trained the row last, for tables with options of membership. The row of a
                      missing value is a null with key 0, that of rare keys a null with key 1.
  waiting/, clock.parquet, strings/   see parts.py
  manifest.json       format version, facts of the run, counters of membership, sizes and CRC-32 of the files above;
                      written last

It is complete or absent: written beside, synced and renamed. Where an older one is replaced it stays under the name
"<name>.old" until the new one is in place, and is used if the change was cut short between the two renames.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sfctr.data.whole_directory import beside, crc32_of, put_in_place, sync_all
from sfctr.spec.batch import F32
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.spec.tables import Table
from sfctr.store import RowBlock, Store

from .dense import copies, load_buffers, model_tensors
from .disk import FileFacts
from .manifest import check_files, read_text
from .parts import membership_parts, read_clock, read_strings, read_waiting, stored, string_parts

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
    written = directory.with_name(f"{directory.name}.new")
    try:
        written = beside(directory)
        _write(written, run, store, model, strings or {})
        _write_manifest(written, facts, store)
        put_in_place(written, directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(written, ignore_errors=True)
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{directory}: the model could not be saved ({why}); what was saved before is intact,"
            " free space there or choose another run directory"
        ) from error


def _write(
    directory: Path, run: RunFile, store: Store, model: nn.Module, strings: Mapping[str, Mapping[int, str]]
) -> None:
    (directory / "run.toml").write_text(render_run_file(run), encoding="utf-8")
    save_file(copies(model_tensors(model, store)), directory / "dense.safetensors")
    (directory / "rows").mkdir()
    tables = list(store.tables.values())
    for number, table in enumerate(stored(tables)):
        _write_rows(directory / "rows" / f"{number:03}.parquet", table, store)
    for name, columns in chain(membership_parts(store), string_parts(tables, strings)):
        (directory / name).parent.mkdir(exist_ok=True)
        pq.write_table(columns, directory / name)


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


def _write_manifest(directory: Path, facts: Mapping[str, Any], store: Store) -> None:
    files = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "crc32": crc32_of(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = {"format": "sfctr.model", "version": FORMAT_VERSION, "steps": store.steps, "facts": dict(facts)}
    manifest["membership"] = store.membership()
    manifest["files"] = files
    path = directory / "manifest.json"
    path.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    sync_all(directory)


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
        store.restore_clock(self.steps, read_clock(self.directory))
        for number, table in enumerate(stored(list(store.tables.values()))):
            path = self.directory / "rows" / f"{number:03}.parquet"
            if path.exists():
                store.reserve(table.name, pq.read_metadata(path).num_rows)
            for block in self._blocks(path):
                store.load_rows(table.name, block)
            if table.has_membership:
                store.restore_membership(
                    table.name, self.membership.get(table.name, {}), read_waiting(self.directory, number)
                )
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
        load_buffers(model, {k[len("buffer.") :]: v for k, v in self._dense().items() if k.startswith("buffer.")})

    def strings(self) -> dict[str, dict[int, str]]:
        """Table -> key -> text of hashed keys, for tables that keep it."""
        return read_strings(self.directory, self.run.tables)

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
    manifest = read_text(directory / "manifest.json", json.loads)
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{directory / 'manifest.json'}: the saved model is damaged (no JSON object)")
    if manifest.get("format") != "sfctr.model" or manifest.get("version") not in READABLE:
        raise CheckpointError(
            f"{directory}: format {manifest.get('format')!r} version {manifest.get('version')!r} was found and"
            f" 'sfctr.model' version {' or '.join(map(str, READABLE))} is needed; use the release that wrote it"
        )
    check_files(directory, {name: FileFacts(**what) for name, what in manifest["files"].items()})
    run = read_text(directory / "run.toml", lambda text: decode_run_file(text, str(directory / "run.toml")))
    return SavedModel(
        directory=directory,
        run=run,
        facts=manifest["facts"],
        steps=manifest["steps"],
        membership=manifest.get("membership", {}),
    )

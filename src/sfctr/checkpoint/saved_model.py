"""A saved model: everything that evaluation, scoring and export need, in one directory.

  run.toml            the resolved run file
  dense.safetensors   the model's state and the dense tables
  rows/NNN.parquet    one file for each table that is not dense and has rows: key, null, vector, linear, state; and
                      last, the step that trained the row last, for tables with options of membership. The row of a
                      missing value is a null with key 0, that of rare keys a null with key 1.
  waiting/, clock.parquet, strings/   see parts.py
  *.rank-001.parquet  of rows, waiting keys and texts, those of another rank than 0, where several saved it (names.py)
  manifest.json       format version, facts of the run, counters of membership, sizes and CRC-32 of the files above;
                      written last

It is complete or absent: written beside, synced and renamed. Where an older one is replaced it stays under the name
"<name>.old" until the new one is in place, and is used if the change was cut short between the two renames.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

from sfctr.data.whole_directory import beside, crc32_of, put_in_place, sync
from sfctr.spec.batch import F32, Bools
from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.errors import CheckpointError
from sfctr.spec.owned import Owns
from sfctr.spec.peers import ALONE, Peers
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.spec.tables import Table
from sfctr.spec.together import Together
from sfctr.store import RowBlock, Store

from .dense import copies, load_buffers, model_tensors
from .disk import FileFacts
from .manifest import check_files, read_text
from .names import is_part, part_name, part_names
from .own import own_membership, share_of
from .parts import (
    clock_parts,
    read_clock,
    read_strings,
    read_waiting,
    stored,
    string_parts,
    summed,
    waiting_parts,
)

READABLE = (1, 2, 3)
"""Version 1 has nothing of membership, and no table in it had such options. Version 3 has files of several ranks; what
one rank saves is version 2."""


def save_model(
    directory: Path,
    *,
    run: RunFile,
    store: Store,
    model: nn.Module,
    facts: Mapping[str, Any],
    strings: Mapping[str, Mapping[int, str]] | None = None,
    peers: Peers = ALONE,
    parts: DenseParts | None = None,
) -> None:
    """Write a saved model to `directory`, replacing one that is there.

    facts: plain data kept in the manifest (step, metrics, ...). strings: table -> key -> text of its hashed keys.
    peers: all ranks, who save it together: each its own rows and texts, rank 0 the rest. parts: what each has of the
    dense part, where that is not all of it.
    Raises CheckpointError where the disk refuses.
    """
    written = directory.with_name(f"{directory.name}.new")
    try:
        with Together(peers, "checkpoint") as together, _named(directory):
            if together.is_first:
                (beside(directory) / "rows").mkdir()
            together.say()
            if not (written / "rows").is_dir():
                raise CheckpointError(
                    f"rank {peers.rank} does not see {written}, which rank 0 has made: the directory of a run"
                    " must be on a file system that all processes share"
                )
            files = _write_part(written, store, strings or {}, peers.rank)
            tensors = copies(model_tensors(model, store, parts))
            said = together.say(json.dumps([files, store.membership()]).encode())
            if together.is_first:
                files = _write_rest(written, run, store, tensors)
                _write_manifest(written, facts, store.steps, [json.loads(part) for part in said], files)
                put_in_place(written, directory)
    except BaseException:
        if peers.rank == 0:
            shutil.rmtree(written, ignore_errors=True)
        raise


@contextmanager
def _named(directory: Path) -> Iterator[None]:
    """What the disk refuses, as an error of the user's."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{directory}: the model could not be saved ({why}); what was saved before is intact,"
            " free space there or choose another run directory"
        ) from error


Files = dict[str, dict[str, int]]
"""Name -> "bytes" and "crc32"."""


def _write_part(directory: Path, store: Store, strings: Mapping[str, Mapping[int, str]], rank: int) -> Files:
    tables = list(store.tables.values())
    names = []
    for number, table in enumerate(stored(tables)):
        names.append(part_name(f"rows/{number:03}.parquet", rank))
        _write_rows(directory / names[-1], table, store)
    for name, columns in chain(waiting_parts(store), string_parts(tables, strings)):
        names.append(part_name(name, rank))
        (directory / name).parent.mkdir(exist_ok=True)
        pq.write_table(columns, directory / names[-1])
    return _synced(directory, [name for name in names if (directory / name).exists()])


def _write_rest(directory: Path, run: RunFile, store: Store, tensors: dict[str, torch.Tensor]) -> Files:
    (directory / "run.toml").write_text(render_run_file(run), encoding="utf-8")
    save_file(tensors, directory / "dense.safetensors")
    names = ["run.toml", "dense.safetensors"]
    for name, columns in clock_parts(store):
        names.append(name)
        pq.write_table(columns, directory / name)
    return _synced(directory, names)


def _synced(directory: Path, names: Sequence[str]) -> Files:
    for name in names:
        sync(directory / name)
    return {name: {"bytes": (directory / name).stat().st_size, "crc32": crc32_of(directory / name)} for name in names}


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


def _write_manifest(directory: Path, facts: Mapping[str, Any], steps: int, parts: Sequence[Any], files: Files) -> None:
    """parts: of each rank its files, and what its tables counted."""
    files = dict(sorted({**files, **{name: what for part, _ in parts for name, what in part.items()}}.items()))
    version = 3 if any(map(is_part, files)) else 2
    manifest = {"format": "sfctr.model", "version": version, "steps": steps, "facts": dict(facts)}
    manifest["membership"] = {table: summed(part[table] for _, part in parts) for table in parts[0][1]}
    manifest["files"] = files
    path = directory / "manifest.json"
    path.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    sync(path)
    for folder in (*(each for each in directory.iterdir() if each.is_dir()), directory):
        sync(folder)


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A saved model whose files are there and sound. files: their names."""

    directory: Path
    run: RunFile
    facts: Mapping[str, Any]
    steps: int
    membership: Mapping[str, Mapping[str, int]]
    files: frozenset[str]

    def load_rows(self, store: Store, owns: Owns | None = None) -> None:
        """Put every stored row, with its state, the count of steps, and who waits for a row into a store of the same
        tables; with `owns` the rows and keys that are this rank's own."""
        store.restore_clock(self.steps, read_clock(self.directory))
        for number, table in enumerate(stored(list(store.tables.values()))):
            names = part_names(self.files, f"rows/{number:03}.parquet")
            paths = [self.directory / name for name in names if name in self.files]  # none: it has no rows yet
            if paths:
                num_rows = sum(pq.read_metadata(path).num_rows for path in paths)
                store.reserve(table.name, share_of(num_rows, table.name, owns))
            for block in chain.from_iterable(self._blocks(path, table.name, owns) for path in paths):
                store.load_rows(table.name, block)
            if table.has_membership:
                counters = self.membership.get(table.name, {})
                waiting = read_waiting(self.directory, self.files, number)
                store.restore_membership(table.name, *own_membership(table.name, counters, waiting, owns))
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
        return read_strings(self.directory, self.files, self.run.tables)

    def _dense(self) -> dict[str, torch.Tensor]:
        return load_file(self.directory / "dense.safetensors")

    def _blocks(self, path: Path, table: str, owns: Owns | None) -> Iterator[RowBlock]:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):  # iter_batches would keep all that it has read
                is_own = None if owns is None else _own_rows(file, number, table, owns)
                if is_own is not None and not is_own.any():
                    continue
                rows = file.read_row_group(number)
                [batch] = (rows if is_own is None else rows.filter(pa.array(is_own))).combine_chunks().to_batches()
                yield RowBlock(
                    keys=batch["key"].to_numpy(),
                    nulls=batch["null"].to_numpy(zero_copy_only=False),
                    vectors=_lists(batch, "vector"),
                    linear=batch["linear"].to_numpy() if "linear" in batch.schema.names else None,
                    state=_lists(batch, "state"),
                    last=batch["last"].to_numpy() if "last" in batch.schema.names else None,
                )


def _own_rows(file: pq.ParquetFile, number: int, table: str, owns: Owns) -> Bools:
    """Of a row group, by its keys alone."""
    columns = file.read_row_group(number, columns=["key", "null"])
    keys, nulls = columns["key"].to_numpy(), columns["null"].to_numpy()
    return np.where(nulls, owns(table, keys, is_null=True), owns(table, keys))


def _lists(batch: pa.RecordBatch, name: str) -> F32:
    if name not in batch.schema.names:
        return np.empty((batch.num_rows, 0), dtype=np.float32)
    values: F32 = batch[name].flatten().to_numpy().reshape(batch.num_rows, -1)
    return values


def open_model(directory: Path, peers: Peers = ALONE) -> SavedModel:
    """The saved model in `directory`, its files checked; by rank 0, where several open it together. Raises
    CheckpointError where it is missing or damaged."""
    with Together(peers, "checkpoint") as together:
        return _opened(directory, checks_files=together.is_first)


def _opened(directory: Path, *, checks_files: bool) -> SavedModel:
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
    if checks_files:
        check_files(directory, {name: FileFacts(**what) for name, what in manifest["files"].items()})
    run = read_text(directory / "run.toml", lambda text: decode_run_file(text, str(directory / "run.toml")))
    return SavedModel(
        directory=directory,
        run=run,
        facts=manifest["facts"],
        steps=manifest["steps"],
        membership=manifest.get("membership", {}),
        files=frozenset(manifest["files"]),
    )

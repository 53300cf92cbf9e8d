"""The files of one checkpoint, written into an empty directory; docs/format/checkpoint.md says what they are.

Rows come first: while they are taken an update may have to wait, and all else is in memory already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save

from sfctr.spec.batch import U64
from sfctr.spec.runfile_text import render_run_file
from sfctr.spec.snapshot import RowsOfGroup

from .capture import Captured
from .disk import Disk, FileFacts, OutFile, link_or_copy, write_file
from .manifest import NAME, Manifest, manifest_bytes, rows_name
from .parts import string_parts
from .rows_file import Header, Rows, RowsWriter, rows_of_block

Removed = Sequence[Sequence[tuple[int, U64]]]
"""Of each group: spaces, and keys in them that lost their rows."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The checkpoint that another one adds changes to."""

    path: Path
    manifest: Manifest

    def is_there(self) -> bool:
        return all((self.path / name).exists() for name in self.rows_files())

    def rows_files(self) -> dict[str, FileFacts]:
        return {name: facts for name, facts in self.manifest.files.items() if name.startswith("rows/")}


@dataclass(frozen=True, kw_only=True)
class Written:
    manifest: Manifest
    num_rows: int
    num_bytes: int


def write_checkpoint(
    directory: Path, disk: Disk, captured: Captured, base: Base | None, groups: Sequence[RowsOfGroup], removed: Removed
) -> Written:
    """base: whose rows files come before; None: `groups` give all rows. Every file is synced, and the manifest last."""
    disk.make_directory(directory / "rows")
    linked = {} if base is None else base.rows_files()
    for name, facts in linked.items():
        assert base is not None
        link_or_copy(disk, base.path / name, directory / name, facts)
    files, num_rows = _write_rows(directory, disk, captured, base, groups, removed)
    files |= _write_parquet(directory, disk, captured)
    for name, data in (
        ("run.toml", render_run_file(captured.run).encode()),
        ("dense.safetensors", save(captured.tensors)),
        ("state.json", captured.state_text.encode()),
    ):
        files[name] = write_file(disk, directory / name, data)
    manifest = _manifest(captured, base, linked | files)
    last = write_file(disk, directory / NAME, manifest_bytes(manifest))
    num_bytes = sum(facts.bytes for facts in (*files.values(), last))
    return Written(manifest=manifest, num_rows=num_rows, num_bytes=num_bytes)


def _write_rows(
    directory: Path, disk: Disk, captured: Captured, base: Base | None, groups: Sequence[RowsOfGroup], removed: Removed
) -> tuple[dict[str, FileFacts], int]:
    position = 0 if base is None else len(base.manifest.chain)
    since = None if base is None else base.manifest.step
    num_rows = 0
    with ExitStack() as stack:
        writers: dict[str, RowsWriter] = {}
        turns: deque[tuple[RowsWriter, RowsOfGroup, int]] = deque()
        for number, (layout, group) in enumerate(zip(captured.layouts, groups, strict=True)):
            name = rows_name(number, position)
            file = stack.enter_context(OutFile(disk, directory / name))
            writers[name] = RowsWriter(file, Header(step=captured.step, since=since, layout=layout))
            for space, keys in [] if base is None else removed[number]:
                writers[name].tombstones(space, keys)
            turns.append((writers[name], group, rows_of_block(layout)))
        while turns:
            writer, group, count = turns.popleft()
            taken = group.take_snapshot(count)
            if taken is not None:
                space, keys, last, records = taken
                writer.rows(Rows(space=space, keys=keys, last=last if last.size else None, records=records))
                num_rows += keys.size
                turns.append((writer, group, count))
        return {name: writer.finish() for name, writer in writers.items()}, num_rows


def _write_parquet(directory: Path, disk: Disk, captured: Captured) -> dict[str, FileFacts]:
    files: dict[str, FileFacts] = {}
    for name, columns in chain(captured.beside_rows, string_parts(captured.run.tables, captured.strings())):
        path = directory / name
        if not path.parent.exists():
            disk.make_directory(path.parent)
        buffer = pa.BufferOutputStream()
        pq.write_table(columns, buffer)
        files[name] = write_file(disk, path, memoryview(buffer.getvalue()))
    return files


def _manifest(captured: Captured, base: Base | None, files: dict[str, FileFacts]) -> Manifest:
    return Manifest(
        step=captured.step,
        kind="full" if base is None else "changes",
        chain=(*(() if base is None else base.manifest.chain), captured.step),
        groups=captured.layouts,
        num_rows=captured.num_rows,
        membership=captured.membership,
        best_step=captured.best_step,
        facts=captured.facts,
        files=files,
    )

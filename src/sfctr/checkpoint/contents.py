"""The files of one checkpoint, written into an empty directory; docs/format/checkpoint.md says what they are.

Rank 0 begins it and finishes it, and between these every rank writes its part. Rows come first: while they are taken an
update may have to wait, and all else is in memory already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save

from sfctr.spec.batch import U64
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile_text import render_run_file
from sfctr.spec.snapshot import RowsOfGroup

from .capture import Captured
from .disk import Disk, FileFacts, OutFile, link_or_copy, write_file
from .manifest import NAME, Manifest, manifest_bytes, rows_name, version_of
from .names import part_name
from .parts import string_parts, summed
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


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank wrote. num_rows_written: in its rows files; num_rows and membership: see Manifest."""

    files: dict[str, FileFacts]
    num_rows_written: int
    num_rows: dict[str, int]
    membership: dict[str, dict[str, int]]


def begin_checkpoint(directory: Path, disk: Disk, captured: Captured, base: Base | None) -> None:
    """By rank 0, before any other file is written. base: whose rows files come before; None: there are none."""
    for name in dict.fromkeys(["rows", *(Path(name).parent.name for name, _ in captured.waiting)]):
        disk.make_directory(directory / name)
    for name, facts in {} if base is None else base.rows_files().items():
        assert base is not None
        link_or_copy(disk, base.path / name, directory / name, facts)


def write_part(
    directory: Path,
    disk: Disk,
    captured: Captured,
    base: Base | None,
    groups: Sequence[RowsOfGroup],
    removed: Removed,
    rank: int = 0,
) -> Part:
    """By each rank, what it alone has; every file is synced. base: None: `groups` give all rows."""
    if not directory.is_dir():
        raise CheckpointError(
            f"rank {rank} does not see {directory}, which rank 0 has made: the directory of a run must be on a file"
            " system that all processes share"
        )
    files, num_rows = _write_rows(directory, disk, captured, base, groups, removed, rank)
    for name, columns in chain(captured.waiting, string_parts(captured.run.tables, captured.strings())):
        files |= _write_parquet(directory, disk, part_name(name, rank), columns)
    if rank:
        for folder in sorted({(directory / name).parent for name in files}):
            disk.sync_directory(folder)
    return Part(files=files, num_rows_written=num_rows, num_rows=captured.num_rows, membership=captured.membership)


def finish_checkpoint(
    directory: Path, disk: Disk, captured: Captured, base: Base | None, parts: Sequence[Part]
) -> Manifest:
    """By rank 0, what all ranks have in common, once all parts are on disk; the manifest last."""
    files = {name: facts for part in parts for name, facts in part.files.items()}
    for name, columns in captured.clock:
        files |= _write_parquet(directory, disk, name, columns)
    for name, data in (
        ("run.toml", render_run_file(captured.run).encode()),
        ("dense.safetensors", save(captured.tensors)),
        ("state.json", captured.state_text.encode()),
    ):
        files[name] = write_file(disk, directory / name, data)
    manifest = _manifest(captured, base, files, parts)
    write_file(disk, directory / NAME, manifest_bytes(manifest))
    return manifest


def _write_rows(
    directory: Path,
    disk: Disk,
    captured: Captured,
    base: Base | None,
    groups: Sequence[RowsOfGroup],
    removed: Removed,
    rank: int,
) -> tuple[dict[str, FileFacts], int]:
    position = 0 if base is None else len(base.manifest.chain)
    since = None if base is None else base.manifest.step
    num_rows = 0
    with ExitStack() as stack:
        writers: dict[str, RowsWriter] = {}
        turns: deque[tuple[RowsWriter, RowsOfGroup, int]] = deque()
        for number, (layout, group) in enumerate(zip(captured.layouts, groups, strict=True)):
            name = rows_name(number, position, rank)
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


def _write_parquet(directory: Path, disk: Disk, name: str, columns: pa.Table) -> dict[str, FileFacts]:
    path = directory / name
    if not path.parent.exists():
        with suppress(FileExistsError):  # another rank was faster
            disk.make_directory(path.parent)
    buffer = pa.BufferOutputStream()
    pq.write_table(columns, buffer)
    return {name: write_file(disk, path, memoryview(buffer.getvalue()))}


def _manifest(captured: Captured, base: Base | None, files: dict[str, FileFacts], parts: Sequence[Part]) -> Manifest:
    files = ({} if base is None else base.rows_files()) | files
    return Manifest(
        version=version_of(files),
        step=captured.step,
        kind="full" if base is None else "changes",
        chain=(*(() if base is None else base.manifest.chain), captured.step),
        groups=captured.layouts,
        num_rows=summed(part.num_rows for part in parts),
        membership={table: summed(part.membership[table] for part in parts) for table in captured.membership},
        best_step=captured.best_step,
        facts=captured.facts,
        files=files,
    )

"""A bounded sample of an input: some rows from several files, and from several places of a file where that is cheap."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.errors import DataError
from sfctr.spec.runfile import Data

from .chunk import Chunk
from .column import Column, decoded
from .files import File, find_files
from .parquet import ParquetReader
from .place import Place
from .scans import FileScan
from .text import TextReader

_MOST_FILES = 8
_MOST_PLACES = 32
"""Files looked into, and places of all of them together."""
_STREAMED_GROUP = 2_000_000
"""Row groups of at most so many rows are read through to reach their later rows."""
_LINE_SAMPLE_BYTES = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """Rows of an input.

    total:  rows of the whole input, where that is known or can be estimated.
    whole:  the sample is the whole input.
    spread: the rows come from places all over the input, so that their times are spread as its times are.
    """

    chunks: tuple[Chunk, ...]
    columns: tuple[str, ...]
    total: int | None
    whole: bool
    spread: bool
    name: str

    @property
    def rows(self) -> int:
        return sum(chunk.size for chunk in self.chunks)

    def column(self, name: str) -> Column:
        """The sampled values of one column, in order."""
        parts = [decoded(chunk[name]) for chunk in self.chunks if name in chunk]
        tables = [pa.table({name: part.array}) for part in parts]
        array = pa.concat_tables(tables, promote_options="permissive")[name].combine_chunks()
        first = parts[0]
        return Column(array, Place(first.place.file, column=name), first.untyped, first.markers)


@dataclass(frozen=True)
class _Part:
    """Rows sampled of one file."""

    chunks: tuple[Chunk, ...]
    columns: tuple[str, ...]
    total: int | None
    whole: bool
    spread: bool


def read_sample(paths: Sequence[str | os.PathLike[str]], options: Data, rows: int) -> Sample:
    """About `rows` rows. Raises DataError where there is no file, no column or no row."""
    files = find_files(paths, options)
    chosen = spread(files, _MOST_FILES)
    quota = -(-rows // len(chosen))
    places = _MOST_PLACES // len(chosen)
    parts = [_parquet(f, quota, places) if f.format == "parquet" else _text(f, options, quota, places) for f in chosen]
    name = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    totals = [part.total for part in parts if part.total is not None]
    sample = Sample(
        chunks=tuple(chunk for part in parts for chunk in part.chunks),
        columns=parts[0].columns,
        total=round(sum(totals) * len(files) / len(chosen)) if len(totals) == len(parts) else None,
        whole=len(chosen) == len(files) and all(part.whole for part in parts),
        spread=all(part.whole or part.spread for part in parts),
        name=name,
    )
    if not sample.rows:
        raise DataError("there are no rows", file=name, remedy="check that the file is complete")
    return sample


def spread(entries: Sequence[T], most: int) -> list[T]:
    """At most `most` of the entries: those in the middle of as many equal stretches."""
    if len(entries) <= most:
        return list(entries)
    return [entries[int((i + 0.5) * len(entries) / most)] for i in range(most)]


def _parquet(file: File, quota: int, places: int) -> _Part:
    reader = ParquetReader(file)
    chunks = tuple(_row_groups(file, quota, places))
    total = reader.num_rows
    taken = sum(chunk.size for chunk in chunks)
    return _Part(chunks, reader.columns, total, taken == total, spread=len(chunks) > 1)


def _row_groups(file: File, quota: int, places: int) -> Iterator[Chunk]:
    """Rows from several row groups, or from several places of few row groups."""
    with file.open() as source:
        try:
            opened = pq.ParquetFile(source)
            sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
            groups = [i for i, size in enumerate(sizes) if size]
            if sum(sizes) > 2 * quota:
                groups = spread(groups, places)
            else:
                quota = sum(sizes)
            for group in groups:
                each = max(1, places // len(groups)) if sizes[group] <= _STREAMED_GROUP else 1
                piece = -(-quota // (len(groups) * each))
                wanted = set(spread(range(-(-sizes[group] // piece)), each))
                batches = opened.iter_batches(piece, row_groups=[group])
                for number, batch in zip(range(max(wanted) + 1), batches, strict=False):
                    if number in wanted:
                        before = sum(sizes[:group]) + number * piece
                        yield Chunk(batch.num_rows, _named(batch), Place(file.name, before), 0)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"no whole Parquet file: {reason}", file=file.name, remedy="write or copy it again"
            ) from None


def _named(batch: Any) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _text(file: File, options: Data, quota: int, places: int) -> _Part:
    """The first rows, and rows from places all over a large file that is not compressed."""
    reader = TextReader(file, options)
    total = _estimated_rows(file)
    if total is not None and total <= 2 * quota:
        quota = total
    elif total is not None:
        chunks = _pieces(file, options, quota / total, places)
        if chunks is not None:
            return _Part(chunks, reader.columns, total, whole=False, spread=True)
    taken, whole = _first_rows(reader, quota)
    rows = sum(chunk.size for chunk in taken)
    return _Part(taken, reader.columns, rows if whole else total, whole, spread=False)


def _first_rows(reader: TextReader, quota: int) -> tuple[tuple[Chunk, ...], bool]:
    """Chunks of at least `quota` rows, and whether these are all."""
    chunks: list[Chunk] = []
    with closing(FileScan([reader]).chunks(reader.columns)) as rows:
        for chunk in rows:
            chunks.append(chunk)
            if sum(c.size for c in chunks) >= quota:
                break
        return tuple(chunks), next(rows, None) is None


def _estimated_rows(file: File) -> int | None:
    """By the bytes of a line, for files that are not compressed."""
    if file.is_gzip:
        return None
    with file.open() as source:
        head = source.read(_LINE_SAMPLE_BYTES)
        lines = head.count(b"\n")
        return round(source.size() * lines / len(head)) if lines else None


@dataclass(frozen=True, slots=True)
class _Piece(File):
    """Some lines of a file, under its header."""

    text: bytes = b""

    def open(self) -> Any:
        return pa.BufferReader(self.text)


def _pieces(file: File, options: Data, share: float, places: int) -> tuple[Chunk, ...] | None:
    """Lines that make up this share of the file, from several places; None where its rows are not its lines."""
    chunks: list[Chunk] = []
    with file.open() as opened, io.BufferedReader(opened) as source:
        header = b"" if file.format == "criteo" else source.readline()
        first, size = len(header), opened.size()
        length = int((size - first) * share / places)
        for place in range(places):
            source.seek(first + int((place + 0.5) * (size - first) / places) - length // 2)
            source.readline()  # the rest of the line that the place lies in
            start = source.tell()
            lines = source.read(length).rpartition(b"\n")[0] + b"\n"
            piece = _Piece(f"{file.name} from byte {start}", file.path, file.format, None, header + lines)
            try:
                found, _ = _first_rows(TextReader(piece, options), len(lines))
            except DataError:
                return None
            if sum(chunk.size for chunk in found) != lines.count(b"\n"):
                return None
            chunks += found
    return tuple(chunks)

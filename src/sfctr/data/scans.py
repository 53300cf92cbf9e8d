"""Files as one scan: each file's rows in turn, positions counted over all of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import pyarrow as pa

from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile import Data

from .chunk import Chunk, Scan, Within, check_columns
from .files import File, find_files
from .frames import ArrowScan, PandasScan, PolarsScan
from .iterables import RowsScan, once_batches, once_rows
from .parquet import ParquetReader
from .place import Place
from .text import TextReader


class Reader(Protocol):
    """One file: what it holds, and its rows."""

    file: File
    columns: tuple[str, ...]
    num_rows: int | None
    untyped: bool
    markers: tuple[bytes, ...]

    @property
    def edges(self) -> Sequence[int]:
        """The file's rows before each part of it that can be read alone."""

    def first_row(self, within: Within | None) -> int:
        """Rows of the file before those that `batches` begins with."""

    def batches(
        self, columns: Sequence[str], threads: int, within: Within | None = None
    ) -> Generator[tuple[int, dict[str, Any]], None, None]:
        """Sizes and arrays of runs of rows, in order; within: as of a Scan, but counted in the file."""


class FileScan:
    """The rows of several files, in order. See `Scan`."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    @property
    def columns(self) -> Sequence[str]:
        return self._readers[0].columns

    @property
    def num_rows(self) -> int | None:
        counts = [reader.num_rows for reader in self._readers]
        return sum(c for c in counts if c is not None) if None not in counts else None

    @property
    def name(self) -> str:
        first, more = self._readers[0].file.name, len(self._readers) - 1
        return first if not more else f"{first} and {more} more"

    @property
    def edges(self) -> Sequence[int]:
        starts = [0]
        for reader in self._readers:
            if reader.num_rows is None:
                return ()
            starts.append(starts[-1] + reader.num_rows)
        return [start + at for start, reader in zip(starts, self._readers, strict=False) for at in reader.edges]

    def check(self, columns: Sequence[str]) -> None:
        for reader in self._readers:
            check_columns(columns, reader.columns, reader.file.name)

    def chunks(
        self, columns: Sequence[str], *, threads: int = 1, within: Within | None = None
    ) -> Generator[Chunk, None, None]:
        position = 0
        for reader in self._readers:
            if within is not None and position >= within[1]:
                return
            inside = None if within is None else (within[0] - position, within[1] - position)
            if inside is not None and reader.num_rows is not None and reader.num_rows <= inside[0]:
                position += reader.num_rows
                continue
            first = reader.first_row(inside)
            position += first
            with closing(reader.batches(columns, threads, inside)) as batches:
                for size, arrays in batches:
                    place = Place(reader.file.name, first)
                    if size:
                        yield Chunk(size, arrays, place, position, reader.untyped, reader.markers)
                    first, position = first + size, position + size

    def close(self) -> None:
        pass


def open_scan(data: Any, options: Data) -> Scan:
    """Paths, each file opened once to see what it holds, or something in memory."""
    if isinstance(data, str | os.PathLike):
        data = [data]
    if isinstance(data, list | tuple) and all(isinstance(entry, str | os.PathLike) for entry in data):
        return FileScan([_reader(file, options) for file in find_files(data, options)])
    home = type(data).__module__.partition(".")[0]
    if home == "pandas" and hasattr(data, "iloc") and hasattr(data, "columns"):
        return PandasScan(data)
    if home == "polars" and hasattr(data, "height"):
        return PolarsScan(data)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return ArrowScan(data)
    if isinstance(data, pa.RecordBatchReader):
        return once_batches(data, options.memory_bytes)
    if isinstance(data, Iterator):
        return once_rows(data, options.memory_bytes)
    if isinstance(data, Iterable) and not isinstance(data, Mapping):
        return RowsScan(data)
    raise ConfigError(
        f"data is a {type(data).__name__}; give paths, a pandas or polars DataFrame, an Arrow table or reader, or dicts"
    )


def _reader(file: File, options: Data) -> Reader:
    return ParquetReader(file) if file.format == "parquet" else TextReader(file, options)

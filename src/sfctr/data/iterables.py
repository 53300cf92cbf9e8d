"""Iterables as scans: rows that are dicts, and readers of Arrow batches.

What can be iterated once only (a generator, a reader) is kept as it is read, because more than one pass may be needed:
in memory up to a bound, and in a temporary file beyond it. A key that a row lacks is a missing value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any

import pyarrow as pa

from sfctr.spec.errors import DataError

from .chunk import CHUNK_ROWS, Chunk, Within, check_columns
from .frames import array_of
from .place import Place
from .spool import SpillFile

_ROWS = "rows"
_BATCHES = "Arrow batches"


class RowsScan:
    """Dicts, one a row, from an iterable that can be iterated again. See `Scan`."""

    name = _ROWS
    edges: Sequence[int] = ()

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.num_rows: int | None = len(rows) if isinstance(rows, Sequence) else None
        self.columns: Sequence[str] = _names(list(islice(iter(rows), CHUNK_ROWS)))

    def check(self, columns: Sequence[str]) -> None:
        check_columns(columns, self.columns, self.name)

    def chunks(
        self, columns: Sequence[str], *, threads: int = 1, within: Within | None = None
    ) -> Generator[Chunk, None, None]:
        position = 0
        for rows in _blocks(iter(self._rows)):
            yield _chunk(rows, columns, position)
            position += len(rows)

    def close(self) -> None:
        pass


class OnceScan:
    """Chunks from an iterator that runs once, kept for later passes. See `Scan`.

    `check` must be called before `chunks`: the columns it is given are those that are kept.
    """

    num_rows: int | None = None
    edges: Sequence[int] = ()

    def __init__(
        self, name: str, columns: Sequence[str], source: Callable[[Sequence[str]], Iterator[Chunk]], memory_bytes: int
    ) -> None:
        self.name = name
        self.columns = columns
        self._source = source
        self._fresh: Iterator[Chunk] | None = None
        self._kept: list[tuple[Place, int, Any]] = []
        self._kept_bytes, self._memory_bytes = 0, memory_bytes
        self._spill: SpillFile | None = None
        self._lock = Lock()

    def check(self, columns: Sequence[str]) -> None:
        check_columns(columns, self.columns, self.name)
        self._fresh = self._source(tuple(columns))

    def chunks(
        self, columns: Sequence[str], *, threads: int = 1, within: Within | None = None
    ) -> Generator[Chunk, None, None]:
        assert self._fresh is not None
        number = 0
        while True:
            with self._lock:  # two parts of a split may be read at a time
                if number == len(self._kept):
                    chunk = next(self._fresh, None)
                    if chunk is None:
                        return
                    self._keep(chunk)
                place, position, batch = self._kept[number]
            if isinstance(batch, tuple):
                batch = self._read(*batch)
            arrays = {name: batch.column(name) for name in columns}
            yield Chunk(batch.num_rows, arrays, place, position)
            number += 1

    def _keep(self, chunk: Chunk) -> None:
        batch: Any = pa.record_batch(dict(chunk.arrays))
        self._kept_bytes += batch.nbytes
        if self._kept_bytes > self._memory_bytes:
            self._spill = self._spill or SpillFile(None)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            data = memoryview(sink.getvalue())
            batch = (self._spill.append(data), len(data))
        self._kept.append((chunk.place, chunk.position, batch))

    def _read(self, offset: int, size: int) -> Any:
        assert self._spill is not None
        data = bytearray(size)
        self._spill.read(offset, memoryview(data))
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_next_batch()

    def close(self) -> None:
        self._kept.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None


def once_rows(rows: Iterator[Mapping[str, Any]], memory_bytes: int) -> OnceScan:
    """A generator of dicts."""
    first = list(islice(rows, CHUNK_ROWS))

    def source(columns: Sequence[str]) -> Iterator[Chunk]:
        position, block = 0, first
        while block:
            yield _chunk(block, columns, position)
            position += len(block)
            block = list(islice(rows, CHUNK_ROWS))

    return OnceScan(_ROWS, _names(first), source, memory_bytes)


def once_batches(reader: Any, memory_bytes: int) -> OnceScan:
    """An Arrow RecordBatchReader."""

    def source(columns: Sequence[str]) -> Iterator[Chunk]:
        position = 0
        for big in reader:
            for start in range(0, big.num_rows, CHUNK_ROWS):
                batch = big.slice(start, CHUNK_ROWS)
                arrays = {name: batch.column(name) for name in columns}
                yield Chunk(batch.num_rows, arrays, Place(_BATCHES, position), position)
                position += batch.num_rows

    return OnceScan(_BATCHES, tuple(reader.schema.names), source, memory_bytes)


def _blocks(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while block := list(islice(rows, CHUNK_ROWS)):
        yield block


def _names(rows: Sequence[Any]) -> Sequence[str]:
    """Every key of these rows, in the order they appear."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"is a {type(row).__name__}, and a dict was needed", file=_ROWS, row=number)
        names.update(dict.fromkeys(row))
    return tuple(names)


def _chunk(rows: Sequence[Any], columns: Sequence[str], position: int) -> Chunk:
    place = Place(_ROWS, position)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            place.refuse(f"is a {type(row).__name__}, and a dict was needed", index)
    arrays = {c: array_of([row.get(c) for row in rows], place.of_column(c)) for c in columns}
    return Chunk(len(rows), arrays, place, position)

"""Parquet files as chunks, streamed inside their row groups: a large one costs no more memory than a small one."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.errors import DataError

from .chunk import CHUNK_ROWS, Within
from .column import bounds_of
from .files import File
from .texts import is_text

_BUFFER_BYTES = 1 << 20
_LENGTH_BYTES = 4


class ParquetReader:
    """One Parquet file. Nothing is open between passes; its footer is read once."""

    untyped = False
    markers: tuple[bytes, ...] = ()

    def __init__(self, file: File) -> None:
        self.file = file
        with file.open() as source, _damage(file):
            opened = pq.ParquetFile(source)
            self._metadata, schema = opened.metadata, opened.schema_arrow
        self.columns: tuple[str, ...] = tuple(schema.names)
        self.num_rows: int | None = self._metadata.num_rows
        groups = (self._metadata.row_group(at).num_rows for at in range(self._metadata.num_row_groups))
        self._bounds = bounds_of(np.fromiter(groups, np.int64))
        self._repeating = {field.name for field in schema if is_text(field.type)} & self._small_columns()

    @property
    def edges(self) -> Sequence[int]:
        return [int(at) for at in self._bounds[:-1]]

    def first_row(self, within: Within | None) -> int:
        return int(self._bounds[self._groups(within).start])

    def batches(
        self, columns: Sequence[str], threads: int, within: Within | None = None
    ) -> Generator[tuple[int, dict[str, Any]], None, None]:
        """Rows and arrays, in order; of row groups that have rows of `within` alone."""
        groups = self._groups(within)
        if not columns:
            yield from self._bare(int(self._bounds[groups.stop] - self._bounds[groups.start]))
            return
        with self.file.open() as source, _damage(self.file):
            opened = pq.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=[c for c in columns if c in self._repeating],
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
            )
            for batch in opened.iter_batches(
                CHUNK_ROWS, row_groups=list(groups), columns=list(columns), use_threads=threads > 1
            ):
                yield batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))

    def _small_columns(self) -> set[str]:
        """Columns that take fewer bytes a value than the length of a text alone: few distinct texts stand for many.

        Read as dictionaries, each of their texts is hashed once; where most differ, building one would cost seven times
        as much as reading them plain.
        """
        if not self._metadata.num_row_groups:
            return set()
        group = self._metadata.row_group(0)
        columns = (group.column(at) for at in range(group.num_columns))
        return {c.path_in_schema for c in columns if c.total_uncompressed_size < _LENGTH_BYTES * c.num_values}

    def _groups(self, within: Within | None) -> range:
        """The row groups that have any of these rows."""
        if within is None:
            return range(len(self._bounds) - 1)
        first = int(np.searchsorted(self._bounds[1:], within[0], side="right"))
        return range(first, max(first, int(np.searchsorted(self._bounds[:-1], within[1], side="left"))))

    def _bare(self, num_rows: int) -> Generator[tuple[int, dict[str, Any]], None, None]:
        for start in range(0, num_rows, CHUNK_ROWS):
            yield min(CHUNK_ROWS, num_rows - start), {}


class _damage:
    """Turns what the system or pyarrow raises for a file into an error that names it."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(
                f"it could not be read: {os.strerror(error.errno)}",
                file=self._file.name,
                remedy="go on when it can be again",
            ) from None
        if isinstance(error, pa.ArrowException | OSError | EOFError) and not isinstance(error, DataError):
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"no whole Parquet file: {reason}",
                file=self._file.name,
                remedy="write or copy it again; it may be truncated",
            ) from None

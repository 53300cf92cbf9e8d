"""A Parquet file that is complete or absent: written beside its name and renamed at the end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.errors import writing


class WholeParquet:
    """Writes tables of `schema` to `path`, whose folder is made if needed. Hold it by `with`: where the block fails
    nothing new stays, and a file that was there before does.

    options: of pyarrow's ParquetWriter. Raises CapacityError where the disk is full, and ConfigError where there can be
    no such file.
    """

    def __init__(self, path: Path, schema: pa.Schema, **options: Any) -> None:
        self._path, self._part = path, path.with_name(f".{path.name}.part")
        with writing(path):
            if path.is_dir():
                raise IsADirectoryError("it is a directory")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._writer = pq.ParquetWriter(self._part, schema, **options)
            except OSError:
                self._part.unlink(missing_ok=True)
                raise

    def write(self, table: pa.Table) -> None:
        """Add the rows of a table of the file's schema."""
        with writing(self._path):
            self._writer.write_table(table)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                with writing(self._path):
                    self._writer.close()
                    self._part.replace(self._path)
            else:
                with suppress(OSError):
                    self._writer.close()
        finally:
            self._part.unlink(missing_ok=True)

"""CSV and TSV files as chunks of bare text, streamed; and the headerless Criteo layout.

All columns are read as bytes: what they mean is the schema's to say. Rows are records, not lines: a quoted value may
hold line breaks. Blank lines are no rows, but in a file of one column, where they are missing values.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from sfctr.spec.errors import DataError
from sfctr.spec.runfile import Data

from .chunk import CHUNK_ROWS, Within
from .files import File

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))

_BLOCK_BYTES = 1 << 20  # the size at which pyarrow parses fastest: its blocks then stay in the cache
_LARGEST_BLOCK_BYTES = 1 << 28  # a row has to fit a block
_CHUNK_BYTES = 8 << 20
_HEADER_BYTES = 1 << 20
_END = b"\x1dEOF\x1d"
"""Every value of a record that is read after the file's own ones; a quote that is never closed swallows it."""

Arrays = dict[str, Any]


class TextReader:
    """One CSV or TSV file. Nothing is open between passes; its header is read once."""

    untyped = True
    num_rows: int | None = None
    edges: Sequence[int] = ()

    def __init__(self, file: File, options: Data) -> None:
        self.file = file
        self.markers = tuple(text.encode() for text in options.null_values)
        self._bare = file.format == "criteo"
        default = "," if file.format == "csv" else "\t"
        self._separator = options.separator or default
        with self._opened() as stream:
            start = stream.read(_HEADER_BYTES)
        if not start.strip():
            raise DataError("the file is empty", file=file.name, remedy="a header line was needed")
        self.columns = CRITEO_COLUMNS if self._bare else _header(start, self._separator, file)

    def first_row(self, within: Within | None) -> int:
        return 0

    def batches(
        self, columns: Sequence[str], threads: int, within: Within | None = None
    ) -> Generator[tuple[int, Arrays], None, None]:
        """Rows and arrays, in order. A row longer than a block has the file read again from there in larger blocks."""
        done, block_bytes = 0, _BLOCK_BYTES
        while True:
            try:
                for size, arrays in _grouped(self._blocks(columns, block_bytes, done)):
                    done += size
                    yield size, arrays
                return
            except _RowTooLong:
                block_bytes *= 16
                if block_bytes > _LARGEST_BLOCK_BYTES:
                    raise DataError(
                        f"a value or a row is longer than {_LARGEST_BLOCK_BYTES >> 20} MiB",
                        file=self.file.name,
                        row=done + 1,
                        remedy="look for a quote that is never closed",
                    ) from None

    def _blocks(self, columns: Sequence[str], block_bytes: int, skip: int) -> Generator[Any, None, None]:
        """Record batches of the rows after the first `skip`."""
        bad_row: list[Any] = []
        options = self._options(columns, block_bytes, bad_row)
        row, at_end = 0, False
        with self._opened() as stream, self._explained(bad_row):
            feed = _Feed(stream, self._separator.encode().join([_END] * len(self.columns)))
            for batch in pacsv.open_csv(pa.PythonFile(feed, mode="r"), **options):
                if batch.num_rows:
                    at_end = batch.column(0)[-1].as_py() == _END
                size = batch.num_rows - at_end
                if skip < row + size:
                    yield batch.slice(max(0, skip - row), size - max(0, skip - row))
                row += size
        if row and not at_end:
            raise DataError(
                "a quote is opened in the last column and never closed",
                file=self.file.name,
                row=row,
                remedy='close it, or write a quote inside of quotes as ""',
            )

    def _options(self, columns: Sequence[str], block_bytes: int, bad_row: list[Any]) -> dict[str, Any]:
        """How pyarrow is to read; it puts a row of another length than the header's into `bad_row`."""

        def refuse_row(row: Any) -> str:
            bad_row.append(row)
            return "error"

        return {
            "read_options": pacsv.ReadOptions(
                use_threads=False,  # with threads pyarrow does not know the number of a bad row
                block_size=block_bytes,
                column_names=list(CRITEO_COLUMNS) if self._bare else None,
            ),
            "parse_options": pacsv.ParseOptions(
                delimiter=self._separator,
                quote_char=False if self._bare else '"',
                newlines_in_values=not self._bare,
                ignore_empty_lines=len(self.columns) > 1,
                invalid_row_handler=refuse_row,
            ),
            "convert_options": pacsv.ConvertOptions(
                check_utf8=False,
                strings_can_be_null=False,
                column_types=dict.fromkeys(self.columns, pa.binary()),
                include_columns=list(columns) or [self.columns[0]],
            ),
        }

    @contextmanager
    def _opened(self) -> Generator[Any, None, None]:
        with self.file.open() as source:
            if not self.file.is_gzip:
                yield source
                return
            with pa.CompressedInputStream(source, "gzip") as stream, self._explained([]):
                yield stream

    @contextmanager
    def _explained(self, bad_row: list[Any]) -> Generator[None, None, None]:
        """Turns what pyarrow raises into errors that name the place."""
        try:
            yield
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            if bad_row:
                row = bad_row[0]
                raise DataError(
                    f"the row has {row.actual_columns} values and the file {row.expected_columns} columns",
                    file=self.file.name,
                    row=row.number - (0 if self._bare else 1),
                    remedy="quote values that hold the separator, or set data.separator",
                ) from None
            if "straddles" in reason:
                raise _RowTooLong from None
            if "Empty CSV" not in reason:  # that one says: a header and nothing after it
                raise DataError(f"the file cannot be read: {reason}", file=self.file.name) from None
        except OSError as error:
            reason = str(error).splitlines()[0]
            remedy = "it may be truncated: write or copy it again"
            raise DataError(
                f"the file cannot be read to its end: {reason}", file=self.file.name, remedy=remedy
            ) from None


class _RowTooLong(Exception):
    """A row does not fit a block."""


class _Feed(io.RawIOBase):
    """A stream and then a line of our own, in pieces that do not end in a carriage return.

    pyarrow 26 drops the line feed of a quoted CR LF that lies across two of its blocks; let pieces end where they do
    when it keeps it.
    """

    def __init__(self, stream: Any, line: bytes) -> None:
        self._stream, self._line = stream, line
        self._last = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size - 1)
        while data.endswith(b"\r"):
            more = self._stream.read(1)
            if not more:
                break
            data += more
        if data:
            self._last = data[-1:]
            return data
        if self._last not in b"\r\n":
            self._line, self._last = b"\n" + self._line, b""
        data, self._line = self._line[:size], self._line[size:]
        return data


def _header(start: bytes, separator: str, file: File) -> tuple[str, ...]:
    """Names in the first record that is not blank."""
    # What is not UTF-8 may also be a character that the end of `start` cuts; it matters only inside the header.
    text = start.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    names = next((tuple(r) for r in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if r), ())
    if any("\udc80" <= char <= "\udcff" for name in names for char in name):
        remedy = "write the file in UTF-8 (iconv -t UTF-8 converts it)"
        raise DataError("the header is not valid UTF-8", file=file.name, remedy=remedy)
    return names


def _grouped(batches: Generator[Any, None, None]) -> Generator[tuple[int, Arrays], None, None]:
    """Record batches joined until they make a chunk, so that the cost of a call is spread over many rows."""
    waiting: list[Any] = []
    rows = size = 0
    try:
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= CHUNK_ROWS or size >= _CHUNK_BYTES:
                yield rows, _joined(waiting)
                waiting, rows, size = [], 0, 0
    finally:
        batches.close()
    if waiting:
        yield rows, _joined(waiting)


def _joined(batches: list[Any]) -> Arrays:
    names = batches[0].schema.names
    if len(batches) == 1:
        return dict(zip(names, batches[0].columns, strict=True))
    return {name: pa.concat_arrays([batch.column(at) for batch in batches]) for at, name in enumerate(names)}

"""What every kind of input gives: chunks of Arrow columns, in the order of the source.

A `Scan` is one input (files, a frame, an iterable); it can be read from the start as often as asked, holds no open file
between passes, and gives rows in one order always.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sfctr.spec.errors import DataError, nearest

from .column import Column
from .place import Place

CHUNK_ROWS = 16_384
"""Rows that a scan aims to give at a time, where the format lets it choose."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of rows.

    arrays:   column name -> Arrow array of `size` values.
    place:    file, and its data rows before this run.
    position: rows of the source before this run.
    """

    size: int
    arrays: Mapping[str, Any]
    place: Place
    position: int
    untyped: bool = False
    markers: tuple[bytes, ...] = ()

    def __getitem__(self, column: str) -> Column:
        return Column(self.arrays[column], self.place.of_column(column), self.untyped, self.markers)

    def head(self, rows: int) -> Chunk:
        """The first `rows` rows."""
        arrays = {name: array.slice(0, rows) for name, array in self.arrays.items()}
        return replace(self, size=min(rows, self.size), arrays=arrays)

    def __contains__(self, column: str) -> bool:
        return column in self.arrays


Within = tuple[int, int]


class Scan(Protocol):
    """One input, readable from the start any number of times."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns there are (of the first file; `check` looks at the others)."""

    @property
    def num_rows(self) -> int | None:
        """Rows of the source where they are known without reading it."""

    @property
    def name(self) -> str:
        """What messages about the whole input call it."""

    def check(self, columns: Sequence[str]) -> None:
        """Refuse files that lack one of `columns`."""

    @property
    def edges(self) -> Sequence[int]:
        """Positions, rising, from which on rows can be had without reading those before; perhaps none."""

    def chunks(
        self, columns: Sequence[str], *, threads: int = 1, within: Within | None = None
    ) -> Generator[Chunk, None, None]:
        """All rows, in order, with these columns. Closing the iterator ends what it began.

        within: only rows from the first position to before the second are needed. Others come too where to leave them
        out would save no work.
        """

    def close(self) -> None:
        """Give back what the scan holds."""


def check_columns(needed: Sequence[str], there: Sequence[str], name: str) -> None:
    """Refuse an input that lacks a needed column, or holds one twice."""
    for column in needed:
        if column not in there:
            raise DataError(
                f"there is no such column{nearest(column, there)}",
                file=name,
                column=column,
                remedy="correct the schema or the file",
            )
        if list(there).count(column) > 1:
            raise DataError("two columns have this name", file=name, column=column, remedy="rename one of them")

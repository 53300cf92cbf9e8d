"""Where a value stands, so that a refusal can name file, row and column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from sfctr.spec.batch import I64
from sfctr.spec.errors import DataError


@dataclass(frozen=True, slots=True)
class Place:
    """A run of rows of one column of one file.

    file:    its name, or what kind of frame it is.
    first:   data rows of the file before the run.
    picked:  positions in the run of the values at hand, rising; None: all of them.
    offsets: bounds of the items of each value, where the values at hand are items of lists; None: they are not.
    """

    file: str
    first: int = 0
    column: str | None = None
    picked: I64 | None = None
    offsets: I64 | None = None

    def of_column(self, column: str) -> Place:
        return Place(self.file, self.first, column, self.picked, self.offsets)

    def of_rows(self, picked: I64) -> Place:
        return replace(self, picked=picked if self.picked is None else self.picked[picked])

    def of_items(self, offsets: I64) -> Place:
        return replace(self, offsets=offsets)

    def row(self, index: int) -> int:
        """Data row of the file, counted from 1, of value `index`."""
        if self.offsets is not None:
            index = int(np.searchsorted(self.offsets, index, side="right")) - 1
        if self.picked is not None:
            index = int(self.picked[index])
        return self.first + index + 1

    def error(self, problem: str, index: int | None = None, *, remedy: str = "") -> DataError:
        """What to raise at value `index`, or at the column as a whole."""
        row = None if index is None else self.row(index)
        return DataError(problem, file=self.file, row=row, column=self.column, remedy=remedy)

    def refuse(self, problem: str, index: int | None = None, *, remedy: str = "") -> NoReturn:
        raise self.error(problem, index, remedy=remedy)

"""What a checkpoint asks of whoever holds rows: them as they are at one moment, handed over while training goes on.

A group's tables have two *spaces* each: 2t holds the keys of table t, 2t + 1 its row of missing values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .batch import F32, U64

U32 = npt.NDArray[np.uint32]


class RowsOfGroup(Protocol):
    """The rows of one group's part of a snapshot. Any thread may ask, one at a time, beside training."""

    def take_snapshot(self, count: int) -> tuple[int, U64, U32, F32] | None:
        """The next rows, at most `count`: space, keys [n], the step that trained each last [n] (empty where the group
        does not keep it) and records [n, R]; None when all were given. Raises OSError."""
        ...

    def take_tombstones(self) -> list[tuple[int, U64]]:
        """By space, keys removed since the snapshot before began. Called once."""
        ...


class Snapshot(Protocol):
    """All rows of a process as they are when it begins; one at a time."""

    @property
    def groups(self) -> Sequence[RowsOfGroup]: ...

    @property
    def needs_full(self) -> bool:
        """Whether the next one must hold all rows: none was kept so far, or the last one was not."""
        ...

    def begin_snapshot(self, full: bool) -> None:
        """Between two steps. full: all rows; else those changed since the snapshot before began."""
        ...

    def end_snapshot(self, kept: bool) -> None:
        """kept: what was taken is on disk for good."""
        ...

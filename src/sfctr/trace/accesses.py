"""One table's accesses in order, and the exact answers that follow from them.

  N accesses, B batches, D distinct rows, C capacities

An access is a distinct key of a batch. Its first use is never a hit: there is no row yet that a cache could hold, and
training makes one instead of fetching it. What comes after are *repeats*, and hits are counted among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.batch import I64, U64

U32 = npt.NDArray[np.uint32]

Policy = Literal["lru", "clock", "lfu", "frequency", "window", "optimal", "hot_set"]
"""Which row a full cache gives up: the least recently used; the first unmarked one under a clock hand; the least often
used so far; the least often used of the whole sequence; by the coming batches that are known, else the least recently
used; the one that is needed last (Belady's optimum). "hot_set" holds the most used rows for good. The exact rules, ties
included, are in native/include/sfctr/replay.h."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accesses:
    """rows: uint32 [N], each below num_rows; batch_begin: int64 [B + 1], batch b is rows[batch_begin[b] : ...[b + 1]];
    num_rows: D, every row being used at least once."""

    rows: U32
    batch_begin: I64
    num_rows: int

    @classmethod
    def of_log(cls, log: _native.AccessLog) -> Accesses:
        return cls(rows=log.rows(), batch_begin=log.batch_begin(), num_rows=log.num_rows)

    @classmethod
    def of_batches(cls, batches: Sequence[Sequence[int]]) -> Accesses:
        """Of keys by batch; the keys of a batch must differ. Rows are numbered by first appearance."""
        number: dict[int, int] = {}
        rows = [number.setdefault(key, len(number)) for batch in batches for key in batch]
        begin = np.cumsum([0, *(len(batch) for batch in batches)], dtype=np.int64)
        return cls(rows=np.array(rows, dtype=np.uint32), batch_begin=begin, num_rows=len(number))

    @property
    def num_repeats(self) -> int:
        """Accesses after a row's first."""
        return len(self.rows) - self.num_rows

    def hits(self, policy: Policy, capacities: Sequence[int] | U64, *, window: int = 0) -> U64:
        """uint64 [C]: repeats that a cache of each capacity, in rows, has at hand. window: batches that the policy
        "window" knows after the current one. Raises ValueError for a capacity of 0."""
        wanted = np.asarray(capacities, dtype=np.uint64)
        return _native.replay(self.rows, self.batch_begin, self.num_rows, policy, wanted, window)

    def lru_hits(self) -> U64:
        """uint64 [D + 1]: hits of a cache of c rows that evicts the least recently used one, for every c from 0."""
        counts = self.stack_distances()
        counts[0] = 0
        return np.cumsum(counts, dtype=np.uint64)

    def stack_distances(self) -> U64:
        """uint64 [D + 1]: how many accesses found their row to be the d-th most recently used; d = 0: first uses."""
        return _native.stack_distance_counts(self.rows, self.batch_begin, self.num_rows)

    def uses(self) -> I64:
        """int64 [D]: accesses to each row."""
        return np.bincount(self.rows, minlength=self.num_rows).astype(np.int64, copy=False)

    def gap_counts(self) -> U64:
        """uint64 [B]: how many repeats come g batches after the use of their row before."""
        return _native.gap_counts(self.rows, self.batch_begin, self.num_rows)

    def rows_ahead(self, window: int) -> I64:
        """int64 [B]: distinct rows of a batch and the `window` batches after it, which a cache that looks so far ahead
        holds at once."""
        return _native.rows_ahead(self.rows, self.batch_begin, self.num_rows, window)

"""The order of rows in a shuffled epoch: a pure function of seed, epoch and the number of rows.

The kept rows of a source, in file order, make blocks of BLOCK consecutive rows (the last may be shorter). An epoch
permutes the blocks into one sequence; LANES lanes take consecutive ranges of it; inside a lane each window of BLOCK
rows is permuted; and row i of the epoch is row i // LANES of lane i % LANES. So a reader needs one window of each lane
in memory, whatever the size of the source, and batches of any size, readers and processes see one order.

  N rows of the source
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import I64, U64

BLOCK = 16_384
LANES = 16
SPAN = BLOCK * LANES
"""Rows of an epoch that come from one window of every lane."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def mix64(values: U64) -> U64:
    """The finalizer of splitmix64: a permutation of the 64-bit numbers that looks random."""
    z: U64 = values + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_of(*numbers: int) -> int:
    """One 64-bit hash of several integers, in order."""
    h = np.zeros(1, np.uint64)
    for number in numbers:
        h = mix64(h ^ np.uint64(number & _MASK))
    return int(h[0])


def shuffled(base: int, start: int, stop: int) -> I64:
    """The numbers start .. stop - 1 in the order of mix64(base ^ number)."""
    order = np.argsort(mix64(np.uint64(base) ^ np.arange(start, stop, dtype=np.uint64)), kind="stable")
    return order + start


class EpochOrder:
    """The order of one epoch over N rows, asked for a span at a time."""

    def __init__(self, seed: int, epoch: int, num_rows: int) -> None:
        self.num_rows = num_rows
        self._seed, self._epoch = seed, epoch
        num_blocks = -(-num_rows // BLOCK)
        blocks = shuffled(hash_of(seed, epoch, 0), 0, num_blocks)
        lengths = np.minimum(BLOCK, num_rows - blocks * BLOCK)
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._shift = np.append(blocks * BLOCK - self._starts[:-1], 0)
        lane_rows = (num_rows - np.arange(LANES) + LANES - 1) // LANES
        self._lane_rows = np.maximum(lane_rows, 0)
        self._lane_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lane_rows)])

    def span(self, number: int) -> I64:
        """Positions among the source's rows of epoch rows number * SPAN .. (at most SPAN of them)."""
        first = number * BLOCK
        size = min(SPAN, self.num_rows - number * SPAN)
        out = np.empty(size, np.int64)
        for lane in range(min(LANES, size)):
            stop = min(first + BLOCK, int(self._lane_rows[lane]))
            inside = shuffled(hash_of(self._seed, self._epoch, lane + 1), first, stop)
            sequence = self._lane_starts[lane] + inside
            block = np.searchsorted(self._starts, sequence, side="right") - 1
            out[lane::LANES] = sequence + self._shift[block]
        return out


def epoch_order(seed: int, epoch: int, num_rows: int, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
    """Positions among the source's kept rows of rows start:stop of a shuffled epoch."""
    stop = num_rows if stop is None else min(stop, num_rows)
    order = EpochOrder(seed, epoch, num_rows)
    parts = [order.span(s) for s in range(start // SPAN, -(-stop // SPAN))] if start < stop else []
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    first = start // SPAN * SPAN
    return whole[start - first : max(stop, start) - first]

"""The order of rows in a shuffled epoch: a pure function of seed, epoch and the number of rows.

Each of LANES lanes has a fixed range of the kept rows of a source, in file order; lengths of lanes differ by one row at
most. Inside a lane, blocks of BLOCK consecutive rows (the last may be shorter) are permuted anew in each epoch,
then the rows of each window of BLOCK of what that gives; and row i of the epoch is row i // LANES of lane i % LANES. So
a reader needs one window of each lane in memory, whatever the size of the source; whoever reads some of the lanes needs
the same rows in every epoch, and no others; and batches of any size, readers and processes see one order.

  N rows of the source
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import I64, U64
from sfctr.spec.errors import ConfigError

ORDER = 2
"""Number of this order, by which a run that goes on knows that it reads in the one that it began with."""
BLOCK = 16_384
LANES = 16
ALL_LANES = range(LANES)
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


def lanes_of(rank: int, size: int, shares: Sequence[int] = ()) -> range:
    """The lanes that a rank reads: as many as its share says, or as equally many as may be. They may be none."""
    if not shares:
        return range(rank * LANES // size, (rank + 1) * LANES // size)
    if len(shares) != size or sum(shares) != LANES or min(shares) < 0:
        raise ConfigError(
            f"parallel.shares is {list(shares)} and must be {size} numbers from 0 on, one a process, that add up to"
            f" {LANES} lanes"
        )
    first = sum(shares[:rank])
    return range(first, first + shares[rank])


def lane_bounds(num_rows: int) -> I64:
    """Where among N kept rows each lane begins, and at the end N: int64 [LANES + 1]."""
    lanes = np.arange(LANES + 1)
    return lanes * (num_rows // LANES) + np.minimum(lanes, num_rows % LANES)


def dealt(first: int, count: int, lanes: range) -> I64:
    """Which of rows first .. first + count - 1 of an epoch are of these lanes, counted from `first`."""
    inside = np.arange(count)
    lane = (first + inside) % LANES
    return inside[(lane >= lanes.start) & (lane < lanes.stop)]


class EpochOrder:
    """The order of one epoch over N rows, as far as it is that of some lanes, asked for a span at a time."""

    def __init__(self, seed: int, epoch: int, num_rows: int, lanes: range = ALL_LANES) -> None:
        self.num_rows, self.lanes = num_rows, lanes
        self._seed, self._epoch = seed, epoch
        self._bounds = lane_bounds(num_rows)
        self._sequences = {lane: self._sequence(lane) for lane in lanes}

    def _sequence(self, lane: int) -> tuple[I64, I64]:
        """A lane's blocks in their order: where each begins in the lane's sequence, and what to add there for the
        position of a row among the source's rows."""
        first, rows = self._bounds[lane], int(self._bounds[lane + 1] - self._bounds[lane])
        blocks = shuffled(hash_of(self._seed, self._epoch, lane + 1, 0), 0, -(-rows // BLOCK))
        starts = np.cumsum(np.minimum(BLOCK, rows - blocks * BLOCK))
        starts = np.concatenate([np.zeros(1, np.int64), starts])[: len(blocks)]
        return starts, first + blocks * BLOCK - starts

    def span(self, number: int) -> tuple[I64, I64]:
        """Of epoch rows number * SPAN .. (at most SPAN), those of the lanes: which rows of the epoch they are, rising,
        and their positions among the source's rows."""
        first = number * SPAN
        taken = dealt(first, min(SPAN, self.num_rows - first), self.lanes)
        positions = np.empty(len(taken), np.int64)
        for lane in self.lanes:
            of_lane = positions[lane - self.lanes.start :: len(self.lanes)]
            of_lane[:] = self._window(lane, number * BLOCK, len(of_lane))
        return first + taken, positions

    def _window(self, lane: int, first: int, rows: int) -> I64:
        inside = shuffled(hash_of(self._seed, self._epoch, lane + 1), first, first + rows)
        starts, shifts = self._sequences[lane]
        return inside + shifts[np.searchsorted(starts, inside, side="right") - 1]


def epoch_order(seed: int, epoch: int, num_rows: int, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
    """Positions among the source's kept rows of rows start:stop of a shuffled epoch."""
    stop = num_rows if stop is None else min(stop, num_rows)
    order = EpochOrder(seed, epoch, num_rows)
    parts = [order.span(s)[1] for s in range(start // SPAN, -(-stop // SPAN))] if start < stop else []
    whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    first = start // SPAN * SPAN
    return whole[start - first : max(stop, start) - first]

"""What a row range of a batch looks up, in NumPy: each feature's virtual ids, bag lengths, and scales.

B rows of the batch, n rows of a range, N positions of a feature in the batch or in the range
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sfctr.spec.batch import F32, I64, Bools

from .levels import level_out, sum_levels

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureIds:
    """One feature of a working set: the arguments of the native FeatureKeys, with virtual ids in place of keys.

    table: place in the group. pooling: "one", "sum", "mean" or "sequence". ids: int32 [N], WorkingSet.virtual_ids.
    offsets: int64 [B + 1], None for "one". weights: float32 [N] of "sum" and "mean", or None. max_length: vectors that
    a row of a sequence becomes.
    """

    table: int
    pooling: str
    ids: I32
    offsets: I64 | None = None
    weights: F32 | None = None
    max_length: int = 0

    @property
    def vectors_a_row(self) -> int:
        return self.max_length if self.pooling == "sequence" else 1

    def rows(self, begin: int, end: int) -> FeatureRows:
        """The positions of rows [begin, end)."""
        offsets = np.arange(begin, end + 1) if self.offsets is None else self.offsets[begin : end + 1]
        of_range = slice(int(offsets[0]), int(offsets[-1]))
        weights = None if self.weights is None else self.weights[of_range]
        return FeatureRows(self, self.ids[of_range], np.diff(offsets), weights)


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """A feature's positions in a row range: ids int32 [N], lengths int64 [n], weights float32 [N] or None."""

    feature: FeatureIds
    ids: I32
    lengths: I64
    weights: F32 | None

    @property
    def is_scaled(self) -> bool:
        return self.feature.pooling == "mean" or self.weights is not None

    def row_of_position(self) -> I64:
        return np.repeat(np.arange(self.lengths.size), self.lengths)

    def place_in_row(self) -> I64:
        """0 for the first position of each row, then 1, and so on."""
        first = np.cumsum(self.lengths) - self.lengths
        return np.arange(self.ids.size) - np.repeat(first, self.lengths)

    def position_weights(self) -> F32:
        return np.ones(self.ids.size, dtype=np.float32) if self.weights is None else self.weights

    def divisors(self) -> tuple[F32, Bools]:
        """What a row's sum is divided by, [n], and where a mean reads as 0 because its weights cancel, [n].

        The divisor is 1 there and for an empty bag, whose sum is 0 already.
        """
        if self.feature.pooling != "mean":
            return np.ones(self.lengths.size, dtype=np.float32), np.zeros(self.lengths.size, dtype=np.bool_)
        sums = self.lengths.astype(np.float32) if self.weights is None else self._weight_sums(self.weights)
        return np.where(sums == 0, np.float32(1), sums), (sums == 0) & (self.lengths > 0)

    def _weight_sums(self, weights: F32) -> F32:
        levels = level_out(self.lengths)
        laid_out = np.empty((weights.size, 1), dtype=np.float32)
        laid_out[levels.places, 0] = weights
        sums = sum_levels(torch.from_numpy(laid_out), levels.sizes, self.lengths.size)
        ordered: F32 = sums.numpy()[levels.rows, 0]
        return ordered

    def scales(self) -> tuple[F32, F32]:
        """What a position's gradient is divided by and then multiplied by, [N] each."""
        divisors, cancelled = self.divisors()
        factor = np.where(cancelled, np.float32(0), np.float32(1))
        with np.errstate(invalid="ignore"):  # 0 times an infinite weight is NaN, here as in the native kernels
            weights = np.repeat(factor, self.lengths) * self.position_weights()
        return np.repeat(divisors, self.lengths), weights

"""Sums that do not depend on the order of what is summed: rounding happens once, when the total is read."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

_LOW_BITS = 27
"""A float64's 53-bit significand is cut into 26 and 27 bits, so that float64 adds 2^26 of either without rounding."""
_UNIT = 1126
"""Totals count units of 2^-1126: the smallest float64, 0.5 * 2^-1073, has a significand of 53 bits below it."""
_PIECE = 1 << 26


class ExactSum:
    """The sum of any number of finite float64, as one integer; equal for any order, batching or merging."""

    def __init__(self) -> None:
        self._total = 0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        for start in range(0, len(values), _PIECE):
            self._add_piece(values[start : start + _PIECE])

    def _add_piece(self, values: npt.NDArray[np.float64]) -> None:
        fraction, exponent = np.frexp(values)
        significand = np.ldexp(fraction, 53).astype(np.int64)
        lowest = int(exponent.min())
        place = exponent - lowest
        high = np.bincount(place, weights=(significand >> _LOW_BITS).astype(np.float64))
        low = np.bincount(place, weights=(significand & ((1 << _LOW_BITS) - 1)).astype(np.float64))
        for offset in np.flatnonzero((high != 0) | (low != 0)).tolist():
            total = (int(high[offset]) << _LOW_BITS) + int(low[offset])
            self._total += total << (offset + lowest - 53 + _UNIT)

    def merge(self, other: ExactSum) -> None:
        self._total += other._total

    def state(self) -> str:
        return hex(self._total)

    def restore(self, state: str) -> None:
        self._total = int(state, 16)

    def value(self) -> float:
        """The total, rounded once; infinite where float64 cannot hold it."""
        try:
            return float(Fraction(self._total, 1 << _UNIT))
        except OverflowError:
            return math.inf if self._total > 0 else -math.inf

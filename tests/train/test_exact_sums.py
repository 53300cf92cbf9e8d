"""ExactSum against fractions, in any order and in any parts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfctr.train.exact import ExactSum

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)


def summed(*parts: list[float]) -> float:
    total = ExactSum()
    for part in parts:
        other = ExactSum()
        other.add(np.array(part, np.float64))
        total.merge(other)
    return total.value()


def slow(values: list[float]) -> float:
    try:
        return float(sum(map(Fraction, values)))
    except OverflowError:
        return math.inf if sum(map(Fraction, values)) > 0 else -math.inf


@given(st.lists(FINITE, max_size=20), st.lists(FINITE, max_size=20))
def test_a_sum_is_rounded_once_whatever_the_order_and_the_parts(a, b):
    assert summed(a, b) == slow(a + b)
    assert summed(b[::-1] + a) == slow(a + b)


def test_what_plain_addition_loses_is_kept():
    assert summed([1e16, 1.0, -1e16]) == 1.0
    assert summed([5e-324] * 3) == 3 * 5e-324
    assert summed([1.7e308, 1.7e308]) == math.inf
    assert summed([1.7e308, 1.7e308, -1.7e308]) == 1.7e308
    assert summed([]) == 0.0

"""Vectors into the words of a record and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfctr.store.elements import narrow, widen


def bits(*values: int) -> np.ndarray:
    return np.array([values], dtype=np.uint32).view(np.float32)


def test_every_bf16_number_is_read_exactly_and_comes_back_as_it_was() -> None:
    halves = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    vectors = widen(halves.view(np.float32), 256, "bf16")
    np.testing.assert_array_equal(vectors.view(np.uint32), halves.astype(np.uint32) << 16)
    quiet = np.where(np.isnan(vectors), halves | 0x40, halves)
    np.testing.assert_array_equal(narrow(vectors, "bf16").view(np.uint16), quiet)


@given(words=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9))
def test_other_numbers_are_rounded_as_torch_does(words: list[int]) -> None:
    vectors = bits(*words)
    found = widen(narrow(vectors, "bf16"), len(words), "bf16")
    expected = torch.from_numpy(vectors).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(found, expected)


def test_halfway_goes_to_the_even_neighbour() -> None:
    halfway = bits(0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF)
    assert narrow(halfway, "bf16").view(np.uint16)[0, :5].tolist() == [0x3F80, 0x3F82, 0xBF80, 0x3F81, 0x3F80]


def test_what_an_odd_dim_leaves_over_is_zero() -> None:
    words = narrow(bits(0x3F800000, 0x40000000, 0x40400000), "bf16")
    assert words.view(np.uint16).tolist() == [[0x3F80, 0x4000, 0x4040, 0]]
    assert widen(words, 3, "bf16").tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_no_rows_are_no_words(dtype: str) -> None:
    words = narrow(np.empty((0, 5), dtype=np.float32), dtype)
    assert words.shape == (0, 3 if dtype == "bf16" else 5)
    assert widen(words, 5, dtype).shape == (0, 5)


def test_words_that_lie_among_others_are_read_alike() -> None:
    records = np.arange(40, dtype=np.float32).reshape(4, 10)
    among = widen(records[:, 2:5], 6, "bf16")
    np.testing.assert_array_equal(among, widen(records[:, 2:5].copy(), 6, "bf16"))

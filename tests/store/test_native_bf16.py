"""Rows in bf16: what an update rounds to, by which bits, and that nothing but seed, key, step and column decides it."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr import _native

F32 = np.float32
SEED, NULL_SEED = 0x123456789ABCDEF0, 0x0FEDCBA987654321
ONE = np.array([[{"lr": 1.0}.get(column, 0.0) for column in _native.hyper_columns()]])
ULP = 2.0**-7
"""Distance of bf16 numbers from 1 to 2."""


def make_group(dim: int, *, rule: str = "sgd", b: float = 0.0, kind: str = "normal") -> _native.RowGroup:
    init = _native.TableInit(SEED, NULL_SEED, kind, -b if kind == "uniform" else 0.0, b)
    return _native.RowGroup(dim, False, rule, None, [init], dtype="bf16")


def step(
    group: _native.RowGroup, keys: np.ndarray, grads: np.ndarray, number: int = 1, nulls: np.ndarray | None = None
) -> None:
    ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys, nulls=nulls)])
    group.locate(ws, train=True)
    group.backward(ws, 0, keys.size, [np.ascontiguousarray(grads, dtype=F32)], [])
    group.update(ws, number, 1.0, ONE)


def read(group: _native.RowGroup, keys: np.ndarray, dim: int, nulls: np.ndarray | None = None) -> np.ndarray:
    ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys, nulls=nulls)])
    group.locate(ws, train=False)
    out = np.empty((keys.size, dim), dtype=F32)
    group.forward(ws, 0, keys.size, out.reshape(-1))
    return out


def rounded(values: np.ndarray, keys: np.ndarray, number: int = 1) -> np.ndarray:
    """What one SGD step with rate 1 makes of rows of zeros and gradients -values [n, D]: values, rounded."""
    group = make_group(values.shape[1])
    step(group, keys, -values, number)
    return read(group, keys, values.shape[1])


def arange(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64)


def test_an_element_rises_exactly_where_its_lower_bits_and_its_random_ones_carry(twin: ModuleType) -> None:
    halves = np.array(twin.rounding_halves(SEED, 77, 5, 24))
    # 1 + k / 65536 of the way to the next bf16 number: rises where k + half >= 65536.
    just = 1 + (65536 - halves) * (ULP / 65536)
    short = 1 + (65535 - halves) * (ULP / 65536)
    key = np.array([77], dtype=np.uint64)
    assert rounded(just[None], key, 5).tolist() == [[1 + ULP] * 24]
    assert rounded(short[None], key, 5).tolist() == [[1.0] * 24]
    assert rounded(-just[None], key, 5).tolist() == [[-1 - ULP] * 24]


def test_the_random_bits_are_halves_of_philox_words_under_key_step_and_block(twin: ModuleType) -> None:
    words = twin.philox((7, 1, 1 + 1024 * 3, 9), (SEED & 0xFFFFFFFF, SEED >> 32))
    halves = twin.rounding_halves(SEED, 2**32 + 7, 3 * 2**32 + 9, 16)
    assert halves[8:10] == [words[0] & 0xFFFF, words[0] >> 16]
    assert halves[14:] == [words[3] & 0xFFFF, words[3] >> 16]


def test_numbers_that_bf16_has_stay_as_they_are() -> None:
    # The largest, the smallest normal and the smallest of all, zeros and infinities among them.
    largest = (2 - ULP) * 2.0**127
    values = np.array([[0.0, -0.0, 1.5, -1.0078125, largest, 2.0**-126, 2.0**-133, np.inf, -np.inf]], dtype=F32)
    for key in range(50):
        found = rounded(values, np.array([key], dtype=np.uint64))
        # 0 - (-0) is +0, so both zeros come out as it.
        np.testing.assert_array_equal(found, values)


def test_nan_stays_nan_and_finite_numbers_that_have_an_upper_neighbour_stay_finite() -> None:
    payload = np.array([[0x7F800001, 0xFF80FFFF, 0x7FC00000, 0x7FFFFFFF]], dtype=np.uint32).view(F32)
    below_largest = np.full((1, 64), np.uint32(0x7F7EFFFF)).astype(np.uint32).view(F32)
    for key in range(50):
        assert np.isnan(rounded(payload, np.array([key], dtype=np.uint64))).all()
        assert np.isfinite(rounded(below_largest, np.array([key], dtype=np.uint64))).all()


@settings(max_examples=200, deadline=None)
@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    key=st.integers(0, 2**64 - 1),
    number=st.integers(1, 2**40),
    level=st.sampled_from(_native.simd_levels()),
)
def test_any_number_is_rounded_as_the_twin_does(
    twin: ModuleType, bits: list[int], key: int, number: int, level: str
) -> None:
    values = np.array([bits], dtype=np.uint32).view(F32)
    values[values == 0] = 0.0
    _native.set_simd_level(level)
    found = rounded(values, np.array([key], dtype=np.uint64), number)[0]
    halves = twin.rounding_halves(SEED, key, number, len(bits))
    expected = np.array([twin.bf16(value, half) for value, half in zip(values[0], halves, strict=True)])
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@pytest.mark.parametrize("share", [0.001, 0.3, 0.5, 0.9])
def test_the_mean_of_many_roundings_is_the_number(share: float) -> None:
    keys = arange(20_000) * np.uint64(0x9E3779B97F4A7C15)
    values = np.full((keys.size, 16), 1 + share * ULP, dtype=F32)
    rose = rounded(values, keys) > 1
    # Five standard deviations of a mean of 320,000 draws, and the step of 1 / 65536 that 16 bits can tell.
    assert abs(rose.mean() - share) < 5 * np.sqrt(share * (1 - share) / rose.size) + 1 / 65536
    assert abs(rose.mean(axis=0) - share).max() < 5 * np.sqrt(share * (1 - share) / keys.size) + 1 / 65536


def test_keys_columns_steps_and_seeds_are_rounded_independently() -> None:
    keys = arange(4000)
    values = np.full((keys.size, 16), 1 + 0.5 * ULP, dtype=F32)
    first, second = ((rounded(values, keys, number) > 1) - 0.5 for number in (1, 2))
    nulls = np.ones(1, dtype=np.uint8)
    pairs = {
        "keys": (first[:-1], first[1:]),
        "columns": (first[:, :-1], first[:, 1:]),
        "far columns": (first[:, :8], first[:, 8:]),
        "steps": (first, second),
    }
    for what, (a, b) in pairs.items():
        assert abs(np.mean(a * b)) < 5 * 0.25 / np.sqrt(a.size), what
    group = make_group(16)
    step(group, keys[:1], -values[:1], nulls=nulls)
    missing = read(group, keys[:1], 16, nulls)
    assert not np.array_equal(missing > 1, first[:1] > 0)


def test_a_small_step_is_taken_now_and_then_where_rounding_to_nearest_would_never_move() -> None:
    keys = arange(64)
    group = make_group(32)
    step(group, keys, np.full((64, 32), -1.0))
    for number in range(2, 202):
        step(group, keys, np.full((64, 32), -ULP / 100), number)
    # 200 chances of 1 in 100 to rise by ULP: variance 200 * 0.01 * 0.99 ULP^2 an element, of 2048 of them.
    moved = read(group, keys, 32).mean(dtype=np.float64) - 1
    assert abs(moved - 2 * ULP) < 5 * np.sqrt(1.98 / 2048) * ULP


@pytest.mark.parametrize("rule", ["sgd", "rowwise_adagrad"])
def test_neither_the_batch_nor_its_order_nor_threads_decide_how_a_row_is_rounded(rule: str) -> None:
    random = np.random.default_rng(1)
    keys = random.permutation(arange(3000)) << np.uint64(33)
    grads = random.normal(size=(keys.size, 24)).astype(F32)
    together = make_group(24, rule=rule, b=0.1)
    step(together, keys, grads, 4)
    apart = make_group(24, rule=rule, b=0.1)
    order = random.permutation(keys.size)
    _native.set_num_threads(3)
    for part in np.array_split(order, 7):
        step(apart, keys[part], grads[part], 4)
    np.testing.assert_array_equal(read(together, keys, 24), read(apart, keys, 24))


@pytest.mark.parametrize("level", _native.simd_levels())
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_initial_rows_are_those_of_fp32_rounded_to_nearest_even(twin: ModuleType, kind: str, level: str) -> None:
    _native.set_simd_level(level)
    keys = arange(30) * np.uint64(0x9E3779B97F4A7C15)
    for dim in (1, 2, 7, 16, 33):
        group = make_group(dim, kind=kind, b=0.25)
        full = _native.RowGroup(
            dim, False, "sgd", None, [_native.TableInit(SEED, NULL_SEED, kind, -0.25 if kind == "uniform" else 0, 0.25)]
        )
        exact = np.empty((30, dim), dtype=F32)
        full.initial_records(0, keys, exact)
        records = np.full((30, group.record_floats), np.nan, dtype=F32)
        group.initial_records(0, keys, records)
        twins = twin.Group(dim, "sgd", None, [], dtype="bf16")
        expected = np.array([twins.stored(twins.rounded(row)) for row in exact])
        np.testing.assert_array_equal(records.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dim", [4, 5])
def test_a_record_holds_two_elements_a_word_then_weight_and_states_as_floats(dim: int) -> None:
    group = _native.RowGroup(dim, True, "adam", "adagrad", [_native.TableInit(1, 2, "normal", 0.0, 1.0)], dtype="bf16")
    words = (dim + 1) // 2
    assert group.layout() == {
        "vector": (0, words),
        "linear": (words, 1),
        "vector_state": (words + 1, 2 * dim),
        "linear_state": (words + 1 + 2 * dim, 1),
    }
    assert group.record_floats == words + 2 + 2 * dim
    row = np.arange(group.record_floats, dtype=F32)[None]
    halves = row.view(np.uint16)
    halves[0, : 2 * words] = 0
    halves[0, :dim] = [0x3F80, 0xBF80, 0x4000, 0x3F00, 0x4040][:dim]
    group.import_rows(0, arange(1), row)
    assert read(group, arange(1), dim).tolist() == [[1.0, -1.0, 2.0, 0.5, 3.0][:dim]]
    _, records, _ = group.export_rows(0, 0, 10)
    np.testing.assert_array_equal(records.view(np.uint32), row.view(np.uint32))


def test_an_unknown_dtype_and_a_dim_beyond_the_largest_are_refused() -> None:
    with pytest.raises(ValueError, match="dtype is 'fp16' and must be 'fp32' or 'bf16'"):
        _native.RowGroup(4, False, "sgd", None, [], dtype="fp16")
    with pytest.raises(ValueError, match="dim is 4097 and must be at most 4096"):
        make_group(4097)


def test_the_largest_dim_is_rounded_like_any_other(twin: ModuleType) -> None:
    values = 1 + np.random.default_rng(2).random((2, 4096)).astype(F32)
    keys = np.array([3, 2**64 - 1], dtype=np.uint64)
    for row, key, found in zip(values, keys, rounded(values, keys), strict=True):
        halves = twin.rounding_halves(SEED, int(key), 1, 4096)
        expected = [twin.bf16(value, half) for value, half in zip(row, halves, strict=True)]
        np.testing.assert_array_equal(found, expected)

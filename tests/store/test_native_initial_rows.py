"""First values of rows: published Philox answers, the distribution, the twin's bits, and that nothing else matters."""

from __future__ import annotations

from statistics import NormalDist
from types import ModuleType

import numpy as np
import pytest

from sfctr import _native

SEED = 0x123456789ABCDEF0


def initial(
    dim: int, keys: list[int], *, seed: int = SEED, kind: str = "normal", a: float = 0.0, b: float = 1.0
) -> np.ndarray:
    group = _native.RowGroup(dim, False, "sgd", None, [_native.TableInit(seed, seed + 1, kind, a, b)])
    records = np.full((len(keys), dim), np.nan, dtype=np.float32)
    group.initial_records(0, np.array(keys, dtype=np.uint64), records)
    return records


def test_the_twins_words_are_random123s_published_answers(twin: ModuleType) -> None:
    assert twin.philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert twin.philox([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, key = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]
    assert twin.philox(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_a_uniform_row_is_its_words_upper_24_bits() -> None:
    # Seed 0 and key 0 are Philox's all-zero answer: 0x6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    row = initial(4, [0], seed=0, kind="uniform", a=0.0, b=1.0)[0]
    assert row.tolist() == [x / 2**24 for x in (0x6627E8, 0xE169C5, 0xBC57AC, 0x9B00DB)]


def test_a_normal_row_is_the_inverse_distribution_at_its_words() -> None:
    row = initial(4, [0], seed=0, a=3.0, b=2.0)[0]
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    expected = [3 + 2 * NormalDist().inv_cdf((word + 0.5) / 2**32) for word in words]
    np.testing.assert_allclose(row, expected, rtol=1e-7)


def test_the_twins_normal_is_accurate_out_to_the_last_word(twin: ModuleType) -> None:
    edges = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, int(0.075 * 2**32), int(0.925 * 2**32)]
    words = np.concatenate([np.array(edges, dtype=np.uint32), np.arange(0, 2**32, 2**32 // 2000, dtype=np.uint32)])
    expected = [NormalDist().inv_cdf((int(word) + 0.5) / 2**32) for word in words]
    np.testing.assert_allclose(twin.standard_normal(words), expected, rtol=1e-12, atol=1e-15)
    grid = np.concatenate([np.geomspace(1e-10, 0.1, 500), [0.5, 0.7071067811865475, 0.7071067811865476, 1.0, 2.0]])
    np.testing.assert_allclose(twin.logarithm(grid), np.log(grid), rtol=1e-15)


@pytest.mark.parametrize("level", _native.simd_levels())
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_every_level_gives_the_twins_bits(twin: ModuleType, level: str, kind: str) -> None:
    _native.set_simd_level(level)
    keys = [0, 1, 2**63, 2**64 - 1, *(i * 0x9E3779B97F4A7C15 % 2**64 for i in range(60))]
    for dim in (1, 3, 4, 16, 33, 64):
        rows = initial(dim, keys, kind=kind, a=-0.05, b=0.25)
        for key, row in zip(keys, rows, strict=True):
            word = twin.words(SEED, key, dim)
            normal = (-0.05 + 0.25 * twin.standard_normal(word)).astype(np.float32)
            expected = normal if kind == "normal" else twin.uniform(word, -0.05, 0.25)
            np.testing.assert_array_equal(row.view(np.uint32), expected.view(np.uint32))


def test_values_look_like_their_distribution() -> None:
    normal = initial(16, list(range(20_000)), a=1.0, b=2.0)
    assert abs(normal.mean() - 1.0) < 0.02 and abs(normal.std() - 2.0) < 0.02
    inside = np.mean(np.abs(normal - 1.0) < 2.0)
    assert abs(inside - 0.6827) < 0.005
    uniform = initial(16, list(range(20_000)), kind="uniform", a=-1.0, b=3.0)
    assert uniform.min() >= -1.0 and uniform.max() < 3.0 and abs(uniform.mean() - 1.0) < 0.02
    assert abs(np.corrcoef(normal[:-1, 0], normal[1:, 0])[0, 1]) < 0.03


def test_a_row_depends_on_seed_and_key_alone() -> None:
    alone = initial(16, [77])[0]
    among = initial(16, [5, 6, 77, 8])[2]
    np.testing.assert_array_equal(alone, among)
    np.testing.assert_array_equal(alone[:8], initial(8, [77])[0])
    assert not np.array_equal(alone, initial(16, [77], seed=SEED + 1)[0])
    assert not np.array_equal(alone, initial(16, [77], seed=SEED + 2**32)[0])


def test_states_begin_as_given_and_the_weight_at_zero() -> None:
    init = _native.TableInit(1, 2, "uniform", 1.0, 1.0, state0=0.5, linear_state0=0.25)
    group = _native.RowGroup(3, True, "adagrad", "rowwise_adagrad", [init])
    records = np.empty((1, group.record_floats), dtype=np.float32)
    group.initial_records(1, np.zeros(1, dtype=np.uint64), records)
    assert records[0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.5, 0.5, 0.5, 0.25]
    group = _native.RowGroup(2, True, "adam_row", "ftrl", [init])
    records = np.empty((1, group.record_floats), dtype=np.float32)
    group.initial_records(0, np.zeros(1, dtype=np.uint64), records)
    assert records[0].tolist() == [1.0, 1.0, 0.0] + [0.0] * 5 + [0.0] * 2

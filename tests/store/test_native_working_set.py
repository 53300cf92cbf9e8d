"""Unique keys and virtual ids against the twin, for ordinary and for awkward keys."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfctr import _native

B = 50
AWKWARD = [0, 1, 2**64 - 1, 2**63, 2**63 - 1, *(i << 32 for i in range(1, 9)), 1234567890123456788, 1234567890123456789]


def native_set(num_tables: int, num_rows: int, features: list) -> _native.WorkingSet:
    return _native.WorkingSet(
        num_tables,
        num_rows,
        [
            _native.FeatureKeys(f.table, f.pooling, f.keys, f.offsets, f.nulls, f.weights, f.max_length, f.buckets)
            for f in features
        ],
    )


def assert_same(twin: ModuleType, num_tables: int, features: list, num_rows: int = B) -> _native.WorkingSet:
    keys, ids = twin.unique(num_tables, features)
    ws = native_set(num_tables, num_rows, features)
    assert ws.keys().tolist() == [key for _, key in keys]
    begin = [sum(table < t for table, _ in keys) for t in range(2 * num_tables + 1)]
    assert ws.table_begin().tolist() == begin
    for f in range(len(features)):
        np.testing.assert_array_equal(ws.virtual_ids(f), ids[f])
    return ws


def one(twin: ModuleType, table: int, keys: list[int], nulls: list[int] | None = None, buckets: int = 0) -> object:
    marks = None if nulls is None else np.array(nulls, dtype=np.uint8)
    return twin.Feature(table=table, pooling="one", keys=np.array(keys, dtype=np.uint64), nulls=marks, buckets=buckets)


def test_keys_are_numbered_by_table_then_by_first_appearance() -> None:
    first = _native.FeatureKeys(1, "one", np.array([7, 5, 7], dtype=np.uint64))
    second = _native.FeatureKeys(
        0, "one", np.array([9, 9, 8], dtype=np.uint64), nulls=np.array([0, 1, 0], dtype=np.uint8)
    )
    third = _native.FeatureKeys(1, "sum", np.array([5, 6], dtype=np.uint64), offsets=np.array([0, 0, 2, 2]))
    ws = _native.WorkingSet(2, 3, [first, second, third])
    # Table 0: keys 9, 8 and the missing value (native table 1, key 0); table 1: keys 7, 5, 6; nothing is missing there.
    assert ws.keys().tolist() == [9, 8, 0, 7, 5, 6]
    assert ws.table_begin().tolist() == [0, 2, 3, 6, 6]
    assert ws.virtual_ids(0).tolist() == [3, 4, 3]
    assert ws.virtual_ids(1).tolist() == [0, 2, 1]
    assert ws.virtual_ids(2).tolist() == [4, 5]
    assert (ws.num_unique, ws.num_rows) == (6, 3)


@settings(max_examples=150)
@given(data=st.data(), threads=st.sampled_from([1, 2, 3]))
def test_unique_keys_are_those_of_the_twin(twin: ModuleType, data: st.DataObject, threads: int) -> None:
    num_tables = data.draw(st.integers(1, 3))
    num_rows = data.draw(st.integers(0, 40))
    key = st.sampled_from(AWKWARD) | st.integers(0, 20) | st.integers(0, 2**64 - 1)
    features = []
    for _ in range(data.draw(st.integers(1, 4))):
        table, buckets = data.draw(st.integers(0, num_tables - 1)), data.draw(st.sampled_from([0, 1, 7, 2**40]))
        if data.draw(st.booleans()):
            keys = data.draw(st.lists(key, min_size=num_rows, max_size=num_rows))
            nulls = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=num_rows, max_size=num_rows))
            features.append(one(twin, table, keys, nulls, buckets))
        else:
            lengths = data.draw(st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows))
            keys = data.draw(st.lists(key, min_size=sum(lengths), max_size=sum(lengths)))
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            keys_array = np.array(keys, dtype=np.uint64)
            features.append(twin.Feature(table=table, pooling="sum", keys=keys_array, offsets=offsets, buckets=buckets))
    _native.set_num_threads(threads)
    assert_same(twin, num_tables, features, num_rows)


@pytest.mark.parametrize("stride", [1, 2**8, 2**32, 2**48, 0, 0x9E3779B97F4A7C15])
def test_strided_and_equal_keys_are_told_apart(stride: int) -> None:
    keys = (np.arange(100_000, dtype=np.uint64) * np.uint64(stride)).astype(np.uint64)
    ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys)])
    expected, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    assert ws.num_unique == expected.size
    np.testing.assert_array_equal(ws.keys(), keys[np.sort(first)])
    np.testing.assert_array_equal(ws.keys()[ws.virtual_ids(0)], expected[inverse])


def test_buckets_hash_as_documented(twin: ModuleType) -> None:
    keys = np.array(AWKWARD, dtype=np.uint64)
    out = np.empty_like(keys)
    _native.bucket_keys(keys, 1000, out)
    assert out.tolist() == [twin.bucket(key, 1000) for key in AWKWARD]
    # splitmix64's first output for seed 0 is 0xE220A8397B1DCDAF, of which bucket_of takes the high part of the product.
    assert out[0] == (0xE220A8397B1DCDAF * 1000) >> 64 == 883


def test_arrays_live_as_long_as_the_working_set_and_views_keep_it_alive() -> None:
    def make() -> tuple[np.ndarray, np.ndarray]:
        keys = np.arange(200_000, dtype=np.uint64)
        ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys)])
        return ws.keys(), ws.virtual_ids(0)

    keys, ids = make()
    _ = [make() for _ in range(3)]
    np.testing.assert_array_equal(keys, np.arange(200_000))
    np.testing.assert_array_equal(ids, np.arange(200_000))
    with pytest.raises(ValueError, match="read-only"):
        keys[0] = 1


KEYS3 = np.zeros(3, dtype=np.uint64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pooling": "one", "table": 2}, "feature 0: table is 2 and the group has 2"),
        ({"pooling": "one", "table": -1}, "table is -1"),
        ({"pooling": "one", "keys": np.zeros(2, dtype=np.uint64)}, "feature 0: .* has 2 keys for 3 rows"),
        ({"pooling": "one", "offsets": np.arange(4)}, "takes no offsets"),
        ({"pooling": "one", "nulls": np.zeros(2, dtype=np.uint8)}, "nulls has 2 entries and the feature has 3 keys"),
        ({"pooling": "sum"}, "offsets has 0 entries and must have one more than the 3 rows"),
        ({"pooling": "sum", "offsets": np.array([0, 2, 1, 3])}, "offsets fall at row 1"),
        ({"pooling": "sum", "offsets": np.array([0, 1, 2, 2])}, "offsets must run from 0 to 3"),
        ({"pooling": "sum", "offsets": np.arange(4), "nulls": np.zeros(3, dtype=np.uint8)}, "nulls belong to"),
        (
            {"pooling": "mean", "offsets": np.arange(4), "weights": np.zeros(2, dtype=np.float32)},
            "weights has 2 entries",
        ),
        (
            {"pooling": "sequence", "offsets": np.array([0, 0, 3, 3]), "max_length": 2},
            "row 1 has 3 keys and max_length is 2",
        ),
        (
            {"pooling": "sequence", "offsets": np.arange(4), "max_length": 2, "weights": np.zeros(3, dtype=np.float32)},
            "a sequence takes no weights",
        ),
        ({"pooling": "max"}, "pooling is 'max' and must be"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_features_number(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _native.WorkingSet(2, 3, [_native.FeatureKeys(**({"table": 0, "keys": KEYS3} | arguments))])


@pytest.mark.parametrize(
    "keys",
    [
        np.zeros(3, dtype=np.int64),
        np.zeros(3, dtype=np.float64),
        np.zeros((3, 1), dtype=np.uint64),
        np.zeros(6, dtype=np.uint64)[::2],
    ],
)
def test_keys_of_another_type_or_stride_are_refused_rather_than_copied(keys: np.ndarray) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        _native.FeatureKeys(0, "one", keys)


def test_a_batch_without_rows_and_a_group_without_features_are_fine() -> None:
    empty = np.zeros(0, dtype=np.uint64)
    bag = _native.FeatureKeys(0, "mean", empty, offsets=np.zeros(1, dtype=np.int64))
    assert _native.WorkingSet(1, 0, [_native.FeatureKeys(0, "one", empty), bag]).num_unique == 0
    assert _native.WorkingSet(3, 8, []).table_begin().tolist() == [0] * 7

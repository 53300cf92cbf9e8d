"""What is kept of the accesses: every one to the keys kept, whichever share of them that is."""

from random import Random

import numpy as np
import pytest

from sfctr import _native
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.errors import ConfigError
from sfctr.spec.schema import Bag, Categorical, Dense, Schema, Sequence
from sfctr.trace import Accesses, Recording, TracedTable

Rows = list[list[int | None]]


def one(values):
    nulls = np.array([value is None for value in values], dtype=np.uint8)
    keys = np.array([0 if value is None else value % 2**64 for value in values], dtype=np.uint64)
    return Keys(keys=keys, nulls=nulls if nulls.any() else None)


def many(lists):
    flat = np.array([key % 2**64 for keys in lists for key in keys], dtype=np.uint64)
    return Keys(keys=flat, offsets=np.cumsum([0, *map(len, lists)], dtype=np.int64))


def batch(**keys: Keys) -> Batch:
    sizes = {len(k.keys) if k.offsets is None else len(k.offsets) - 1 for k in keys.values()}
    (size,) = sizes
    return Batch(
        size=size,
        keys=keys,
        labels=np.zeros((size, 0), np.float32),
        label_mask=np.zeros((size, 0), np.bool_),
        rows=np.arange(size),
    )


def table(name, **more):
    return TracedTable(name=name, row_bytes=192, index_bytes=24, **more)


def logged(recording: Recording, place: int = 0) -> list[list[int]]:
    """Rows of a table's accesses, by batch."""
    accesses = Accesses.of_log(recording.logs[place])
    return [part.tolist() for part in np.split(accesses.rows, accesses.batch_begin[1:-1])]


ITEMS = Schema(label="click", features=[Categorical("item")])


def test_an_access_is_a_distinct_key_of_a_batch():
    recording = Recording(ITEMS, [table("item")], 10**6)
    for values in ([7, 5, 7, 7], [5, 5], [9, 7]):
        recording.add(batch(item=one(values)))
    assert logged(recording) == [[0, 1], [1], [2, 0]]
    assert (recording.num_rows, recording.lookups.tolist(), recording.unique().tolist()) == (8, [8], [[2], [1], [2]])


def test_a_missing_value_has_a_row_of_its_own_beside_key_0():
    recording = Recording(ITEMS, [table("item")], 10**6)
    for values in ([0, None], [None, None, 0], [0]):
        recording.add(batch(item=one(values)))
    assert logged(recording) == [[0, 1], [0, 1], [0]]
    assert (recording.lookups.tolist(), recording.missing.tolist()) == ([6], [3])
    assert recording.unique().tolist() == [[2], [2], [1]]


def test_all_64_bits_of_a_key_count():
    recording = Recording(ITEMS, [table("item")], 10**6)
    recording.add(batch(item=one([0, 2**63, 2**64 - 1, 2**32, 1])))
    assert logged(recording) == [[0, 1, 2, 3, 4]]


def test_features_that_share_a_table_share_its_rows():
    features = [Categorical("item"), Bag("seen", table="item"), Sequence("history", table="item"), Categorical("user")]
    schema = Schema(label="click", features=[*features, Dense("price")])
    recording = Recording(schema, [table("user"), table("item")], 10**6)
    recording.add(
        batch(item=one([1, None]), seen=many([[2, 1], []]), history=many([[3], [3, 2]]), user=one([1, 1])),
    )
    assert (logged(recording, 0), logged(recording, 1)) == ([[0]], [[0, 1, 2, 3]])
    assert recording.lookups.tolist() == [2, 7]
    assert recording.missing.tolist() == [0, 1]
    assert recording.features_of(1) == ("item", "seen", "history")


def test_a_table_with_buckets_has_no_more_rows_than_buckets():
    recording = Recording(ITEMS, [table("item", buckets=5)], 10**6)
    recording.add(batch(item=one(range(1000))))
    assert recording.logs[0].num_rows == 5
    assert recording.unique().tolist() == [[5]]


def test_features_of_other_tables_are_left_out():
    schema = Schema(label="click", features=[Categorical("item"), Categorical("hour")])
    recording = Recording(schema, [table("item")], 10**6)
    recording.add(batch(item=one([1, 2]), hour=one([3, 3])))
    assert recording.lookups.tolist() == [2]


def test_where_nothing_is_traced_it_says_so():
    with pytest.raises(ConfigError, match="there is nothing to trace"):
        Recording(Schema(label="click", features=[Dense("price")]), [], 10**6)


def test_a_bound_below_a_megabyte_is_refused():
    with pytest.raises(ConfigError, match="999,999 bytes and must be at least 1,000,000"):
        Recording(ITEMS, [table("item")], 999_999)


def skewed_batches(num_batches: int, size: int, num_keys: int) -> list[list[int]]:
    draw = Random(5)
    return [[int(num_keys * draw.random() ** 2) for _ in range(size)] for _ in range(num_batches)]


def test_a_recording_stays_within_its_bound_and_loses_no_count():
    batches = skewed_batches(60, 10_000, 200_000)
    bounded, free = (Recording(ITEMS, [table("item")], bound) for bound in (1_000_000, 10**9))
    most = 0
    for values in batches:
        for recording in (bounded, free):
            recording.add(batch(item=one(values)))
        most = max(most, bounded.logs[0].memory_bytes)
    assert bounded.logs[0].halvings >= 2
    assert most <= 1_000_000 < free.logs[0].memory_bytes
    assert bounded.unique().tolist() == free.unique().tolist()
    assert bounded.lookups.tolist() == free.lookups.tolist()


def test_what_is_kept_of_a_sample_is_the_whole_with_other_keys_left_out():
    batches = skewed_batches(60, 10_000, 200_000)
    bounded, free = (Recording(ITEMS, [table("item")], bound) for bound in (1_000_000, 10**9))
    for values in batches:
        for recording in (bounded, free):
            recording.add(batch(item=one(values)))
    log = bounded.logs[0]
    part = free.logs[0].part(0, log.halvings)
    assert np.array_equal(part.rows(), log.rows())
    assert np.array_equal(part.batch_begin(), log.batch_begin())
    assert abs(part.num_rows * 2**log.halvings / free.logs[0].num_rows - 1) < 0.05


def test_the_largest_log_is_halved_and_small_ones_are_kept_whole():
    schema = Schema(label="click", features=[Categorical("item"), Categorical("hour")])
    recording = Recording(schema, [table("hour"), table("item")], 1_000_000)
    for number in range(40):
        values = range(number * 5000, number * 5000 + 10_000)
        recording.add(batch(item=one(values), hour=one([v % 24 for v in values])))
    assert recording.logs[0].halvings == 0 < recording.logs[1].halvings


def test_parts_of_a_log_divide_its_keys():
    recording = Recording(ITEMS, [table("item")], 10**9)
    for values in skewed_batches(5, 500, 2000):
        recording.add(batch(item=one([*values, None])))
    log = recording.logs[0]
    parts = [log.part(number, 2) for number in range(4)]
    assert sum(part.num_rows for part in parts) == log.num_rows
    assert sum(part.num_accesses for part in parts) == log.num_accesses
    assert [part.halvings for part in parts] == [2] * 4
    assert all(len(part.batch_begin()) == 6 for part in parts)
    for wrong in ((4, 2), (0, 17)):
        with pytest.raises(ValueError, match="there is no part"):
            log.part(*wrong)


def test_a_working_set_needs_a_log_for_each_of_its_tables():
    keys = _native.FeatureKeys(0, "one", np.array([1], dtype=np.uint64))
    working_set = _native.WorkingSet(2, 1, [keys])
    with pytest.raises(ValueError, match="1 logs and the working set has 2 tables"):
        _native.log_working_set(working_set, [_native.AccessLog()])

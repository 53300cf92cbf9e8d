"""Native replays and reuse counts against plain Python, against each other, and against answers worked out by hand."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfctr import _native
from sfctr.trace import Accesses

from . import twins

EVICTING = ["lru", "clock", "lfu", "frequency", "window", "optimal"]
POLICIES = [*EVICTING, "hot_set"]

batches_of_keys = st.lists(st.lists(st.integers(0, 9), unique=True, max_size=7), min_size=1, max_size=9)

# Silberschatz and Galvin's reference string, each reference a batch.
TEXTBOOK = [[key] for key in (7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1)]


def hits(batches, policy, capacity, window=0):
    return Accesses.of_batches(batches).hits(policy, [capacity], window=window)[0]


@pytest.mark.parametrize(
    ("policy", "capacity", "expected"),
    [
        ("optimal", 3, 11),  # 9 faults in the book
        ("lru", 3, 8),  # 12 faults in the book
        ("hot_set", 3, 11),  # 0 is used six times, 2 and 1 four times
        ("lru", 6, 14),
        ("optimal", 6, 14),
    ],
)
def test_the_textbooks_string_has_the_textbooks_faults(policy, capacity, expected):
    assert hits(TEXTBOOK, policy, capacity) == expected


@pytest.mark.parametrize(
    ("batches", "policy", "window", "expected"),
    [
        # c evicts a, the oldest; b is still there.
        ([[1, 2], [3], [2]], "lru", 0, 1),
        ([[1, 2], [3], [1]], "lru", 0, 0),
        # 1 was used twice and 2 once, so 3 evicts 2.
        ([[1], [2], [1], [3], [1]], "lfu", 0, 2),
        # Counts are kept over an eviction: 2 comes back with a count of 2, level with 1, which was used longer ago.
        ([[2], [1], [3], [1], [2], [4], [2]], "lfu", 0, 2),
        # 1, 2 and 3 are marked; 4 clears all marks and takes the place of 1; 2, marked again, outlives 3 when 5 comes.
        ([[1], [2], [4], [2], [5], [2]], "clock", 0, 1),
        # 2 is used three times in all and 1 twice, so 3 evicts 1 although it was used last.
        ([[2], [1], [3], [2], [1], [2]], "frequency", 0, 2),
        # Nothing beyond the batch is known, and this is LRU: 3 evicts 1.
        ([[1], [2], [3], [1]], "window", 0, 0),
        # At 3 the next use of 1 is known, and 2 goes.
        ([[1], [2], [3], [1]], "window", 1, 1),
        # At 3 both are known, and 2, needed last, goes.
        ([[1], [2], [3], [1], [2]], "window", 2, 1),
        ([[1], [2], [3], [2], [1]], "window", 2, 1),
        # All of a batch is known when it begins: 3 evicts 1, although 2 was used longer ago.
        ([[2, 1], [3, 2]], "window", 0, 1),
    ],
)
def test_a_cache_of_two_rows_does_what_paper_and_pencil_say(batches, policy, window, expected):
    assert hits(batches, policy, 2, window) == expected
    assert twins.hits(policy, batches, 2, window) == expected


@given(batches_of_keys, st.sampled_from(POLICIES), st.integers(1, 10), st.integers(0, 9))
def test_every_policy_has_the_hits_of_its_twin(batches, policy, capacity, window):
    assert hits(batches, policy, capacity, window) == twins.hits(policy, batches, capacity, window)


@given(batches_of_keys, st.sampled_from(EVICTING), st.integers(1, 9), st.integers(0, 9))
def test_none_has_more_hits_than_the_optimum(batches, policy, capacity, window):
    assert hits(batches, policy, capacity, window) <= hits(batches, "optimal", capacity)


@given(batches_of_keys, st.integers(1, 9))
def test_a_hot_set_has_no_more_hits_than_the_optimum_with_a_place_for_what_passes(batches, capacity):
    assert hits(batches, "hot_set", capacity) <= hits(batches, "optimal", capacity + 1)


@given(batches_of_keys, st.integers(1, 9))
def test_a_window_over_everything_is_the_optimum(batches, capacity):
    assert hits(batches, "window", capacity, len(batches)) == hits(batches, "optimal", capacity)


@given(batches_of_keys, st.sampled_from([p for p in POLICIES if p != "clock"]), st.integers(0, 9))
def test_a_larger_cache_never_has_fewer_hits_but_under_clock(batches, policy, window):
    found = Accesses.of_batches(batches).hits(policy, range(1, 11), window=window)
    assert np.all(np.diff(found.astype(np.int64)) >= 0)


@given(batches_of_keys, st.sampled_from(POLICIES))
def test_a_cache_of_all_rows_misses_no_repeat(batches, policy):
    accesses = Accesses.of_batches(batches)
    assert hits(batches, policy, max(accesses.num_rows, 1)) == accesses.num_repeats


@given(batches_of_keys)
def test_stack_distances_give_the_hits_of_lru_at_every_size(batches):
    accesses = Accesses.of_batches(batches)
    by_distance = accesses.lru_hits()
    assert by_distance[0] == 0
    assert by_distance[1:].tolist() == [twins.hits("lru", batches, c) for c in range(1, accesses.num_rows + 1)]
    assert accesses.stack_distances().sum() == len(accesses.rows)


@given(batches_of_keys, st.integers(0, 9))
def test_rows_ahead_are_the_union_of_the_window(batches, window):
    assert Accesses.of_batches(batches).rows_ahead(window).tolist() == twins.rows_ahead(batches, window)


@given(batches_of_keys)
def test_gaps_are_counted_in_batches(batches):
    accesses = Accesses.of_batches(batches)
    assert accesses.gap_counts().tolist() == twins.gap_counts(batches)
    assert accesses.gap_counts().sum() == accesses.num_repeats


def skewed(num_batches: int, batch_size: int, num_keys: int) -> list[list[int]]:
    draw = random.Random(1)
    return [sorted({int(num_keys * draw.random() ** 3) for _ in range(batch_size)}) for _ in range(num_batches)]


def test_a_long_sequence_agrees_with_an_ordered_dict():
    batches = skewed(300, 200, 3000)
    accesses = Accesses.of_batches(batches)
    capacities = [1, 30, 500, 2000, 3000]
    expected = [twins.lru_hits(batches, capacity) for capacity in capacities]
    assert accesses.hits("lru", capacities).tolist() == expected
    by_distance = accesses.lru_hits()
    assert [by_distance[min(c, accesses.num_rows)] for c in capacities] == expected


def test_threads_change_no_count():
    accesses = Accesses.of_batches(skewed(50, 100, 800))
    one = [accesses.hits(policy, range(1, 40, 3), window=2).tolist() for policy in POLICIES]
    _native.set_num_threads(3)
    try:
        assert [accesses.hits(policy, range(1, 40, 3), window=2).tolist() for policy in POLICIES] == one
    finally:
        _native.set_num_threads(1)


def test_nothing_at_all_has_no_hits():
    for batches in ([], [[]], [[], []]):
        accesses = Accesses.of_batches(batches)
        assert [accesses.hits(policy, [1, 5]).tolist() for policy in POLICIES] == [[0, 0]] * len(POLICIES)
        assert accesses.lru_hits().tolist() == [0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"num_rows": 2}, "row 2 is not below num_rows, 2"),
        ({"batch_begin": np.array([0, 2])}, "batch_begin must run from 0 to 3"),
        ({"batch_begin": np.array([], dtype=np.int64)}, "batch_begin must run from 0 to 3"),
        ({"batch_begin": np.array([0, 5, 3])}, "batch_begin falls"),
        ({"policy": "fifo"}, "there is no policy 'fifo'"),
        ({"capacities": np.array([3, 0], dtype=np.uint64)}, "a capacity is 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, expected):
    good = {
        "rows": np.array([0, 1, 2], dtype=np.uint32),
        "batch_begin": np.array([0, 1, 3]),
        "num_rows": 3,
        "policy": "lru",
        "capacities": np.array([1], dtype=np.uint64),
    }
    assert _native.replay(**good).tolist() == [0]
    with pytest.raises(ValueError, match=expected):
        _native.replay(**(good | change))


def test_arrays_of_another_type_are_refused_and_not_converted():
    rows, begin = np.array([0, 1], dtype=np.int64), np.array([0, 2])
    with pytest.raises(TypeError):
        _native.replay(rows, begin, 2, "lru", np.array([1], dtype=np.uint64))


def test_the_number_of_a_row_follows_its_first_appearance():
    accesses = Accesses.of_batches([[9, 7], [], [7, 5]])
    assert (accesses.rows.tolist(), accesses.batch_begin.tolist(), accesses.num_rows) == ([0, 1, 1, 2], [0, 2, 2, 4], 3)
    assert accesses.uses().tolist() == [1, 2, 1]
    assert list(itertools.chain(accesses.stack_distances())) == [3, 1, 0, 0]

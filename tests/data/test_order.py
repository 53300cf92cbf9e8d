"""The order of a shuffled epoch is a function of seed, epoch and the number of rows, and its slow twin says which."""

from __future__ import annotations

import numpy as np
import pytest

from sfctr.data import epoch_order
from sfctr.data import order as order_module
from sfctr.data.order import BLOCK, LANES, EpochOrder, hash_of, lane_bounds, lanes_of, mix64
from sfctr.spec.errors import ConfigError

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def slow_mix(z: int) -> int:
    z = (z + GOLDEN) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def slow_hash(*numbers: int) -> int:
    h = 0
    for number in numbers:
        h = slow_mix(h ^ (number & MASK))
    return h


def slow_shuffle(base: int, numbers) -> list[int]:
    return sorted(numbers, key=lambda n: slow_mix(base ^ n))


def slow_order(seed: int, epoch: int, num_rows: int, block: int) -> list[int]:
    """By lists: cut the rows into lanes, permute the blocks of each, permute windows, take lanes in turn."""
    lanes, start = [], 0
    for lane in range(LANES):
        size = max(0, (num_rows - lane + LANES - 1) // LANES)
        own = list(range(start, start + size))
        start += size
        blocks = [own[at : at + block] for at in range(0, size, block)]
        rows = [row for b in slow_shuffle(slow_hash(seed, epoch, lane + 1, 0), range(len(blocks))) for row in blocks[b]]
        windows = [range(at, min(at + block, size)) for at in range(0, size, block)]
        lanes.append([rows[at] for window in windows for at in slow_shuffle(slow_hash(seed, epoch, lane + 1), window)])
    return [lanes[i % LANES][i // LANES] for i in range(num_rows)]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(order_module, "BLOCK", 8)
    monkeypatch.setattr(order_module, "SPAN", 8 * LANES)


def test_the_hash_is_that_of_its_twin():
    numbers = np.array([0, 1, 2**63, MASK], np.uint64)
    assert mix64(numbers).tolist() == [slow_mix(int(n)) for n in numbers]
    assert mix64(np.zeros(1, np.uint64))[0] == 0xE220A8397B1DCDAF  # the first output of splitmix64 seeded with 0
    assert hash_of(-1, 7) == slow_hash(-1, 7)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 8, 15, 16, 17, 100, 127, 128, 129, 300, 1000])
def test_the_order_is_that_of_its_twin(small_blocks, num_rows):
    for seed, epoch in ((0, 0), (3, 1), (-5, 2)):
        assert epoch_order(seed, epoch, num_rows).tolist() == slow_order(seed, epoch, num_rows, 8)


def test_the_order_is_that_of_its_twin_at_full_size():
    num_rows = BLOCK * LANES + 12_345
    assert epoch_order(1, 2, num_rows).tolist() == slow_order(1, 2, num_rows, BLOCK)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (5, 200), (127, 129), (128, 256), (250, 300), (300, 400)])
def test_a_part_of_the_order_is_cut_from_the_whole(small_blocks, start, stop):
    whole = epoch_order(0, 0, 300)
    assert epoch_order(0, 0, 300, start, stop).tolist() == whole[start:stop].tolist()


def test_every_row_comes_once_and_seeds_and_epochs_differ():
    orders = [epoch_order(seed, epoch, 50_000) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(50_000))
    for a in range(4):
        for b in range(a):
            assert (orders[a] != orders[b]).mean() > 0.99


def test_the_first_batch_is_drawn_from_all_over_the_rows():
    rows = epoch_order(0, 0, 1_000_000)[:4096]
    counts, _ = np.histogram(rows, bins=10, range=(0, 1_000_000))
    assert counts.min() > 0


def test_a_lane_has_the_same_rows_in_every_epoch_and_they_follow_each_other():
    for num_rows in (5, 16, 50_001):
        bounds = lane_bounds(num_rows)
        assert (
            bounds[0] == 0 and bounds[-1] == num_rows and set(np.diff(bounds)) <= {num_rows // 16, num_rows // 16 + 1}
        )
        for epoch in (0, 1):
            order = epoch_order(9, epoch, num_rows)
            for lane in range(LANES):
                assert np.sort(order[lane::LANES]).tolist() == list(range(bounds[lane], bounds[lane + 1]))


def test_blocks_of_a_lane_change_places_from_epoch_to_epoch(small_blocks):
    """A lane of 800 rows has 100 blocks: in which of them the rows of its first window lie."""
    first = [
        sorted({int(row) // 8 for row in epoch_order(0, epoch, 16 * 800)[: 8 * LANES : LANES]}) for epoch in range(4)
    ]
    assert len({tuple(blocks) for blocks in first}) == 4


@pytest.mark.parametrize("lanes", [range(0), range(4), range(4, 16), range(5, 6), range(16)])
@pytest.mark.parametrize("num_rows", [0, 3, 127, 128, 300, 1000])
def test_some_lanes_have_their_rows_of_the_whole_order(small_blocks, num_rows, lanes):
    whole = epoch_order(1, 1, num_rows)
    order = EpochOrder(1, 1, num_rows, lanes)
    spans = [order.span(number) for number in range(-(-num_rows // (8 * LANES)))]
    rows = [int(row) for span in spans for row in span[0]]
    assert rows == [row for row in range(num_rows) if row % LANES in lanes]
    assert [int(position) for span in spans for position in span[1]] == [int(whole[row]) for row in rows]


def test_lanes_are_dealt_out_as_equally_as_may_be_or_by_shares():
    assert [lanes_of(rank, 1) for rank in range(1)] == [range(16)]
    assert [lanes_of(rank, 3) for rank in range(3)] == [range(5), range(5, 10), range(10, 16)]
    assert [len(lanes_of(rank, 32)) for rank in range(32)] == [0, 1] * 16
    assert [lanes_of(rank, 3, (4, 0, 12)) for rank in range(3)] == [range(4), range(4, 4), range(4, 16)]


@pytest.mark.parametrize("shares", [(8, 7), (8, 8, 0), (17, -1)])
def test_shares_that_do_not_fit_the_processes_or_the_lanes_are_refused(shares):
    with pytest.raises(ConfigError, match=r"parallel.shares is \[.*\] and must be 2 numbers .* add up to 16 lanes"):
        lanes_of(0, 2, shares)

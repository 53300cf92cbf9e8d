"""Rows on several ranks: what one process computes, whoever owns them and whoever reads which rows."""

import numpy as np
import pytest

import sfctr
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Parallel

from . import worlds

SCHEMA = sfctr.Schema(
    label="click",
    time=sfctr.TimeColumn("at"),
    features=[
        sfctr.Categorical("user", table="user"),
        sfctr.Bag("tags", table="tag", pooling="mean"),
        sfctr.Sequence("history", table="user", max_length=4),
        sfctr.Categorical("site", table="site"),
    ],
)
TABLES = [
    sfctr.Table("user", dim=5, optimizer=sfctr.Adam(lr=0.05)),
    sfctr.Table("tag", dim=5, optimizer=sfctr.Adagrad(lr=0.1), linear=sfctr.FTRL(lr=0.1)),
    sfctr.Table("site", dim=3, optimizer=sfctr.SGD(lr=0.2), dtype="bf16"),
]


def random_batch(rng: np.random.Generator, size: int, first: int) -> Batch:
    def ragged(most: int, high: int) -> Keys:
        lengths = rng.integers(0, most + 1, size)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Keys(keys=rng.integers(0, high, offsets[-1]).astype(np.uint64), offsets=offsets)

    nulls = (rng.random(size) < 0.2).astype(np.uint8)
    user = np.where(nulls == 1, 0, rng.integers(0, 30, size)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return Batch(
        size=size,
        keys={
            "user": Keys(keys=user, nulls=nulls),
            "tags": ragged(3, 12),
            "history": ragged(4, 30),
            "site": Keys(keys=rng.integers(0, 9, size).astype(np.uint64)),
        },
        labels=np.zeros((size, 1), np.float32),
        label_mask=np.ones((size, 1), np.bool_),
        rows=np.arange(first, first + size),
        time=np.arange(first, first + size) * 10**9,
    )


def batches_of(num: int, size: int, seed: int = 1) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [random_batch(rng, size, number * size) for number in range(num)]


BATCHES = batches_of(12, 16)
VIEWS = batches_of(3, 16, seed=2)


@pytest.fixture(scope="module")
def alone():
    return worlds.train(BATCHES, SCHEMA, TABLES, views=VIEWS)


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("counts", [[1, 1], [3, 1], [4, 0], [1, 1, 1], [2, 0, 1, 1]], ids=str)
def test_ranks_come_to_what_one_process_comes_to(alone, counts, window):
    found = worlds.train(BATCHES, SCHEMA, TABLES, size=len(counts), counts=counts, window=window, views=VIEWS)
    worlds.same_rows(alone, found, atol=3e-6)
    np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-6)
    for one, other in zip(alone.viewed, found.viewed, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=3e-6)


def test_two_runs_of_the_same_ranks_have_the_same_bits():
    one, other = (worlds.train(BATCHES, SCHEMA, TABLES, size=3, window=window) for window in (0, 4))
    worlds.same_rows(one, other)


MEMBERS = [
    sfctr.Table("user", dim=5, optimizer=sfctr.Adam(lr=0.05), admit_after=2, unseen="rare", expire_after_steps=5),
    sfctr.Table("tag", dim=5, optimizer=sfctr.Adagrad(lr=0.1), linear=sfctr.FTRL(lr=0.1), capacity=6),
    sfctr.Table("site", dim=3, optimizer=sfctr.SGD(lr=0.2), expire_after="40s"),
]


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_who_has_a_row_does_not_depend_on_ranks(size, window):
    one = worlds.train(BATCHES, SCHEMA, MEMBERS, views=VIEWS)
    found = worlds.train(BATCHES, SCHEMA, MEMBERS, size=size, window=window, views=VIEWS)
    worlds.same_rows(one, found, atol=3e-6)
    for mine, others in zip(one.viewed, found.viewed, strict=True):
        np.testing.assert_allclose(others, mine, rtol=0, atol=3e-6)


TIERS = {
    "disk": lambda rank: sfctr.Tiers(ram="20KB"),
    "device": lambda rank: sfctr.Tiers(ram="64MB", device="3KB"),
    "each its own": lambda rank: [sfctr.Tiers(ram="20KB"), sfctr.Tiers(ram="64MB", device="3KB"), sfctr.Tiers()][rank],
}


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("name", TIERS)
def test_tiers_change_no_bit_on_ranks(name, window, tmp_path):
    one = worlds.train(BATCHES, SCHEMA, TABLES, size=3, views=VIEWS)
    found = worlds.train(
        BATCHES, SCHEMA, TABLES, size=3, window=window, tiers=TIERS[name], directory=str(tmp_path), views=VIEWS
    )
    worlds.same_rows(one, found)
    for mine, others in zip(one.viewed, found.viewed, strict=True):
        np.testing.assert_array_equal(others, mine)


ALLREDUCE = Parallel(sync="allreduce")


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("counts", [[1, 1], [3, 1], [4, 0], [1, 1, 1], [2, 0, 1, 1]], ids=str)
def test_both_ways_of_synchronising_come_to_the_same_bits(counts, window):
    size = len(counts)
    one = worlds.train(BATCHES, SCHEMA, TABLES, size=size, counts=counts, views=VIEWS)
    found = worlds.train(
        BATCHES, SCHEMA, TABLES, size=size, counts=counts, window=window, options=ALLREDUCE, views=VIEWS
    )
    worlds.same_rows(one, found)
    assert found.losses == one.losses
    for mine, others in zip(one.viewed, found.viewed, strict=True):
        np.testing.assert_array_equal(others, mine)


@pytest.mark.parametrize("sync", ["owners", "allreduce"])
def test_where_tables_are_changes_no_bit(sync):
    placed = [
        sfctr.Table("user", dim=5, optimizer=sfctr.Adam(lr=0.05), placement="one"),
        sfctr.Table("tag", dim=5, optimizer=sfctr.Adagrad(lr=0.1), linear=sfctr.FTRL(lr=0.1), placement="replicated"),
        sfctr.Table("site", dim=3, optimizer=sfctr.SGD(lr=0.2), dtype="bf16", placement="replicated"),
    ]
    one = worlds.train(BATCHES, SCHEMA, TABLES, size=3, views=VIEWS)
    found = worlds.train(BATCHES, SCHEMA, placed, size=3, window=3, options=Parallel(sync=sync), views=VIEWS)
    worlds.same_rows(one, found)
    for mine, others in zip(one.viewed, found.viewed, strict=True):
        np.testing.assert_array_equal(others, mine)


@pytest.mark.parametrize("name", TIERS)
def test_copies_that_leave_ram_are_brought_again(name, tmp_path):
    one = worlds.train(BATCHES, SCHEMA, TABLES, size=3)
    found = worlds.train(
        BATCHES, SCHEMA, TABLES, size=3, window=2, tiers=TIERS[name], directory=str(tmp_path), options=ALLREDUCE
    )
    worlds.same_rows(one, found)

"""Small steps on several ranks, worked out by hand. Rows begin at 1; a row's loss is its label times its feature."""

import numpy as np
import pytest
import torch

import sfctr
from sfctr.parallel.owners import owners_of, shards_of
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Parallel

from . import worlds

ONE = sfctr.Normal(mean=1.0, std=0.0)
BAG = sfctr.Schema(label="y", features=[sfctr.Bag("tags", table="tag", pooling="mean")])

both_ways = pytest.mark.parametrize("options", [Parallel(), Parallel(sync="allreduce")], ids=["owners", "allreduce"])


def key_of(rank: int, size: int) -> int:
    """The smallest key that a rank owns."""
    keys = np.arange(1, 1000, dtype=np.uint64)
    return int(keys[owners_of("sharded", size)[shards_of(keys)] == rank][0])


def batch(bags: list[list[int]], labels: list[float]) -> Batch:
    offsets = np.cumsum([0, *map(len, bags)]).astype(np.int64)
    return Batch(
        size=len(bags),
        keys={"tags": Keys(keys=np.array([key for bag in bags for key in bag], np.uint64), offsets=offsets)},
        labels=np.array(labels, np.float32)[:, None],
        label_mask=np.ones((len(bags), 1), np.bool_),
        rows=np.arange(len(bags)),
    )


def train(batches, optimizer, *, counts, options, seen=None):
    def loss(features, part):
        found = features["tags"][:, 0]
        if seen is not None:
            seen.extend(zip(part.places.tolist(), found.tolist(), strict=True))
        return (found.double() * torch.from_numpy(part.labels[:, 0])).sum() / part.whole_size

    tables = [sfctr.Table("tag", dim=1, init=ONE, optimizer=optimizer)]
    found = worlds.train(batches, BAG, tables, size=len(counts), counts=counts, options=options, loss=loss)
    return {key: row.tolist() for (_, key), row in found.rows["tag"].items()}


@both_ways
def test_the_mean_is_over_the_rows_of_all_ranks(options):
    # Gradients 4, 8, 12 and 40 of four rows: 64 / 4 = 16. A mean of the ranks' own means would be (8 + 40) / 2 = 24.
    key = key_of(1, 2)
    rows = train([batch([[key]] * 4, [4, 8, 12, 40])], sfctr.SGD(lr=1 / 16), counts=[3, 1], options=options)
    assert rows == {key: [0.0]}


@both_ways
def test_a_bag_may_have_ids_of_two_ranks(options):
    here, there = key_of(0, 2), key_of(1, 2)
    seen = []
    batches = [batch([[there]], [4.0]), batch([[here, there]], [8.0])]
    rows = train(batches, sfctr.SGD(lr=0.125), counts=[1, 0], options=options, seen=seen)
    # Step 1 takes `there` from 1 to 1 - 4 / 8 = 0.5; the mean with `here` is then 0.75, and each gets half of 8.
    assert [value for _, value in seen] == [1.0, 0.75]
    assert rows == {here: [0.5], there: [0.0]}


@both_ways
def test_an_id_of_three_ranks_is_updated_once_by_the_sum(options):
    # Gradients 9 / 3, 6 / 3 and -9 / 3 add up to 2, so Adagrad has 4 in its state and moves by lr * 2 / sqrt(4).
    key = key_of(2, 3)
    rows = train([batch([[key]] * 3, [9, 6, -9])], sfctr.Adagrad(lr=0.5), counts=[1, 1, 1], options=options)
    assert rows == {key: [0.5, 4.0]}


@both_ways
def test_an_id_may_be_of_a_rank_that_has_no_data(options):
    key = key_of(1, 2)
    rows = train([batch([[key], [key]], [1.0, 3.0])], sfctr.SGD(lr=0.25), counts=[2, 0], options=options)
    assert rows == {key: [0.5]}


@both_ways
def test_steps_without_rows_anywhere_but_on_one_rank_count_for_all(options):
    # Adam's bias correction goes by committed steps: 3, whoever had rows of them.
    key = key_of(0, 2)
    one = batch([[key]], [1.0])
    alone = train([one, one, one], sfctr.Adam(lr=0.25), counts=[1, 0], options=options)
    other = train([one, one, one], sfctr.Adam(lr=0.25), counts=[0, 1], options=options)
    assert alone == other and abs(alone[key][0] - 0.25) < 1e-6

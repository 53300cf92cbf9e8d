"""Two hundred steps in numbers that floats hold exactly: any number of ranks must come to the very bits of one process.

Labels are small integers, batches and learning rates powers of two and rows dyadic fractions, so that no sum is rounded
in whatever order it is taken; a gradient that is lost, counted twice or divided by a wrong number of rows shows.
"""

import numpy as np
import pytest
import torch

import sfctr
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Parallel

from . import worlds

STEPS, SIZE = 200, 16
ZERO = sfctr.Normal(mean=0.0, std=0.0)
SGD = sfctr.SGD(lr=2.0**-6)
SCHEMA = sfctr.Schema(
    label="y",
    features=[
        sfctr.Categorical("user", table="user"),
        sfctr.Bag("tags", table="tag", pooling="sum"),
        sfctr.Sequence("history", table="user", max_length=3),
    ],
)


def tables(placement: str) -> list[sfctr.Table]:
    return [
        sfctr.Table("user", dim=2, init=ZERO, optimizer=SGD, placement=placement),
        sfctr.Table("tag", dim=3, init=ZERO, optimizer=SGD, linear=SGD, placement=placement),
    ]


def batches() -> list[Batch]:
    rng = np.random.default_rng(5)

    def ragged(high: int) -> Keys:
        lengths = rng.integers(0, 4, SIZE)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Keys(keys=rng.integers(0, high, offsets[-1]).astype(np.uint64), offsets=offsets)

    return [
        Batch(
            size=SIZE,
            keys={
                "user": Keys(
                    keys=rng.zipf(1.3, SIZE).astype(np.uint64), nulls=(rng.random(SIZE) < 0.1).astype(np.uint8)
                ),
                "tags": ragged(40),
                "history": ragged(300),
            },
            labels=rng.integers(-8, 9, (SIZE, 1)).astype(np.float32),
            label_mask=np.ones((SIZE, 1), np.bool_),
            rows=np.arange(step * SIZE, (step + 1) * SIZE),
        )
        for step in range(STEPS)
    ]


BATCHES = batches()


def loss(features: dict[str, torch.Tensor], part: Batch) -> torch.Tensor:
    """Of a rank's part: its share of the mean over the whole batch of label times an integer combination of inputs."""
    labels = torch.from_numpy(part.labels[:, 0]).double()
    total = torch.zeros((), dtype=torch.float64)
    for number, (name, values) in enumerate(sorted(features.items())):
        if not name.endswith(".mask"):
            flat = values.double().flatten(1)
            total = total + ((flat * (1 + torch.arange(flat.shape[1]) % 4)).sum(1) * labels).sum() * (number + 1)
    return total / part.whole_size


@pytest.fixture(scope="module")
def alone():
    return worlds.train(BATCHES, SCHEMA, tables("sharded"), loss=loss)


def test_one_process_does_what_a_dict_does(alone):
    """The twin: sums of gradients by key, in Python's integers and fractions."""
    users: dict[tuple[bool, int], np.ndarray] = {}
    for batch in BATCHES:
        labels = batch.labels[:, 0].astype(np.float64)
        keys, history = batch.keys["user"], batch.keys["history"]
        for row in range(SIZE):
            key = (bool(keys.nulls[row]), 0 if keys.nulls[row] else int(keys.keys[row]))
            # Entries in the order of their names: history, its mask, tags, tags.linear, user.
            users[key] = users.get(key, np.zeros(2)) - np.array([1, 2]) * 5 * labels[row] * 2**-6 / SIZE
            for at, place in enumerate(range(history.offsets[row], history.offsets[row + 1])):
                slope = 1 + (np.arange(2) + 2 * at) % 4
                key = (False, int(history.keys[place]))
                users[key] = users.get(key, np.zeros(2)) - slope * labels[row] * 2**-6 / SIZE
    assert alone.rows["user"].keys() == users.keys()
    for key, row in users.items():
        np.testing.assert_array_equal(alone.rows["user"][key], row)


TIERS = {
    "ram": lambda rank: sfctr.Tiers(ram="64MB"),
    "disk": lambda rank: sfctr.Tiers(ram="40KB"),
}


@pytest.mark.parametrize(
    ("counts", "sync"),
    [
        *(([3, 1], "allreduce"), ([4, 0], "owners")),
        *(([2, 1, 1], "allreduce"), ([1, 1, 1, 1], "owners")),
    ],
    ids=str,
)
def test_any_ranks_and_both_ways_have_the_bits_of_one_process(alone, counts, sync):
    found = worlds.train(
        BATCHES,
        SCHEMA,
        tables("sharded"),
        size=len(counts),
        counts=counts,
        options=Parallel(sync=sync),
        window=4,
        loss=loss,
    )
    worlds.same_rows(alone, found)
    assert found.losses == alone.losses


@pytest.mark.long
@pytest.mark.parametrize("counts", [[4, 4], [3, 1], [4, 0], [2, 1, 1], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("sync", ["owners", "allreduce"])
@pytest.mark.parametrize("placement", ["sharded", "one", "replicated"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("window", [0, 4])
def test_nor_does_anything_else_change_a_bit(alone, counts, sync, placement, tier, window, tmp_path):
    found = worlds.train(
        BATCHES,
        SCHEMA,
        tables(placement),
        size=len(counts),
        counts=counts,
        options=Parallel(sync=sync),
        tiers=TIERS[tier],
        window=window,
        loss=loss,
        directory=str(tmp_path),
    )
    worlds.same_rows(alone, found)
    assert found.losses == alone.losses

"""Two stores hold half of the shards each, and two batches hold half of the rows each: together they are one store that
trains the whole batch. Gradients are small whole numbers, so that their sums have the same bits in any order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfctr
from sfctr import _native
from sfctr.spec.optim import SGD
from sfctr.store import NUM_SHARDS, Group, Store

F32 = np.float32
DIM, ROWS, SIZE = 3, 48, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "capacity": {"capacity": 128},
    "admission": {"admit_after": 2, "capacity": 128},
    "rare": {"admit_after": 3, "unseen": "rare"},
    "expiry": {"expire_after_steps": 2, "admit_after": 2, "unseen": "rare"},
    "clock": {"expire_after": "3s", "admit_after": 2, "unseen": "rare"},
}


class Part:
    """Rows [begin, end) of a batch of one table: a key that may be missing, and a bag."""

    def __init__(self, rng: np.random.Generator, rare: bool) -> None:
        ends = np.concatenate([[0], np.cumsum(rng.integers(0, 4, ROWS))])
        self.keys, self.bag = ((rng.zipf(1.2, n) % 400).astype(np.uint64) for n in (ROWS, ends[-1]))
        self.nulls = (rng.random(ROWS) < 0.1).astype(np.uint8)
        self.ends, self.rare = ends, rare
        self.grads = [rng.integers(-2, 3, (ROWS, DIM)).astype(F32) for _ in range(2)]
        self.linear = [rng.integers(-2, 3, ROWS).astype(F32) for _ in range(2)]

    def working_set(self, begin: int, end: int) -> _native.WorkingSet:
        ends = self.ends[begin : end + 1]
        one = _native.FeatureKeys(0, "one", self.keys[begin:end], nulls=self.nulls[begin:end])
        bag = _native.FeatureKeys(0, "sum", self.bag[ends[0] : ends[-1]], offsets=ends - ends[0])
        return _native.WorkingSet(1, end - begin, [one, bag], [0] if self.rare else [])

    def train(self, group: Group, ws: _native.WorkingSet, begin: int, end: int) -> np.ndarray:
        """Forward, whose result is given [2, n, DIM + 1], and backward."""
        n = end - begin
        vectors, linear = np.empty(2 * n * DIM, F32), np.empty((2, n), F32)
        group.native.forward(ws, 0, n, vectors, linear)
        grads = [each[begin:end].reshape(-1) for each in self.grads]
        group.native.backward(ws, 0, n, grads, [each[begin:end] for each in self.linear])
        return np.concatenate([vectors.reshape(2, n, DIM), linear[:, :, None]], axis=2)


def owned_by(ws: _native.WorkingSet, owner: int) -> np.ndarray:
    """Numbers of the unique keys whose shard the owner holds."""
    shards = np.empty(ws.num_unique, np.uint8)
    _native.shards_of(ws.keys(), shards)
    return np.flatnonzero(shards // (NUM_SHARDS // SIZE) == owner)


def part_of(ws: _native.WorkingSet, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ws.keys()[ids], np.searchsorted(ids, ws.table_begin())


def prepare(store: Store, held: _native.WorkingSet, time: int) -> None:
    assert store.plan((held,))
    store.fetch((held,))
    store.settle((held,), time)


def step_together(stores: list[Store], part: Part, time: int) -> np.ndarray:
    cuts = [0, ROWS // 3, ROWS]
    own = [part.working_set(cuts[r], cuts[r + 1]) for r in range(SIZE)]
    asked = [[owned_by(ws, owner) for ws in own] for owner in range(SIZE)]
    held = [
        _native.WorkingSet.of_sources(1, [part_of(ws, ids) for ws, ids in zip(own, asked[o], strict=True)])
        for o in range(SIZE)
    ]
    weights = [np.full((ws.num_unique, DIM + 1), np.nan, F32) for ws in own]
    kinds = [np.full(ws.num_unique, 9, np.uint8) for ws in own]
    for o, store in enumerate(stores):
        prepare(store, held[o], time)
        found = np.empty((held[o].num_unique, DIM + 1), F32)
        store.groups[0].weights(held[o], found)
        for r in range(SIZE):
            weights[r][asked[o][r]] = found[held[o].source_ids(r)]
            kinds[r][asked[o][r]] = store.groups[0].kinds(held[o])[held[o].source_ids(r)]
    seen = []
    for r, store in enumerate(stores):
        group = store.groups[0]
        group.adopt(own[r], weights[r], kinds[r], train=True)
        seen.append(part.train(group, own[r], cuts[r], cuts[r + 1]))
        vectors, linear, reached = group.gradients(own[r])
        for o in range(SIZE):
            ids = asked[o][r]
            stores[o].groups[0].add_gradients(held[o], held[o].source_ids(r), vectors[ids], linear[ids], reached[ids])
    for o, store in enumerate(stores):
        store.commit((held[o],))
    return np.concatenate(seen, axis=1)


def step_alone(store: Store, part: Part, time: int) -> np.ndarray:
    ws = part.working_set(0, ROWS)
    prepare(store, ws, time)
    seen = part.train(store.groups[0], ws, 0, ROWS)
    store.commit((ws,))
    return seen


def rows_of(store: Store) -> Iterator[tuple[Any, ...]]:
    for block in store.rows("t"):
        assert block.linear is not None
        for row in zip(block.nulls, block.keys, block.vectors, block.linear, block.state, strict=True):
            yield tuple(np.asarray(part).tobytes() for part in row)


@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("options", OPTIONS)
def test_holders_of_half_the_shards_are_together_what_one_is(options: str, tier: str, tmp_path: Path) -> None:
    optimizer = SGD(lr=0.25, momentum=0.5)
    table = sfctr.Table("t", dim=DIM, optimizer=optimizer, linear=optimizer, **OPTIONS[options])
    ram = None if tier == "ram" else 5_000 if options == "capacity" else 12_000
    stores = [Store([table], tiers=sfctr.Tiers(ram=ram), directory=tmp_path / str(n)) for n in range(1 + SIZE)]
    alone, *together = stores
    assert alone.groups[0].shares(0) % SIZE == 0
    rng = np.random.default_rng(5)
    for step in range(25):
        part = Part(rng, rare=table.unseen == "rare")
        expected = step_alone(alone, part, step * 10**9)
        assert expected.tobytes() == step_together(together, part, step * 10**9).tobytes()
        assert sorted(rows_of(alone)) == sorted(row for store in together for row in rows_of(store))
    if table.has_membership:
        found = [store.groups[0].membership(0) for store in stores]
        assert found[0] == {name: sum(each[name] for each in found[1:]) for name in found[0]}
        assert (found[0]["removed"] > 0) == (table.capacity is not None)
        assert (found[0]["refused"] > 0) == (table.admit_after > 1)
    assert (tier == "ram") == (alone.counters()["evicted"] == 0)
    for store in stores:
        store.close()


def test_a_holder_views_keys_of_a_table_whose_rare_row_is_elsewhere() -> None:
    table = sfctr.Table("t", dim=1, admit_after=2, unseen="rare")
    with Store([table]) as store:
        [group] = store.groups
        held = _native.WorkingSet.of_sources(1, [(np.array([4], np.uint64), np.array([0, 1, 1]))])
        for train in (True, False):
            prepare(store, held, 0) if train else store.view((held,))
            weights = np.ones((1, 1), F32)
            group.weights(held, weights)
            assert weights.tolist() == [[0.0]]
            store.discard((held,))

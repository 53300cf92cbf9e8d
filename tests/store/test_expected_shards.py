"""Keys of the shards that a table was told to expect do not crowd in its index, and nothing else comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sfctr
from sfctr import _native
from sfctr.store import NUM_SHARDS, Replica, Store

F32 = np.float32
NO_CROWD = 1.6  # buckets to look at; a full shard comes to 1.4
QUARTER = np.arange(NUM_SHARDS) // 64 == 1


def keys_of(shards: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    keys = np.random.default_rng(seed).integers(0, 2**64, count * 6, dtype=np.uint64)
    found = np.empty(keys.size, np.uint8)
    _native.shards_of(keys, found)
    return keys[shards[found]][:count]


def filled(keys: np.ndarray, shards: np.ndarray | None) -> Store:
    store = Store([sfctr.Table("t", dim=1)])
    if shards is not None:
        store.groups[0].expect(0, shards)
    store.set_vectors("t", keys, np.zeros((keys.size, 1), F32))
    return store


def test_rows_of_expected_shards_are_found_as_fast_and_take_as_few_bytes_as_rows_of_all() -> None:
    count = 6000
    everything = np.ones(NUM_SHARDS, np.bool_)
    with (
        filled(keys_of(everything, count), None) as plain,
        filled(keys_of(QUARTER, count), QUARTER) as told,
        filled(keys_of(QUARTER, count), None) as untold,
    ):
        of_plain, of_told, of_untold = (store.groups[0].native for store in (plain, told, untold))
        assert of_plain.mean_probes(0) < NO_CROWD
        assert of_told.mean_probes(0) < NO_CROWD
        assert of_untold.mean_probes(0) > 50
        # An index takes from 15 bytes a key to 20; what is told costs the index a few KB.
        assert of_told.memory_bytes() <= of_plain.memory_bytes() + 5 * count + 4096


def test_copies_of_what_others_hold_do_not_crowd() -> None:
    with Store([sfctr.Table("t", dim=1)]) as store:
        replica = Replica(store.groups[0].plan, 0, _native.Budget(1 << 30))
        replica.expect(0, ~QUARTER)
        keys = keys_of(~QUARTER, 6000)
        replica.native.import_rows(0, keys, np.zeros((keys.size, replica.native.record_floats), F32))
        assert replica.native.mean_probes(0) < NO_CROWD


def test_keys_that_wait_do_not_crowd() -> None:
    probes = []
    for is_told in (True, False):
        with Store([sfctr.Table("t", dim=1, admit_after=2)]) as store:
            if is_told:
                store.groups[0].expect(0, QUARTER)
            step(store, keys_of(QUARTER, 3000))
            assert store.membership()["t"]["waiting"] == 3000
            probes.append(store.groups[0].native.mean_probes(0))
    assert probes[0] < NO_CROWD < probes[1]


def step(store: Store, keys: np.ndarray, seed: int = 0) -> None:
    held = _native.WorkingSet.of_sources(1, [(keys, np.array([0, keys.size, keys.size]))])
    assert store.plan((held,))
    store.fetch((held,))
    store.settle((held,))
    rng = np.random.default_rng(seed)
    [group] = store.groups
    has_row = group.kinds(held) != 2
    vectors = rng.normal(size=(keys.size, group.plan.dim)).astype(F32)
    reached = np.where(has_row, 1, 4).astype(np.uint8)
    group.add_gradients(held, np.arange(keys.size, dtype=np.int32), vectors, np.empty(0, F32), reached)
    store.commit((held,))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "capacity": {"capacity": 128},
    "admission": {"admit_after": 2, "expire_after_steps": 6},
}


@pytest.mark.parametrize("ram", [None, 12_000], ids=["ram", "disk"])
@pytest.mark.parametrize("options", OPTIONS)
def test_no_row_and_no_order_depends_on_what_is_expected(options: str, ram: int | None, tmp_path: Path) -> None:
    table = sfctr.Table("t", dim=3, optimizer=sfctr.Adam(lr=0.1), **OPTIONS[options])
    stores = [Store([table], tiers=sfctr.Tiers(ram=ram), directory=tmp_path / str(n)) for n in range(3)]
    _, told, told_late = stores
    told.groups[0].expect(0, QUARTER)
    keys = np.concatenate([keys_of(QUARTER, 300), keys_of(~QUARTER, 40)])
    rng = np.random.default_rng(1)
    for number in range(20):
        batch = rng.choice(keys, 60, replace=False)
        for store in stores:
            step(store, batch, seed=number)
        if number in (5, 10):
            told_late.groups[0].expect(0, QUARTER if number == 5 else ~QUARTER)
    listed = [list_of(store) for store in stores]
    assert listed[0][0] and listed[1] == listed[2] == listed[0]
    assert (ram is not None and options == "plain") <= (told.counters()["evicted"] > 0)
    for store in stores:
        store.close()


def list_of(store: Store) -> tuple[list[bytes], bytes, Any]:
    """Rows in the order in which they are given, keys that wait likewise, and what was counted."""
    parts = [part for block in store.rows("t") for part in (block.keys, block.vectors, block.state)]
    waiting = store.waiting("t")
    return [part.tobytes() for part in parts], waiting.keys.tobytes() + waiting.counts.tobytes(), store.membership()


def test_shards_must_be_all_of_them() -> None:
    with Store([sfctr.Table("t", dim=1)]) as store:
        with pytest.raises(ValueError, match="shards has 3 entries and must have 256"):
            store.groups[0].expect(0, np.ones(3, np.bool_))
        with pytest.raises(IndexError, match="table 1 of 1"):
            store.groups[0].expect(1, QUARTER)

"""What has moved is counted by table, and adds up to what the group counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sfctr
from sfctr.spec.batch import Batch, Keys

SCHEMA = sfctr.Schema(
    label="y", features=[sfctr.Categorical("a"), sfctr.Categorical("b"), sfctr.Categorical("more", table="a")]
)


def batch(**keys):
    size = len(keys["a"])
    return Batch(
        size=size,
        keys={name: Keys(keys=np.array(own, dtype=np.uint64)) for name, own in keys.items()},
        labels=np.zeros((size, 1), np.float32),
        label_mask=np.ones((size, 1), np.bool_),
        rows=np.arange(size),
    )


def train(store, batches):
    for ready in sfctr.Lookahead(batches, store, schema=SCHEMA):
        sum(feature.sum() for feature in ready.features().values()).backward()
        ready.step(None)


def test_counts_by_hand():
    with sfctr.Store([sfctr.Table("a", dim=4), sfctr.Table("b", dim=4)]) as store:
        train(store, [batch(a=[1, 1, 2], b=[5, 5, 5], more=[2, 3, 1]), batch(a=[1, 9, 9], b=[5, 6, 5], more=[9, 9, 9])])
        found = store.table_counters()
    moved = ("fetched", "evicted", "lifted", "lowered")
    zeros = dict.fromkeys((*moved, *(f"bytes_{name}" for name in moved), "device_hits", "device_scratch"), 0)
    assert found == {
        "a": {"requested": 12, "unique": 5, "hits": 1, "fresh": 4, **zeros},  # 1 2 3, then 1 9
        "b": {"requested": 6, "unique": 3, "hits": 1, "fresh": 2, **zeros},  # 5, then 5 6
    }


@pytest.mark.timeout(60)
def test_tables_add_up_to_the_store_and_bytes_are_rows(tmp_path):
    rng = np.random.default_rng(0)
    batches = [
        batch(**{name: rng.integers(0, 600 if name == "b" else 60, 32) for name in ("a", "b", "more")})
        for _ in range(40)
    ]
    tables = [sfctr.Table("a", dim=4), sfctr.Table("b", dim=4, optimizer=sfctr.SGD())]
    tiers = sfctr.Tiers(ram=20_000, disk=str(tmp_path))
    with sfctr.Store(tables, tiers=tiers) as store:
        train(store, batches)
        total, found = store.counters(), store.table_counters()
        rows = {table: store.num_rows(table) for table in found}
    for name in ("requested", "unique", "hits", "fresh", "fetched", "evicted"):
        assert total[name] == sum(counts[name] for counts in found.values())
    assert total["fetched"] > 0
    for table, floats in {"a": 12, "b": 4}.items():  # a vector, and Adam's two averages
        counts = found[table]
        assert counts["fresh"] == rows[table]
        assert counts["bytes_fetched"] == 4 * floats * counts["fetched"]
        assert counts["bytes_evicted"] == 4 * floats * counts["evicted"]
        assert counts["unique"] == counts["hits"] + counts["fresh"] + counts["fetched"]


def test_moves_to_the_device_and_back_by_hand(tmp_path):
    """Two tables with 8 lines of three floats on the device between them, trained one batch at a time."""
    tables = [sfctr.Table(name, dim=3, optimizer=sfctr.SGD()) for name in ("a", "b")]
    with sfctr.Store(tables, tiers=sfctr.Tiers(device=4 * 3 * 8)) as store:
        for keys in ([1, 2, 3, 4], [1, 2, 3, 5], [9, 9, 9, 9]):
            for ready in sfctr.Lookahead([batch(a=keys, b=keys, more=keys)], store, schema=SCHEMA, window=0):
                sum(feature.sum() for feature in ready.features().values()).backward()
                ready.step(None)
        found, total = store.table_counters(), store.counters()
    for counts in found.values():
        assert counts["device_hits"] == 3  # 1 2 3 of the second batch
        assert counts["lifted"] == counts["unique"] - counts["device_hits"] == 6  # 1 2 3 4, then 5, then 9
        assert counts["bytes_lifted"] == 12 * counts["lifted"]
        assert counts["bytes_lowered"] == 12 * counts["lowered"]
    for name in ("device_hits", "lifted", "lowered", "device_scratch"):
        assert total[name] == sum(counts[name] for counts in found.values())
    assert total["lowered"] == 4  # the eight lines are full: two rows leave for 5, and two for 9, all of them trained


def test_keys_of_a_batch_that_the_device_has_no_room_for_are_counted():
    tables = [sfctr.Table(name, dim=3, optimizer=sfctr.SGD()) for name in ("a", "b")]
    with sfctr.Store(tables, tiers=sfctr.Tiers(device=4 * 3 * 5)) as store:
        train(store, [batch(a=[1, 2, 3], b=[1, 2, 3], more=[4, 5, 6])])
        found = store.table_counters()
    assert [counts["device_scratch"] + counts["lifted"] for counts in found.values()] == [6, 3]
    assert sum(counts["device_scratch"] for counts in found.values()) == 4


def test_what_is_held_by_table_and_by_tier():
    tables = [sfctr.Table("a", dim=4, linear=sfctr.SGD()), sfctr.Table("b", dim=4, num_rows=9, dense=True)]
    with sfctr.Store(tables, tiers=sfctr.Tiers(ram=10_000_000)) as store:
        for ready in sfctr.Lookahead([batch(a=[1, 1, 2], b=[5, 5, 5], more=[2, 3, 1])], store, schema=SCHEMA):
            sum(feature.sum() for feature in ready.features().values()).backward()
            ready.step(torch.optim.SGD(store.dense_parameters(), lr=0.1))
        held, memory = store.held(), store.memory_bytes()
    assert held == {
        "rows": {"a": 3},
        "row_bytes": {"a": 3 * 4 * 13},  # a vector, a first-order weight, and Adam's two averages of the vector
        "bytes": {"ram": memory},
        "bounds": {"ram": 10_000_000},
    }


def test_the_device_holds_no_more_than_its_bound_and_the_disk_what_left_ram(tmp_path):
    tables = [sfctr.Table("a", dim=4), sfctr.Table("b", dim=4)]
    tiers = sfctr.Tiers(device=4 * 12 * 20, ram=60_000, disk=str(tmp_path))
    rng = np.random.default_rng(0)
    with sfctr.Store(tables, tiers=tiers) as store:
        train(store, [batch(**{name: rng.integers(0, 900, 16) for name in ("a", "b", "more")}) for _ in range(60)])
        held, total = store.held(), store.counters()
    assert 0 < held["bytes"]["device"] <= held["bounds"]["device"] == 4 * 12 * 20
    assert held["bytes"]["disk"] == total["disk_bytes"] > 0
    assert "disk" not in held["bounds"]

"""What has moved is counted by table, and adds up to what the group counts."""

from __future__ import annotations

import numpy as np
import pytest

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
    zeros = {"fetched": 0, "evicted": 0, "bytes_fetched": 0, "bytes_evicted": 0}
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

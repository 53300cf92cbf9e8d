"""A rank's store, and its copies of what others own, are told which rows will come, before they come."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ranks import Meeting, ThreadPeers

import sfctr
from sfctr.parallel.owners import owners_of, shards_of
from sfctr.spec.runfile import Parallel
from sfctr.train.ranks import Ranks, make_exchange

NO_CROWD = 1.6  # buckets to look at; keys of half of all hashes that were not expected come to over a hundred
SIZE = 2


def keys_of(rank: int, count: int = 6000) -> np.ndarray:
    keys = np.arange(3 * count, dtype=np.uint64)
    return keys[owners_of("sharded", SIZE)[shards_of(keys)] == rank][:count]


def load(store: sfctr.Store, keys: np.ndarray) -> float:
    store.set_vectors("t", keys, np.zeros((keys.size, 1), np.float32))
    return store.groups[0].native.mean_probes(0)


@pytest.mark.parametrize("rank", range(SIZE))
def test_whoever_asks_which_rows_are_its_own_loads_them_without_a_crowd(rank):
    with sfctr.Store([sfctr.Table("t", dim=1)], copies=True) as store:
        owns = Ranks(loop=ThreadPeers(Meeting(SIZE), rank)).owns(store)
        assert owns("t", keys_of(rank)).all()
        assert load(store, keys_of(rank)) < NO_CROWD


@pytest.mark.parametrize("rank", range(SIZE))
def test_ranks_that_train_together_expect_their_rows_and_copies_of_the_others(rank):
    with sfctr.Store([sfctr.Table("t", dim=1)], copies=True) as store:
        peers = ThreadPeers(Meeting(SIZE), rank)
        make_exchange(store, Parallel(sync="allreduce"), peers, peers)
        [replica] = store._replicas
        copies = keys_of(1 - rank)
        replica.native.import_rows(0, copies, np.zeros((copies.size, replica.native.record_floats), np.float32))
        assert replica.native.mean_probes(0) < NO_CROWD
        assert load(store, keys_of(rank)) < NO_CROWD

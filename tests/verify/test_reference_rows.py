"""The reference's own initial rows and buckets, against published numbers and against the store's."""

from __future__ import annotations

import numpy as np
import pytest

from sfctr import _native
from sfctr.spec.tables import Normal, Table, Uniform
from sfctr.store.seeds import table_init
from sfctr.verify.reference_rows import initial_rows, mix, table_keys, words

EDGES = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]


def test_words_are_those_of_the_published_test_vector():
    # kat_vectors of Random123: philox4x32-10 with counter and key of zeros
    assert words(np.zeros(1, np.uint64), 0, 4).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]


def test_splitmix_gives_its_published_first_number():
    # the first output of splitmix64 seeded with 1234567, as its authors' code prints it
    assert mix(1234567) == 6457827717110365317


@pytest.mark.parametrize("init", [Normal(), Normal(std=2.0, mean=-0.5), Uniform(-0.3, 0.7)], ids=repr)
@pytest.mark.parametrize("dim", [1, 3, 4, 17])
def test_rows_begin_as_the_stores_do(init, dim):
    table = Table("ünïts of things", dim=dim, init=init)
    drawn = np.random.default_rng(dim).integers(0, 2**64, 5000, dtype=np.uint64)
    keys = np.concatenate([np.array(EDGES, np.uint64), drawn])
    group = _native.RowGroup(dim, False, "sgd", None, [table_init(table, 77)])
    for space, nulls in ((0, np.zeros(keys.size, bool)), (1, np.ones(keys.size, bool))):
        stored = np.empty((keys.size, dim), np.float32)
        group.initial_records(space, keys, stored)
        mine = initial_rows(table, 77, keys, nulls)
        apart = np.abs(mine.view(np.int32) - stored.view(np.int32))
        assert apart.max() <= 1
        assert (apart == 0).mean() > 0.9999


def test_seed_table_and_missingness_each_change_every_row():
    keys, plain = np.array([5], np.uint64), np.zeros(1, bool)
    rows = [
        initial_rows(Table("a"), 0, keys, plain),
        initial_rows(Table("a"), 1, keys, plain),
        initial_rows(Table("b"), 0, keys, plain),
        initial_rows(Table("a"), 0, keys, ~plain),
    ]
    assert len({row.tobytes() for row in rows}) == 4


@pytest.mark.parametrize("buckets", [1, 7, 2**32, 2**63 - 1])
def test_buckets_are_the_stores(buckets):
    keys = np.array([*EDGES, 12345], np.uint64)
    theirs = np.empty_like(keys)
    _native.bucket_keys(keys, buckets, theirs)
    assert table_keys(Table("a", buckets=buckets), keys).tolist() == theirs.tolist()
    assert table_keys(Table("a"), keys) is keys

"""Which keys have a row over time, through Lookahead and Store, worked out by hand.

Rows begin at 1 and SGD has rate 1/2; the loss is the sum of all that features() gives, so every position that holds a
key takes 1/2 from its row.
"""

import numpy as np
import pytest

import sfctr
from sfctr.lookahead import ReadView
from sfctr.spec.errors import SchemaError

ONES = sfctr.Uniform(1.0, 1.0)
SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical("item")], time="at")
HOUR = 3600 * 10**9


def table(dim=1, **options):
    return sfctr.Table("item", dim=dim, init=ONES, optimizer=sfctr.SGD(lr=0.5), **options)


@pytest.fixture
def batches(one, batch):
    """Batches of one feature from lists of keys; hours: event time of each batch."""

    def make(*keys, hours=None):
        times = hours or range(len(keys))
        return [
            batch({"item": one(k)}, len(k), time=np.full(len(k), hour * HOUR, dtype=np.int64))
            for k, hour in zip(keys, times, strict=True)
        ]

    return make


def train(store, batches, window=0):
    """What features() gave in each step."""
    seen = []
    for ready in sfctr.Lookahead(batches, store, schema=SCHEMA, window=window):
        features = ready.features()["item"]
        features.sum().backward()
        seen.append(features[:, 0].tolist())
        ready.step(None)
    return seen


def rows_of(store):
    return {
        ("null", "rare")[int(key)] if null else int(key): float(vector[0])
        for block in store.rows("item")
        for key, null, vector in zip(block.keys, block.nulls, block.vectors, strict=True)
    }


def test_capacity_three_and_five_keys(batches):
    with sfctr.Store([table(capacity=3)]) as store:
        train(store, batches([1, 2], [3], [4, 1], [5]))
        # after step 3 four keys have rows, last trained at 2:1, 3:2, 4:3, 1:3; then 3:2, 4:3, 1:3, 5:4
        assert rows_of(store) == {1: 0.0, 4: 0.5, 5: 0.5}
        assert train(store, batches([2, 2])) == [[1.0, 1.0]]  # it begins anew
        assert store.membership() == {
            "item": {"admitted": 6, "refused": 0, "expired": 0, "removed": 3, "withdrawn": 0, "forgotten": 0}
            | {"live": 3, "waiting": 0}
        }


def test_missing_values_count_for_nothing_and_stay(batches):
    with sfctr.Store([table(capacity=1)]) as store:
        train(store, batches([None, 1], [2], [3]))
        assert rows_of(store) == {3: 0.5, "null": 0.5}


def test_a_row_lives_so_many_steps_and_then_begins_anew(batches):
    with sfctr.Store([table(expire_after_steps=2)]) as store:
        #                                 last trained at step 1, alive until 3;       at 3, alive until 5
        seen = train(store, batches([1, 2], [3], [1, 3], [3], [3], [1, 3]))
        assert [row[0] for row in seen] == [1.0, 1.0, 0.5, 0.0, -0.5, 1.0]
        assert rows_of(store) == {1: 0.5, 3: -1.5}
        counts = store.membership()["item"]
        assert (counts["admitted"], counts["expired"], counts["live"]) == (4, 2, 2)


def test_a_key_has_a_row_in_the_step_in_which_it_comes_for_the_third_time(batches):
    with sfctr.Store([table(admit_after=3)]) as store:
        seen = train(store, batches([7, 7, 8], [7], [9], [7, 8], [7]))
        # refused keys read as zero and train nothing; duplicates in a batch count once
        assert seen == [[0.0, 0.0, 0.0], [0.0], [0.0], [1.0, 0.0], [0.5]]
        assert rows_of(store) == {7: 0.0}
        waiting = store.waiting("item")
        assert dict(zip(waiting.keys.tolist(), waiting.counts.tolist(), strict=True)) == {8: 2, 9: 1}
        counts = store.membership()["item"]
        assert (counts["admitted"], counts["refused"], counts["live"], counts["waiting"]) == (1, 5, 1, 2)


def test_refused_keys_share_and_train_the_rare_row(batches, one, batch):
    with sfctr.Store([table(admit_after=2, unseen="rare")]) as store:
        assert train(store, batches([1, 2, 2])) == [[1.0, 1.0, 1.0]]
        assert rows_of(store) == {"rare": -0.5}
        assert train(store, batches([1, 3])) == [[1.0, -0.5]]
        assert rows_of(store) == {1: 0.5, "rare": -1.0}
        view = ReadView(store, SCHEMA)
        found = view.features(batch({"item": one([1, 3, 99, None])}, 4))["item"]
        assert found[:, 0].tolist() == [0.5, -1.0, -1.0, 0.0]
        assert view.unseen == {"item": (3, 4)}


def test_rows_expire_by_the_time_of_trained_data(batches):
    with sfctr.Store([table(expire_after="2h")]) as store:
        seen = train(store, batches([1], [2], [1], [1], hours=[10, 12, 11, 15]))
        assert [row[0] for row in seen] == [1.0, 1.0, 0.5, 0.0]  # at hour 12, 1 was two hours old: alive
        # the third batch is of hour 11, when 12 was known; now it is 15, and only what was just trained is alive
        assert rows_of(store) == {1: -0.5}
        assert train(store, batches([2], hours=[3])) == [[1.0]]
        assert rows_of(store) == {1: -0.5, 2: 0.5}


def test_event_time_without_a_time_column_is_refused():
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])
    with (
        sfctr.Store([table(expire_after="7d")]) as store,
        pytest.raises(SchemaError, match=r"table 'item' has expire_after = '7d' .* no time column; name it"),
    ):
        sfctr.Lookahead([], store, schema=schema)


OPTIONS = [
    {"capacity": 5},
    {"admit_after": 2, "unseen": "rare"},
    {"expire_after_steps": 3, "admit_after": 2},
    {"expire_after": "3h", "capacity": 9},
]


def random_keys(count):
    random = np.random.default_rng(5)
    return [(random.zipf(1.4, 12) % 40).tolist() for _ in range(count)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.timeout(60)
def test_window_tiers_and_evaluation_change_nothing(batches, options, tmp_path):
    stream, wide = batches(*random_keys(25)), table(dim=32, **options)
    with sfctr.Store([wide]) as store:
        plain = train(store, stream), rows_of(store), store.membership()
    # the index of all keys that 5 batches hold, and about 3 of the rows of 128 bytes
    tiers = sfctr.Tiers(ram=24 * 45 + 148 * 3, disk=str(tmp_path))
    for window in (0, 1, 4):
        with sfctr.Store([wide], tiers=tiers) as store:
            view, seen = ReadView(store, SCHEMA), []
            for ready in sfctr.Lookahead(stream, store, schema=SCHEMA, window=window):
                view.features(stream[len(seen) // 2])
                features = ready.features()["item"]
                features.sum().backward()
                seen.append(features[:, 0].tolist())
                store.membership()
                ready.step(None)
                view.features(stream[-1])
            assert (seen, rows_of(store), store.membership()) == plain
            assert store.counters()["evicted"] > 0


def test_removed_keys_begin_anew_and_whoever_keeps_a_copy_is_told(batches):
    told = []
    with sfctr.Store([table(capacity=2)], on_removed=lambda name, keys: told.append((name, keys.tolist()))) as store:
        train(store, batches([1, 2], [1]))
        assert told == []
        assert store.remove("item", np.array([1, 5], dtype=np.uint64)) == 1
        assert rows_of(store) == {2: 0.5}
        train(store, batches([1], [3]))
        assert rows_of(store) == {1: 0.5, 3: 0.5}
        assert told == [("item", [1]), ("item", [2])]
        assert store.membership()["item"]["withdrawn"] == 1


def test_rows_of_an_ordinary_table_are_removed_between_passes(batches):
    with sfctr.Store([table()]) as store:
        train(store, batches([1, 2]))
        assert store.remove("item", np.array([2], dtype=np.uint64)) == 1
        assert rows_of(store) == {1: 0.5}
        assert store.membership() == {}
        for ready in sfctr.Lookahead(batches([1]), store, schema=SCHEMA):
            with pytest.raises(RuntimeError, match="while a batch that may hold them is in flight"):
                store.remove("item", np.array([1], dtype=np.uint64))
            ready.discard()


def test_a_dense_table_keeps_its_rows():
    tables = [sfctr.Table("hour", num_rows=24, dense=True)]
    with (
        sfctr.Store(tables) as store,
        pytest.raises(SchemaError, match="table 'hour' is dense: its rows are parameters"),
    ):
        store.remove("hour", np.array([1], dtype=np.uint64))


def test_tables_with_options_are_groups_of_their_own():
    tables = [sfctr.Table("a"), sfctr.Table("b", capacity=9), sfctr.Table("c"), sfctr.Table("d", admit_after=2)]
    with sfctr.Store(tables) as store:
        assert [list(group.tables) for group in store.groups] == [["a", "c"], ["b", "d"]]

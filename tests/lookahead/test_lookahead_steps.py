"""Steps through Lookahead and Store, against answers worked out by hand and against dense tables as the slow twin."""

from __future__ import annotations

import gc
import math
import threading
import time

import numpy as np
import pytest
import torch

import sfctr
from sfctr.spec.errors import CapacityError, ConfigError, DataError

ONES = sfctr.Uniform(1.0, 1.0)


def rows_of(store, table):
    """key (None for the missing value) -> list of vector, linear, state"""
    found = {}
    for block in store.rows(table):
        for i, key in enumerate(block.keys.tolist()):
            linear = [] if block.linear is None else [float(block.linear[i])]
            found[None if block.nulls[i] else key] = [*block.vectors[i].tolist(), *linear, *block.state[i].tolist()]
    return found


def schema_with(*features):
    return sfctr.Schema(label="y", features=list(features))


def test_duplicates_are_merged_before_one_sgd_update(one, batch):
    # rows at 1, loss = 1/2 * sum over positions of row^2: a gradient of 1 a position, so key 7 gets 2 and key 9 gets 1
    schema = schema_with(sfctr.Categorical("item"))
    with sfctr.Store([sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.25))]) as store:
        for ready in sfctr.Lookahead([batch({"item": one([7, 7, 9])}, 3)], store, schema=schema):
            (0.5 * ready.features()["item"].square().sum()).backward()
            ready.step(None)
        assert rows_of(store, "item") == {7: [0.5], 9: [0.75]}
        assert store.steps == 1


LAYOUTS = {
    "as a part of wider rows": lambda gradient: gradient,
    "rows one after the other": torch.Tensor.contiguous,
    "by column": lambda gradient: gradient.t().contiguous().t(),
    "one row for all": lambda gradient: gradient[:1].expand(gradient.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_how_a_gradient_lies_in_memory_changes_no_row(one, batch, layout):
    gradient = LAYOUTS[layout](torch.arange(3 * 5.0).reshape(3, 5)[:, 1:3])  # two of five columns
    schema = schema_with(sfctr.Categorical("item"))
    with sfctr.Store([sfctr.Table("item", dim=2, init=ONES, optimizer=sfctr.SGD(lr=1.0))]) as store:
        for ready in sfctr.Lookahead([batch({"item": one([7, 9, 7])}, 3)], store, schema=schema):
            ready.features()["item"].backward(gradient)
            ready.step(None)
        of_7, of_9 = ([2, 4], [1, 2]) if layout == "one row for all" else ([12, 14], [6, 7])
        assert rows_of(store, "item") == {7: [1 - g for g in of_7], 9: [1 - g for g in of_9]}


def test_a_batch_sees_what_the_batch_before_it_changed(one, batch):
    schema = schema_with(sfctr.Categorical("item"))
    batches = [batch({"item": one([1, 2])}, 2), batch({"item": one([2, 3])}, 2), batch({"item": one([2, 1])}, 2)]
    with sfctr.Store([sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5))]) as store:
        for ready in sfctr.Lookahead(batches, store, schema=schema):
            (0.5 * ready.features()["item"].square().sum()).backward()
            ready.step(None)
        # each step halves the rows it touches
        assert rows_of(store, "item") == {1: [0.25], 2: [0.125], 3: [0.5]}


def test_a_missing_value_owns_a_row_that_no_key_shares(one, batch):
    schema = schema_with(sfctr.Categorical("item"))
    keys = [0, None, -1, 2**63 - 1, 2**63, None]
    with sfctr.Store([sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5))]) as store:
        for ready in sfctr.Lookahead([batch({"item": one(keys)}, 6)], store, schema=schema):
            ready.features()["item"].sum().backward()
            ready.step(None)
        assert rows_of(store, "item") == {0: [0.5], 2**64 - 1: [0.5], 2**63 - 1: [0.5], 2**63: [0.5], None: [0.0]}


def test_features_of_one_table_share_rows_and_merge_their_gradients(one, many, batch):
    schema = schema_with(
        sfctr.Categorical("item"), sfctr.Bag("seen", table="item"), sfctr.Sequence("h", table="item", max_length=2)
    )
    keys = {"item": one([5, 6]), "seen": many([[5, 5], []]), "h": many([[6], [5, 6]])}
    with sfctr.Store([sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.125))]) as store:
        for ready in sfctr.Lookahead([batch(keys, 2)], store, schema=schema):
            features = ready.features()
            assert features["seen"].tolist() == [[2.0], [0.0]]
            assert features["h"].tolist() == [[[1.0], [0.0]], [[1.0], [1.0]]]
            assert features["h.mask"].tolist() == [[True, False], [True, True]]
            sum(features[name].sum() for name in ("item", "seen", "h")).backward()
            ready.step(None)
        # key 5: once in item, twice in seen, once in h = 4; key 6: once in item, twice in h = 3
        assert rows_of(store, "item") == {5: [0.5], 6: [0.625]}


def test_a_feature_that_the_loss_does_not_use_adds_no_row(one, batch):
    schema = schema_with(sfctr.Categorical("a"), sfctr.Categorical("b"))
    with sfctr.Store([sfctr.Table("a", dim=2), sfctr.Table("b", dim=2)]) as store:
        for ready in sfctr.Lookahead([batch({"a": one([1]), "b": one([1])}, 1)], store, schema=schema):
            ready.features()["a"].sum().backward()
            ready.step(None)
        assert (store.num_rows("a"), store.num_rows("b")) == (1, 0)


def test_a_step_without_backward_counts_and_changes_no_row(one, batch):
    schema = schema_with(sfctr.Categorical("a"))
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store:
        for ready in sfctr.Lookahead([batch({"a": one([1])}, 1)], store, schema=schema):
            ready.features()
            ready.step(None)
        assert (store.num_rows("a"), store.steps) == (0, 1)


FEATURES = [
    sfctr.Categorical("item"),
    sfctr.Bag("tags", table="tag", pooling="mean"),
    sfctr.Bag("words", table="tag", pooling="mean"),
    sfctr.Bag("sums", table="tag", pooling="sum"),
    sfctr.Sequence("history", table="item", max_length=3),
    sfctr.Categorical("hashed", table="hashed"),
]


def random_batches(one, many, batch, count, size=17, rows=12, seed=3):
    rng = np.random.default_rng(seed)

    def lists(longest):
        return [rng.integers(0, rows, rng.integers(0, longest + 1)).tolist() for _ in range(size)]

    for _ in range(count):
        tags, words = lists(4), lists(5)
        yield batch(
            {
                "item": one([None if v == 0 else int(v) for v in rng.integers(0, rows, size)]),
                "tags": many(tags),
                "words": many(words, [[float(rng.uniform(0, 2)) for _ in row] for row in words]),
                "sums": many(lists(3), None),
                "history": many(lists(3)),
                "hashed": one([int(v) for v in rng.integers(-(2**62), 2**62, size)]),
            },
            size,
            rng.integers(0, 2, size).tolist(),
        )


def tables(dense, linear=True):
    first = sfctr.SGD(lr=0.3) if linear else None
    sgd = sfctr.SGD(lr=0.3)
    return [
        sfctr.Table("item", dim=4, optimizer=sgd, linear=first, dense=dense, num_rows=12 if dense else None),
        sfctr.Table("tag", dim=4, optimizer=sgd, linear=first, dense=dense, num_rows=12 if dense else None),
        sfctr.Table("hashed", dim=3, optimizer=sgd, linear=first, dense=dense, buckets=7),
    ]


def train(store, batches, *, clip=None, micro=1, window=0):
    head = torch.linspace(-1, 1, 4)
    parameters = store.dense_parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.3) if parameters else None
    norms = []
    for ready in sfctr.Lookahead(batches, store, schema=schema_with(*FEATURES), window=window):
        for part in ready.micro_batches(micro):
            features = part.features()
            logits = sum(features[n] @ head + features[f"{n}.linear"][:, 0] for n in ("item", "tags", "words", "sums"))
            logits = logits + (features["history"] @ head).tanh().sum(1) + features["history.linear"][:, 0]
            logits = logits + features["hashed"].sum(1) * features["hashed.linear"][:, 0].cos()
            loss = (
                torch.nn.functional.binary_cross_entropy_with_logits(logits, part.labels, reduction="sum") / ready.size
            )
            loss.backward()
        norms.append(ready.step(optimizer, clip=clip))
    return norms


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_stored_table_learns_what_a_dense_one_does(one, many, batch, clip):
    batches = list(random_batches(one, many, batch, 6))
    with sfctr.Store(tables(dense=False)) as stored, sfctr.Store(tables(dense=True)) as dense:
        norms = train(stored, batches, clip=clip), train(dense, batches, clip=clip)
        if clip is not None:
            assert norms[0] == pytest.approx(norms[1], rel=1e-5)
            assert max(norms[0]) > clip
        for name in ("item", "tag", "hashed"):
            mine, twin = rows_of(stored, name), rows_of(dense, name)
            assert mine.keys() <= twin.keys()
            for key, row in mine.items():
                assert row == pytest.approx(twin[key], abs=2e-6), (name, key)


def test_micro_batches_add_up_to_the_whole_batch(one, many, batch):
    batches = list(random_batches(one, many, batch, 4))
    with sfctr.Store(tables(dense=False)) as whole, sfctr.Store(tables(dense=False)) as split:
        train(whole, batches)
        train(split, batches, micro=5)
        for name in ("item", "tag", "hashed"):
            mine, twin = rows_of(split, name), rows_of(whole, name)
            assert mine.keys() == twin.keys()
            assert all(row == pytest.approx(twin[key], abs=2e-6) for key, row in mine.items())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [0, 1, 5])
def test_window_and_threads_change_no_bit(one, many, batch, window, threads):
    batches = list(random_batches(one, many, batch, 8))
    with sfctr.Store(tables(dense=False)) as plain:
        train(plain, batches)
        expected = {name: rows_of(plain, name) for name in plain.tables}
    with sfctr.Store(tables(dense=False), threads=threads) as store:
        train(store, batches, window=window)
        assert {name: rows_of(store, name) for name in store.tables} == expected


def test_rows_begin_alike_whatever_the_order_of_arrival(one, batch):
    schema = schema_with(sfctr.Categorical("item"))
    found = []
    for order in ([1, 2, 3], [3, 1, 2]):
        with sfctr.Store([sfctr.Table("item", dim=5, optimizer=sfctr.SGD(lr=0.0))], seed=11) as store:
            for key in order:
                for ready in sfctr.Lookahead([batch({"item": one([key])}, 1)], store, schema=schema):
                    ready.features()["item"].sum().backward()
                    ready.step(None)
            found.append(rows_of(store, "item"))
    assert found[0] == found[1]
    assert len({tuple(row) for row in found[0].values()}) == 3


def test_the_next_batch_is_refused_while_one_is_open(one, batch):
    schema = schema_with(sfctr.Categorical("a"))
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store:
        lookahead = iter(sfctr.Lookahead([batch({"a": one([1])}, 1)] * 2, store, schema=schema))
        next(lookahead)
        with pytest.raises(RuntimeError, match="still open"):
            next(lookahead)


def test_a_discarded_batch_leaves_no_trace(one, batch):
    schema = schema_with(sfctr.Categorical("a"))
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store:
        for ready in sfctr.Lookahead([batch({"a": one([1])}, 1)] * 2, store, schema=schema):
            with ready:
                ready.features()["a"].sum().backward()
        assert (store.num_rows("a"), store.steps) == (0, 0)
        with pytest.raises(RuntimeError, match="already"):
            ready.step(None)


def test_evaluation_changes_nothing_and_counts_the_unseen(one, many, batch):
    schema = schema_with(sfctr.Categorical("item"), sfctr.Bag("seen", table="item", pooling="mean"))
    with sfctr.Store([sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5))]) as store:
        keys = {"item": one([1, 2]), "seen": many([[1], []])}
        for ready in sfctr.Lookahead([batch(keys, 2)], store, schema=schema):
            features = ready.features()
            (features["item"].sum() + 0 * features["seen"].sum()).backward()
            ready.step(None)
        before = rows_of(store, "item")
        view = sfctr.ReadView(store, schema)
        for _ in range(2):
            found = view.features(batch({"item": one([1, 3, None]), "seen": many([[1, 9], [2], []])}, 3))
        assert found["item"].tolist() == [[0.5], [0.0], [0.0]]
        assert found["seen"].tolist() == [[0.25], [0.5], [0.0]]
        assert view.unseen == {"item": (4, 6), "seen": (2, 6)}
        assert rows_of(store, "item") == before
        assert not found["item"].requires_grad


def test_a_key_outside_a_dense_table_is_refused_in_training_and_unseen_in_evaluation(one, batch):
    schema = schema_with(sfctr.Categorical("hour"))
    with sfctr.Store([sfctr.Table("hour", dim=1, dense=True, num_rows=24)]) as store:
        odd = batch({"hour": one([3, 24])}, 2)
        for ready in sfctr.Lookahead([odd], store, schema=schema):
            with (
                ready,
                pytest.raises(
                    DataError, match=r"column 'hour': key 24 is outside the dense table 'hour' of 24 rows; raise"
                ),
            ):
                ready.features()
        view = sfctr.ReadView(store, schema)
        assert view.features(odd)["hour"][1].item() == 0.0
        assert view.unseen == {"hour": (1, 2)}


def test_l2_of_a_dense_table_reaches_every_row(one, batch):
    schema = schema_with(sfctr.Categorical("hour"))
    with sfctr.Store([sfctr.Table("hour", dim=1, init=ONES, dense=True, num_rows=3, l2=0.5)]) as store:
        optimizer = torch.optim.SGD(store.dense_parameters(), lr=0.5)
        for ready in sfctr.Lookahead([batch({"hour": one([1])}, 1)], store, schema=schema):
            ready.features()["hour"].sum().backward()
            norm = ready.step(optimizer, clip=1e9)
        # gradient 0.5 from l2 on all four rows (one stands for a missing value), and 1 more on row 1
        assert rows_of(store, "hour") == {0: [0.75], 1: [0.25], 2: [0.75], None: [0.75]}
        assert norm == pytest.approx(math.sqrt(3 * 0.25 + 2.25))


def test_a_table_of_dim_0_has_first_order_weights_alone(one, batch):
    schema = schema_with(sfctr.Categorical("item"))
    with sfctr.Store([sfctr.Table("item", dim=0, linear=sfctr.SGD(lr=0.5))]) as store:
        for ready in sfctr.Lookahead([batch({"item": one([4, 4, 5])}, 3)], store, schema=schema):
            features = ready.features()
            assert list(features) == ["item.linear"]
            features["item.linear"].sum().backward()
            ready.step(None)
        assert rows_of(store, "item") == {4: [-1.0], 5: [-0.5]}


def test_outgrowing_the_ram_bound_is_a_named_error(one, batch):
    schema = schema_with(sfctr.Categorical("item"))
    with (
        sfctr.Store([sfctr.Table("item", dim=64)], tiers=sfctr.Tiers(ram="2MB")) as store,
        pytest.raises(CapacityError, match=r"tiers\.ram is 2,000,000 bytes .* table 'item' .* buckets"),
    ):
        for start in range(0, 10**6, 1000):
            keys = one(list(range(start, start + 1000)))
            for ready in sfctr.Lookahead([batch({"item": keys}, 1000)], store, schema=schema):
                ready.features()["item"].sum().backward()
                ready.step(None)


@pytest.mark.parametrize("window", [0, 2])
def test_an_error_while_reading_comes_out_in_its_place(one, batch, window):
    schema = schema_with(sfctr.Categorical("a"))

    def failing():
        yield batch({"a": one([1])}, 1)
        raise DataError("bad", file="f.csv", row=3)

    steps = 0
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store, pytest.raises(DataError, match=r"f\.csv, row 3: bad"):
        for ready in sfctr.Lookahead(failing(), store, schema=schema, window=window):
            ready.discard()
            steps += 1
    assert steps == 1


def test_a_forgotten_lookahead_leaves_no_thread(one, batch):
    schema = schema_with(sfctr.Categorical("a"))
    before = threading.active_count()
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store:
        iterator = iter(
            sfctr.Lookahead((batch({"a": one([1])}, 1) for _ in iter(int, 1)), store, schema=schema, window=3)
        )
        next(iterator).discard()
        del iterator
        gc.collect()
    assert threading.active_count() == before


@pytest.mark.timeout(30, method="thread")  # who waits in native code hears no signal
def test_evaluation_need_not_wait_for_a_planner_that_waits_for_room(one, batch, tmp_path):
    # Rows of `a` come from disk for a batch whose rows of `b` find no room before the batch in training has ended.
    schema = schema_with(sfctr.Categorical("a"), sfctr.Categorical("b"))
    tables = [sfctr.Table(name, dim=dim, init=ONES, optimizer=sfctr.SGD(lr=0.5)) for name, dim in (("a", 1), ("b", 2))]
    batches = [
        batch({"a": one([t % 6] * 8), "b": one(list(range(8 * (t % 3), 8 * (t % 3) + 8)))}, 8) for t in range(24)
    ]
    with sfctr.Store(tables, tiers=sfctr.Tiers(ram=800, disk=str(tmp_path))) as store:
        view = sfctr.ReadView(store, schema)
        for ready in sfctr.Lookahead(batches, store, schema=schema, window=2):
            time.sleep(0.01)  # the planner comes as far as it can
            view.features(batches[0])
            sum(values.sum() for values in ready.features().values()).backward()
            ready.step(None)
        a, b = (group.counters() for group in store.groups)
        assert a["fetched"] > 0 and b["waits"] > 0


def test_a_negative_window_is_refused(one, batch):
    with sfctr.Store([sfctr.Table("a", dim=2)]) as store, pytest.raises(ConfigError, match="window is -1"):
        sfctr.Lookahead([], store, schema=schema_with(sfctr.Categorical("a")), window=-1)


def test_a_feature_without_its_table_is_refused_with_the_nearest():
    with sfctr.Store([sfctr.Table("items", dim=2)]) as store, pytest.raises(ConfigError, match="did you mean 'items'"):
        sfctr.Lookahead([], store, schema=schema_with(sfctr.Categorical("item")))

"""What a loop of one's own gets wrong: refused in words, or without a trace."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import sfctr
from sfctr.spec.errors import ConfigError, DataError, ModelError, SchemaError

pytestmark = pytest.mark.timeout(60)
ONES = sfctr.Uniform(1.0, 1.0)
SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])


def item() -> sfctr.Table:
    return sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.5))


def dense(name: str = "item") -> sfctr.Table:
    return sfctr.Table(name, dim=1, init=ONES, num_rows=3, dense=True)


def test_a_discarded_batch_leaves_no_gradient_to_the_next(one, batch) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with sfctr.Store([item()]) as store:
        batches = [batch({"item": one([1])}, 1), batch({"item": one([1])}, 1)]
        for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=SCHEMA)):
            (model(ready.features()["item"]).sum() * (math.nan if number == 0 else 1.0)).backward()
            if number == 0:
                ready.discard(optimizer)
            else:
                ready.step(optimizer)
        assert model.weight.item() == 0.5
        assert store.steps == 1


def test_a_discarded_batch_leaves_no_gradient_to_a_dense_table(one, batch) -> None:
    with sfctr.Store([dense()]) as store:
        optimizer = torch.optim.SGD(store.dense_parameters(), lr=0.5)
        batches = [batch({"item": one([1])}, 1), batch({"item": one([2])}, 1)]
        for number, ready in enumerate(sfctr.Lookahead(batches, store, schema=SCHEMA)):
            with ready:
                ready.features()["item"].sum().backward()
                if number == 1:
                    ready.step(optimizer)
        [weight] = store.dense_parameters()
        assert weight[:3, 0].tolist() == [1.0, 1.0, 0.5]


def test_a_dense_table_that_the_optimizer_was_not_given_is_named(one, batch) -> None:
    model = nn.Linear(1, 1)
    with sfctr.Store([dense()]) as store:
        for ready in sfctr.Lookahead([batch({"item": one([1])}, 1)], store, schema=SCHEMA):
            ready.features()["item"].sum().backward()
            for optimizer in (torch.optim.SGD(model.parameters(), lr=0.5), None):
                with pytest.raises(ConfigError, match=r"dense table 'item' .*, \*store.dense_parameters\(\)"):
                    ready.step(optimizer)
            ready.discard()


@pytest.mark.parametrize("name", ["type", "keys", "half", "user.hour"])
def test_a_dense_table_may_have_any_name(name: str, one, batch) -> None:
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical(name)])
    with sfctr.Store([dense(name)]) as store:
        optimizer = torch.optim.SGD(store.dense_parameters(), lr=0.5)
        for ready in sfctr.Lookahead([batch({name: one([0])}, 1)], store, schema=schema):
            ready.features()[name].sum().backward()
            ready.step(optimizer)
        assert store.dense_state()[f"{name}.weight"][:3, 0].tolist() == [0.5, 1.0, 1.0]
        with pytest.raises(SchemaError, match=f"table '{name}' is dense"):
            store.set_vectors(name, np.array([1]), np.ones((1, 1), np.float32))
        with pytest.raises(SchemaError, match="dense tables are"):
            store.load_dense_state({})


def test_a_norm_that_is_no_number_leaves_every_weight_as_it_was(one, batch) -> None:
    with sfctr.Store([item()]) as store:
        lookahead = sfctr.Lookahead([batch({"item": one([1, 2])}, 2)] * 2, store, schema=SCHEMA)
        for number, ready in enumerate(lookahead):
            (ready.features()["item"] * torch.tensor([[1.0], [math.inf if number == 1 else 1.0]])).sum().backward()
            if number == 0:
                ready.step(None, clip=100.0)
                continue
            with pytest.raises(ModelError, match="the norm of the gradients is inf at step 2, and nothing"):
                ready.step(None, clip=1.0)
            ready.discard()
        [block] = store.rows("item")
        assert block.vectors.tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_clip_that_bounds_nothing_is_refused(one, batch, clip: float) -> None:
    with sfctr.Store([item()]) as store:
        for ready in sfctr.Lookahead([batch({"item": one([1])}, 1)], store, schema=SCHEMA):
            with pytest.raises(ConfigError, match=r"clip is .* and must be above 0"):
                ready.step(None, clip=clip)
            with pytest.raises(ConfigError, match="count is 0 and must be at least 1"):
                next(ready.micro_batches(0))
            ready.discard()


@pytest.mark.parametrize("window", [0, 2])
def test_a_second_lookahead_on_a_store_is_refused_while_the_first_is_at_work(one, batch, window: int) -> None:
    batches = [batch({"item": one([1])}, 1)] * 3
    with sfctr.Store([item()]) as store:
        first = iter(sfctr.Lookahead(batches, store, schema=SCHEMA, window=window))
        next(first).discard()
        with pytest.raises(RuntimeError, match="another Lookahead over this store is at work"):
            next(iter(sfctr.Lookahead(batches, store, schema=SCHEMA, window=window)))
        first.close()
        for ready in sfctr.Lookahead(batches, store, schema=SCHEMA, window=window):
            ready.discard()


def test_a_table_that_begins_from_a_file_needs_its_rows(one, batch) -> None:
    table = sfctr.Table("item", dim=1, pretrained="vectors.parquet", frozen=True)
    with sfctr.Store([table]) as store:
        lookahead = sfctr.Lookahead([batch({"item": one([7])}, 1)], store, schema=SCHEMA)
        with pytest.raises(ConfigError, match=r"table 'item' begins from vectors.parquet, .*set_vectors"):
            next(iter(lookahead))
        store.set_vectors("item", np.array([7]), np.array([[2.5]]))
        for ready in lookahead:
            assert ready.features()["item"].tolist() == [[2.5]]
            ready.discard()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unseen": "Rare", "admit_after": 3}, 'tables.item.unseen is "Rare" and must be'),
        ({"optimizer": "adam"}, 'tables.item.optimizer is "adam" and must be'),
        ({"optimizer": sfctr.Adam(bias_correction="rows")}, "did you mean 'row'"),  # type: ignore[arg-type]
    ],
)
def test_a_misspelt_option_of_a_table_is_refused(options, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sfctr.Store([sfctr.Table("item", **options)])


def test_a_misspelt_option_of_a_feature_is_refused(one, batch) -> None:
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item", dtype="int")])  # type: ignore[arg-type]
    with sfctr.Store([item()]) as store, pytest.raises(ConfigError, match=r'schema.features.item.dtype is "int"'):
        sfctr.Lookahead([batch({"item": one([1])}, 1)], store, schema=schema)
    misspelt = sfctr.Dense("x", transform="log1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'schema.features.x.transform is "log1" and must be .*log1p'):
        sfctr.open_source([{"x": 1.0, "y": 1}], sfctr.Schema(label="y", features=[misspelt]))


@pytest.mark.parametrize("keys", [np.array([0.9]), np.array([math.nan])])
def test_keys_are_integers(keys) -> None:
    with sfctr.Store([item()]) as store, pytest.raises(SchemaError, match="keys are float64 and must be integers"):
        store.remove("item", keys)


def test_a_closed_store_says_so(one, batch) -> None:
    store = sfctr.Store([item()])
    view = sfctr.ReadView(store, SCHEMA)
    store.close()
    with pytest.raises(RuntimeError, match="the store is closed"):
        store.num_rows("item")
    with pytest.raises(RuntimeError, match="the store is closed"):
        view.features(batch({"item": one([1])}, 1))


def test_a_dict_is_scored_as_it_is_trained_without_its_label() -> None:
    features = [sfctr.Categorical("item"), sfctr.Bag("tags", table="item")]
    schema = sfctr.Schema(label="y", weight="w", features=features)
    columns = {"item": [1, 2], "tags": [[1, 2], []], "y": [1, 0], "w": [1.0, 1.0]}
    with sfctr.Store([item()]) as store:
        for ready in sfctr.Lookahead([columns], store, schema=schema):
            sum(ready.features().values()).sum().backward()
            ready.step(None)
        found = sfctr.ReadView(store, schema).features({"item": [1, 3], "tags": ([1, 1, 2], [0, 2])})
        # 1 and 2 were looked up twice each: 1 - 0.5 * 2 = 0; 3 has no row
        assert found["item"].tolist() == [[0.0], [0.0]]
        assert found["tags"].tolist() == [[0.0], [0.0]]
        with pytest.raises(DataError, match="column 'item': is not there"):
            sfctr.ReadView(store, schema).features({"tags": [[1]]})


def test_a_key_outside_a_dense_table_is_named_with_its_row(many, batch) -> None:
    schema = sfctr.Schema(label="y", features=[sfctr.Bag("tags", table="item")])
    with sfctr.Store([dense()]) as store:
        for ready in sfctr.Lookahead([batch({"tags": many([[0, 1], [], [2, 7]])}, 3)], store, schema=schema):
            with pytest.raises(DataError, match=r"row 3, column 'tags': key 7 is outside the dense table 'item'"):
                ready.features()
            ready.discard()

"""Batches given as dicts of columns mean what the same rows mean as spec Batch, in every form a column can have."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sfctr
from sfctr.lookahead.dicts import batch_of
from sfctr.spec.errors import DataError, SchemaError

SCHEMA = sfctr.Schema(
    label="y",
    weight="w",
    features=[
        sfctr.Dense("price"),
        sfctr.Categorical("item"),
        sfctr.Bag("tags", weights="tag_weights", max_length=2),
        sfctr.Sequence("history", table="item", max_length=2),
    ],
)
COLUMNS = {
    "y": [1.0, 0.0, float("nan")],
    "w": [1, 2, 0],
    "price": [1.5, float("nan"), -2],
    "item": [3, None, -1],
    "tags": [[1, 2, 3], [], [4]],
    "tag_weights": [[0.5, 1.5, 9.0], [], [2.0]],
    "history": [[7, 8, 9], None, [None, 5]],
}


def test_a_dict_becomes_the_batch_worked_out_by_hand():
    batch = batch_of(COLUMNS, SCHEMA, first_row=10)
    assert batch.size == 3
    assert batch.rows.tolist() == [10, 11, 12]
    assert (batch.labels.tolist(), batch.label_mask.tolist()) == ([[1], [0], [0]], [[True], [True], [False]])
    assert batch.weight.tolist() == [1, 2, 0]
    assert batch.dense["price"].tolist() == [[1.5, 0], [0, 1], [-2, 0]]
    item, tags, history = (batch.keys[name] for name in ("item", "tags", "history"))
    assert item.keys.tolist() == [3, 0, 2**64 - 1]
    assert item.nulls.tolist() == [0, 1, 0]
    assert (tags.keys.tolist(), tags.offsets.tolist(), tags.weights.tolist()) == (
        [1, 2, 4],
        [0, 2, 2, 3],
        [0.5, 1.5, 2],
    )
    assert (history.keys.tolist(), history.offsets.tolist()) == ([8, 9, 5], [0, 2, 2, 3])


def _padded(rows):
    width = max(map(len, rows), default=0)
    ids, mask = np.full((len(rows), width), -9), np.zeros((len(rows), width), np.bool_)
    for b, row in enumerate(rows):
        ids[b, : len(row)], mask[b, : len(row)] = row, True
    return torch.from_numpy(ids), torch.from_numpy(mask)


FORMS = {
    "offsets": lambda rows: (np.array(list(chain.from_iterable(rows)), np.int64), np.cumsum([0, *map(len, rows)])),
    "torch's offsets": lambda rows: (
        torch.tensor(list(chain.from_iterable(rows)), dtype=torch.int32),
        torch.tensor(np.cumsum([0, *map(len, rows)])[:-1]),
    ),
    "mask": _padded,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4), min_size=1, max_size=5), cut=st.integers(1, 4)
)
def test_every_form_of_ragged_ids_is_the_list_of_lists(form, rows, cut):
    schema = sfctr.Schema(
        label="y", features=[sfctr.Bag("b", max_length=cut), sfctr.Sequence("s", column="b", max_length=cut)]
    )
    labels = np.zeros(len(rows))
    expected, found = (batch_of({"y": labels, "b": value}, schema) for value in (rows, form(rows)))
    for name in ("b", "s"):
        np.testing.assert_array_equal(found.keys[name].keys, expected.keys[name].keys)
        np.testing.assert_array_equal(found.keys[name].offsets, expected.keys[name].offsets)
    kept = [row[:cut] for row in rows], [row[-cut:] for row in rows]
    for keys, lists in zip((expected.keys["b"], expected.keys["s"]), kept, strict=True):
        assert keys.keys.view(np.int64).tolist() == list(chain.from_iterable(lists))


def test_ids_keep_all_64_bits():
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("i")])
    columns = {"y": [0, 0], "i": np.array([2**64 - 1, 2**63 + 1], dtype=np.uint64)}
    assert batch_of(columns, schema).keys["i"].keys.tolist() == [2**64 - 1, 2**63 + 1]


@pytest.mark.timeout(60)
def test_training_on_dicts_is_training_on_batches_bit_for_bit():
    rng = np.random.default_rng(0)
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item"), sfctr.Bag("tags", table="item")])
    columns = [
        {"y": rng.integers(0, 2, 8), "item": rng.integers(0, 20, 8), "tags": rng.integers(0, 20, (8, 3))}
        for _ in range(10)
    ]

    def trained(stream, window):
        with sfctr.Store([sfctr.Table("item", dim=4)]) as store:
            for ready in sfctr.Lookahead(stream, store, schema=schema, window=window):
                features = ready.features()
                ((features["item"] * features["tags"]).sum(1) - ready.labels).square().sum().backward()
                ready.step(None)
            return np.concatenate([block.vectors for block in store.rows("item")]).tobytes()

    batches = [batch_of(each, schema) for each in columns]
    assert trained(columns, 0) == trained(columns, 3) == trained(batches, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item": None}, r"batch 2, column 'item': has shape \(\) and needs \[3\]"),
        ({"item": [1.5, 2.0, 3.0]}, "batch 2, column 'item': holds float64 values; ids are integers"),
        ({"item": [1, 2]}, r"has shape \(2,\) and needs \[3\]"),
        ({"item": ["a", "b", "c"]}, "column 'item': holds <U1 values; ids are integers"),
        ({"price": [1, 2, float("inf")]}, "column 'price': holds a number that is infinite"),
        ({"price": ["a", "b", "c"]}, "column 'price': holds values that are no numbers"),
        ({"y": [0, 2, 1]}, r"column 'y': label 2 lies outside of \[0, 1\]"),
        ({"w": [1, -1, 1]}, "column 'w': a weight is no finite number"),
        ({"tags": [[1], [2]]}, "column 'tags': has 2 rows and the labels have 3"),
        ({"tag_weights": [[1], [], [1]]}, "column 'tag_weights': holds lists of other lengths"),
        ({"tags": ([1, 2], [0, 5, 1, 2])}, "column 'tags': has offsets that do not rise from 0 to 2"),
        ({"tags": ([[1, 2]], [0])}, "column 'tags': is a pair, and neither"),
        ({"history": [1, 2, 3]}, "column 'history': holds single ids, and lists are needed"),
    ],
)
def test_a_column_that_does_not_fit_is_named_with_its_batch(change, message):
    with pytest.raises(DataError, match=message):
        batch_of({**COLUMNS, **change}, SCHEMA, number=2)


def test_a_column_that_is_missing_is_named_and_so_is_a_batch_that_is_no_dict():
    without = {name: values for name, values in COLUMNS.items() if name != "item"}
    with pytest.raises(DataError, match="batch 1, column 'item': is not there; columns are history, price, tag"):
        batch_of(without, SCHEMA)
    with pytest.raises(DataError, match="batch 1: is a list; give dicts of columns"):
        batch_of([1], SCHEMA)


@pytest.mark.parametrize(
    ("feature", "what"),
    [
        (sfctr.Dense("x", transform="log1p"), "transform"),
        (sfctr.Dense("x", clip=(0, 1)), "clip"),
        (sfctr.Dense("x", standardize=True), "standardize"),
        (sfctr.Categorical("x", dtype="string"), "strings"),
        (sfctr.Bag("x", separator=" "), "a separator"),
        (sfctr.Bucket("x", boundaries=[1.0]), "kind Bucket"),
        (sfctr.TimePart("x", part="hour", column="x"), "kind TimePart"),
        (sfctr.Cross("x", of=["a", "b"]), "kind Cross"),
    ],
)
def test_what_is_work_of_a_reader_is_refused(feature, what):
    with pytest.raises(SchemaError, match=f"feature 'x' has {what}, which batches of dicts do not go through"):
        batch_of({"y": [0]}, sfctr.Schema(label="y", features=[feature]))


ALIGNED = sfctr.Schema(
    label="y",
    features=[
        sfctr.Sequence("h", table="item", max_length=3),
        sfctr.Sequence("c", table="kind", max_length=3, aligned_with="h"),
    ],
)


def test_a_null_in_either_of_two_aligned_sequences_drops_the_position_in_both():
    batch = batch_of({"y": [1, 0], "h": [[1, None, 3], [4, 5, 6, 7]], "c": [[None, 7, 8], [1, 2, None, 3]]}, ALIGNED)
    found = {name: (batch.keys[name].keys.tolist(), batch.keys[name].offsets.tolist()) for name in ("h", "c")}
    assert found == {"h": ([3, 4, 5, 7], [0, 1, 4]), "c": ([8, 1, 2, 3], [0, 1, 4])}


def test_aligned_sequences_of_other_lengths_are_refused_though_the_cut_would_make_them_equal():
    with pytest.raises(DataError, match="has lists of other lengths than those of"):
        batch_of({"y": [1], "h": [[1, 2, 3, 4, 5]], "c": [[1, 2, 3, 4]]}, ALIGNED)


def test_a_single_label_is_refused():
    with pytest.raises(DataError, match="batch 1, column 'y': is a single value"):
        batch_of({"y": 1.0, "h": [[1]], "c": [[1]]}, ALIGNED)

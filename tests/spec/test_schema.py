"""A schema refuses features that do not go together, in words that say what to change."""

from __future__ import annotations

import pytest

from sfctr.spec.errors import SchemaError
from sfctr.spec.schema import Bag, Bucket, Categorical, Schema, Sequence

ITEM = Categorical("item")


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([], "a schema needs at least one feature"),
        ([ITEM, Bag("item")], "feature 'item' is there twice; names must differ"),
        ([Categorical("answer", column="click")], "feature 'answer' reads the label column 'click'"),
        ([ITEM, Sequence("seen", target="itm")], "'seen': target is 'itm', which is not a feature with one key a row"),
        ([Bag("tags"), Sequence("seen", target="tags")], "target is 'tags', which is not a feature with one key a row"),
        ([Sequence("seen", aligned_with="seen")], "aligned_with is 'seen', which is not another sequence"),
        ([ITEM, Sequence("seen", aligned_with="item")], "aligned_with is 'item', which is not another sequence"),
    ],
)
def test_features_that_do_not_go_together_are_refused(features, words):
    with pytest.raises(SchemaError) as error:
        Schema(label="click", features=features)
    assert words in str(error.value)


@pytest.mark.parametrize("other", [Categorical("b", table="t"), Bag("b", table="t"), Sequence("b", table="t")])
def test_features_of_one_table_keep_the_strings_of_its_keys_all_or_none(other):
    keeps = Categorical("a", table="t", keep_strings=True)
    for features in ([keeps, other], [other, keeps]):
        with pytest.raises(SchemaError) as error:
            Schema(label="click", features=features)
        assert str(error.value) == (
            "table 't': feature 'a' keeps the strings of its keys and feature 'b' does not; set keep_strings alike in"
            " both, or give them tables of their own"
        )
    Schema(label="click", features=[keeps, Categorical("c", table="u"), Bag("d", table="t", keep_strings=True)])


@pytest.mark.parametrize("boundaries", [[1.0, float("nan"), 2.0], [float("nan")], [float("inf")], [2.0, 1.0], []])
def test_boundaries_rise(boundaries):
    with pytest.raises(SchemaError, match="boundaries must be a rising list"):
        Bucket("price", boundaries=boundaries)


def test_a_label_is_named_once():
    with pytest.raises(SchemaError, match="name a column twice"):
        Schema(label=("click", "click"), features=[Categorical("item")])

"""When outcomes differ, and how the place is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfctr.spec.batch import Batch, Keys
from sfctr.spec.runfile import Data, RunFile
from sfctr.spec.schema import Bag, Categorical, Dense, Schema
from sfctr.spec.tables import Table
from sfctr.verify.compare import DRIFTS, Place, SameBits, WithinDrift, first_step_at_odds
from sfctr.verify.difference import any_difference, culprit, last_difference
from sfctr.verify.outcome import Outcome, TableRows

RUN = RunFile(
    data=Data(),
    schema=Schema(
        label="click",
        features=[Categorical("item", dtype="int64"), Bag("tags", dtype="string"), Dense("price")],
    ),
    tables=(Table("item", dim=2), Table("tags", dim=2)),
)
BATCH = Batch(
    size=3,
    dense={"price": np.zeros((3, 2), np.float32)},
    keys={
        "item": Keys(keys=np.array([5, 2**64 - 1, 0], np.uint64), nulls=np.array([0, 0, 1], np.uint8)),
        "tags": Keys(keys=np.array([7, 8, 8], np.uint64), offsets=np.array([0, 2, 2, 3])),
    },
    labels=np.zeros((3, 1), np.float32),
    label_mask=np.ones((3, 1), np.bool_),
    rows=np.arange(3),
)


HASH_7 = "0x0000000000000007 (the hash of a text)"


def floats(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def outcome() -> Outcome:
    """Two steps; rows 5, -1 and the missing one of item, rows 7 and 8 of tags."""
    item = {"vector": floats([1, 2], [3, 4], [5, 6]), "state m of the vector": floats([0, 0], [0, 0], [0, 0])}
    keys, nulls = np.array([5, 2**64 - 1, 0], np.uint64), np.array([False, False, True])
    tags = TableRows(
        keys=np.array([7, 8], np.uint64), nulls=np.zeros(2, bool), fields={"vector": floats([1, 1], [2, 2])}
    )
    return Outcome(
        logits=(floats([0.5], [0.25], [1]), floats([0.5], [2], [1])),
        rows={
            "item": TableRows(keys=keys, nulls=nulls, fields=item),
            "tags": tags,
        },
        dense={"model.bias": floats(0.5)},
        batch=BATCH,
        inputs={"item": floats([1, 2], [3, 4], [5, 6]), "tags": floats([3, 3], [0, 0], [2, 2])},
    )


def changed(kind: str, name: str, at: tuple[int, ...], value: float, field: str = "") -> Outcome:
    """The outcome with one number changed."""
    plain = outcome()
    if kind == "logit":
        logits = [values.copy() for values in plain.logits]
        logits[int(name) - 1][at] = value
        return replace(plain, logits=tuple(logits))
    part = getattr(plain, kind) if kind != "rows" else plain.rows[name].fields
    key = name if kind != "rows" else field
    values = part[key].copy()
    values[at] = value
    new = {**part, key: values}
    if kind == "rows":
        return replace(plain, rows={**plain.rows, name: replace(plain.rows[name], fields=new)})
    return replace(plain, **{kind: new})


def test_an_outcome_equals_itself():
    assert first_step_at_odds(outcome(), outcome(), SameBits()) is None
    assert any_difference(outcome(), outcome(), SameBits(), RUN) is None
    assert last_difference(outcome(), outcome(), SameBits(), RUN) is None


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (0.0, -0.0, True),
        (np.nan, np.nan, False),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), True),
        (3, 3, False),
    ],
)
def test_every_bit_counts(one, other, differs):
    assert SameBits().wrong(Place("logit"), floats(one), floats(other)).tolist() == [differs]


@pytest.mark.parametrize(
    ("found", "step", "sentence"),
    [
        (changed("logit", "1", (1, 0), 0.3), 1, "step 1: logit of row 1 of the batch is 0.3, not 0.25"),
        (changed("logit", "2", (1, 0), 0.3), 2, "step 2: logit of row 1 of the batch is 0.3, not 2.0"),
        (
            changed("rows", "item", (0, 1), 9, "vector"),
            2,
            "step 2: table 'item', key 5: vector[1] became 9.0, not 2.0",
        ),
        (
            changed("rows", "item", (1, 0), 9, "state m of the vector"),
            2,
            "step 2: table 'item', key -1: state m of the vector[0] became 9.0, not 0.0",
        ),
        (
            changed("rows", "item", (2, 0), 9, "vector"),
            2,
            "step 2: table 'item', the row of a missing value: vector[0] became 9.0, not 5.0",
        ),
        (
            changed("rows", "tags", (1, 0), 9, "vector"),
            2,
            "step 2: table 'tags', key 0x0000000000000008 (the hash of a text): vector[0] became 9.0, not 2.0",
        ),
        (changed("dense", "model.bias", (0,), 0.6), 2, "step 2: model.bias[0] became 0.6, not 0.5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_difference_is_named_with_its_step_table_key_and_field(found, step, sentence):
    assert first_step_at_odds(found, outcome(), SameBits()) == step
    assert str(any_difference(found, outcome(), SameBits(), RUN)) == sentence


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            changed("inputs", "item", (1, 0), 9),
            "step 2: table 'item', key -1: feature 'item' read vector 9.0, not 3.0",
        ),
        (
            changed("inputs", "item", (2, 1), 9),
            "step 2: table 'item', the row of a missing value: feature 'item' read vector 9.0, not 6.0",
        ),
        # row 0 of the batch looks up tags 7 and 8, and row 2, which is right, looks up 8
        (
            changed("inputs", "tags", (0, 0), 9),
            f"step 2: table 'tags', key {HASH_7}: feature 'tags' read vector 9.0, not 3.0",
        ),
    ],
)
def test_what_was_read_wrongly_comes_before_all_that_follows_from_it(found, sentence):
    found = replace(found, logits=changed("logit", "2", (0, 0), 7).logits)
    assert str(last_difference(found, outcome(), SameBits(), RUN)) == sentence


def test_the_culprit_is_a_key_that_no_right_row_looks_up():
    keys = Keys(keys=np.array([1, 2, 2, 3, 1], np.uint64), offsets=np.array([0, 2, 4, 5]))
    assert culprit(keys, np.array([True, False, False])) == (False, 1)  # 2 is read by row 1; 1 and 2 are both cleared
    assert culprit(keys, np.array([False, True, False])) == (False, 3)


def test_an_empty_bag_that_reads_something_is_named_by_its_row():
    found = changed("inputs", "tags", (1, 0), 9)
    assert culprit(BATCH.keys["tags"], np.array([False, True, False])) is None
    sentence = "step 2: feature 'tags' read vector 9.0, not 0.0 in row 1 of the batch, which looks up no key"
    assert str(last_difference(found, outcome(), SameBits(), RUN)) == sentence


def test_a_row_that_one_side_lacks_is_named():
    less = outcome().rows["tags"]
    less = TableRows(keys=less.keys[:1], nulls=less.nulls[:1], fields={"vector": less.fields["vector"][:1]})
    found = replace(outcome(), rows={**outcome().rows, "tags": less})
    assert first_step_at_odds(found, outcome(), SameBits()) == 2
    assert str(any_difference(found, outcome(), SameBits(), RUN)).endswith(
        "0x0000000000000008 (the hash of a text): is missing"
    )
    assert str(any_difference(outcome(), found, SameBits(), RUN)).endswith("is there and should not be")


def test_a_run_that_ends_early_differs():
    found = replace(outcome(), logits=outcome().logits[:1])
    assert first_step_at_odds(found, outcome(), SameBits()) == 1
    assert str(any_difference(found, outcome(), SameBits(), RUN)) == "step 1: the run ends after it, not after 2 steps"


def test_a_number_may_lie_ten_drifts_away_and_no_further():
    nudged = changed("rows", "item", (0, 0), 1.5, "vector")
    rule = WithinDrift(outcome(), [outcome(), nudged])
    near = changed("rows", "item", (1, 1), 4 + DRIFTS * 0.5, "vector")
    assert first_step_at_odds(near, outcome(), rule) is None
    assert rule.largest(near, outcome()) == pytest.approx(DRIFTS)
    assert first_step_at_odds(changed("rows", "item", (1, 1), 9.1, "vector"), outcome(), rule) == 2
    assert first_step_at_odds(changed("rows", "tags", (1, 1), 2.1, "vector"), outcome(), rule) == 2  # another table


def test_the_least_drift_is_one_unit_in_the_last_place_of_the_largest():
    rule, unit = WithinDrift(outcome(), []), 2.0**-23
    bias = outcome().dense["model.bias"][0]
    assert first_step_at_odds(changed("dense", "model.bias", (0,), bias + 0.5 * DRIFTS * unit), outcome(), rule) is None
    assert first_step_at_odds(changed("dense", "model.bias", (0,), bias + 0.6 * DRIFTS * unit), outcome(), rule) == 2


def test_an_infinite_number_makes_no_others_near():
    expected = changed("rows", "item", (0, 0), np.inf, "vector")
    found = replace(expected, rows=changed("rows", "item", (0, 0), np.inf, "vector").rows)
    rule = WithinDrift(expected, [expected])
    assert first_step_at_odds(found, expected, rule) is None
    found.rows["item"].fields["vector"][1, 1] = 1e9
    assert first_step_at_odds(found, expected, rule) == 2


def test_numbers_that_are_not_there_are_not_near():
    rule = WithinDrift(outcome(), [])
    assert first_step_at_odds(changed("dense", "model.bias", (0,), np.nan), outcome(), rule) == 2

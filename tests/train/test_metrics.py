"""Metrics by hand and against scikit-learn; what is undefined says why."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from sfctr.spec.batch import KEEP_NULL
from sfctr.spec.errors import ModelError
from sfctr.train.metrics import SLICE_LIMIT, LabelMetrics, Metrics, log_losses, sigmoid


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def metrics_of(logits, labels, weights=None, **kwargs):
    with LabelMetrics() as metrics:
        arrays = [np.array(values, np.float64) for values in (logits, labels)]
        metrics.update(*arrays, None if weights is None else np.array(weights, np.float64), **kwargs)
        return metrics.result()


def test_four_rows_by_hand():
    result = metrics_of([logit(0.8), logit(0.5), logit(0.5), logit(0.2)], [1, 1, 0, 0])
    assert result["rows"] == 4
    assert result["auc"] == 3.5 / 4
    assert result["logloss"] == pytest.approx(-(2 * math.log(0.8) + 2 * math.log(0.5)) / 4)
    assert result["ne"] == pytest.approx(result["logloss"] / math.log(2))
    assert result["calibration"] == pytest.approx(1.0)
    assert "undefined" not in result


def test_log_loss_far_out_is_neither_clamped_nor_lost():
    losses = log_losses(np.array([800.0, -800.0, 40.0, -40.0]), np.array([0.0, 1.0, 1.0, 0.0]))
    assert losses[:2].tolist() == [800.0, 800.0]
    assert losses[2:] == pytest.approx([math.exp(-40)] * 2, rel=1e-12)


@given(st.floats(-1e4, 1e4))
def test_sigmoid_never_overflows_and_mirrors(x):
    p, q = sigmoid(np.array([x, -x]))
    assert 0 <= p <= 1
    assert p + q == pytest.approx(1.0)


def test_weights_equal_repeated_rows_and_agree_with_scikit_learn():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=300), (rng.random(300) < 0.4).astype(float)
    counts = rng.integers(0, 4, 300)
    weighted = metrics_of(logits, labels, counts)
    repeated = metrics_of(np.repeat(logits, counts), np.repeat(labels, counts))
    for name in ("auc", "logloss", "ne", "calibration"):
        assert weighted[name] == repeated[name], name
    expected = log_loss(labels, sigmoid(logits), sample_weight=counts)
    assert weighted["logloss"] == pytest.approx(expected, rel=1e-12)
    expected = roc_auc_score(labels, logits, sample_weight=counts)
    assert weighted["auc"] == pytest.approx(expected, abs=1e-12)


def test_soft_labels_have_a_log_loss_and_no_auc():
    result = metrics_of([0.0, 1.0], [0.25, 1.0])
    assert result["auc"] is None
    assert result["undefined"] == {"auc": "some labels are neither 0 nor 1"}
    assert result["logloss"] == pytest.approx((math.log(2) + math.log1p(math.exp(-1))) / 2)


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [
        ([1, 1], {"auc": "all labels are 1", "ne": "the mean label is 1, whose entropy is 0"}),
        (
            [0, 0],
            {
                "auc": "all labels are 0",
                "ne": "the mean label is 0, whose entropy is 0",
                "calibration": "the labels sum to 0",
            },
        ),
        (
            [],
            dict.fromkeys(
                ["auc", "logloss", "ne", "calibration"], "there is no row with a known label and a weight above 0"
            ),
        ),
    ],
)
def test_what_has_no_meaning_is_none_with_the_reason(labels, undefined):
    result = metrics_of([0.5] * len(labels), labels)
    assert result["undefined"] == undefined
    assert all(result[name] is None for name in undefined)
    if labels:
        assert result["logloss"] > 0


def test_parts_merge_into_the_whole_to_the_last_bit():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=1001), (rng.random(1001) < 0.1).astype(float)
    weights = rng.random(1001).astype(np.float32).astype(float)
    group = rng.integers(0, 9, 1001).astype(np.uint64)

    def state(part):
        metrics = LabelMetrics(group=True, slices=["g"], memory=4096)
        metrics.update(logits[part], labels[part], weights[part], group[part], {"g": group[part]})
        return metrics

    with (
        state(slice(None)) as whole,
        state(slice(0, 100)) as a,
        state(slice(100, 900)) as b,
        state(slice(900, None)) as c,
    ):
        expected = whole.result()
        b.merge(c)
        b.merge(a)
        found = b.result()
    for name in ("rows", "logloss", "ne", "calibration"):
        assert found[name] == expected[name]
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-13)
    assert found["gauc"] == pytest.approx(expected["gauc"], abs=1e-13)


def test_grouped_auc_weighs_groups_by_impressions_and_skips_those_of_one_class():
    logits = np.array([2.0, 1.0, 0.0, 1.0, 2.0, 9.0, 9.0])
    labels = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    group = np.array([1, 1, 1, 2, 2, 3, 3], np.uint64)
    with LabelMetrics(group=True) as metrics:
        metrics.update(logits, labels, None, group)
        result = metrics.result()
    # group 1: AUC 1 over 3 rows; group 2: AUC 0 over 2 rows; group 3 has one class
    assert (result["gauc"], result["gauc_groups"], result["gauc_skipped"]) == (3 / 5, 2, 1)


def test_grouped_auc_without_any_mixed_group_says_so():
    with LabelMetrics(group=True) as metrics:
        metrics.update(np.zeros(2), np.array([1.0, 0.0]), None, np.array([1, 2], np.uint64))
        result = metrics.result()
    assert result["gauc"] is None
    assert result["undefined"]["gauc"] == "no group has labels of both classes"


def test_slices_report_the_auc_of_each_value_by_its_text_or_signed_number():
    keys = np.array([7, 7, 2**64 - 1, 2**64 - 1, int(KEEP_NULL)], np.uint64)
    with LabelMetrics(slices=["device"]) as metrics:
        labels = np.array([1.0, 0, 1, 0, 1])
        metrics.update(np.array([2.0, 1, 1, 2, 0]), labels, None, None, {"device": keys})
        result = metrics.result({"device": {7: "phone"}})
    assert result["slices"] == {
        "device": {
            "phone": {"auc": 1.0, "weight": 2.0},
            "-1": {"auc": 0.0, "weight": 2.0},
            "null": {"auc": None, "weight": 1.0},
        }
    }


def test_of_many_slices_the_heaviest_are_reported():
    keys = np.repeat(np.arange(200, dtype=np.uint64), np.arange(200))
    with LabelMetrics(slices=["c"]) as metrics:
        metrics.update(np.zeros(len(keys)), np.zeros(len(keys)), None, None, {"c": keys})
        slices = metrics.result()["slices"]["c"]
    assert len(slices) == SLICE_LIMIT
    assert min(entry["weight"] for entry in slices.values()) == 100


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_is_refused(bad):
    with pytest.raises(ModelError, match=f"the model scored a row with {bad}, and a score must be a finite number"):
        metrics_of([0.0, bad], [0, 1])


def test_several_labels_have_a_set_each_without_their_masked_rows_and_a_mean_above():
    logits = np.array([[2.0, 1.0], [1.0, 2.0], [0.0, 0.0]])
    labels = np.array([[1, 0], [0, 1], [0, 0]], np.float32)
    mask = np.array([[True, True], [True, True], [True, False]])
    with Metrics(["click", "buy"]) as metrics:
        metrics.update(logits, labels, mask, None, {})
        result = metrics.result()
    click, buy = result["labels"]["click"], result["labels"]["buy"]
    assert (click["rows"], buy["rows"], result["rows"]) == (3, 2, 3)
    assert (click["auc"], buy["auc"], result["auc"]) == (1.0, 1.0, 1.0)
    assert result["logloss"] == pytest.approx((click["logloss"] + buy["logloss"]) / 2)


def test_the_mean_over_labels_is_undefined_where_one_of_them_is():
    with Metrics(["click", "buy"]) as metrics:
        labels = np.array([[1, 0], [0, 0]], np.float32)
        metrics.update(np.array([[1.0, 0], [0, 0]]), labels, np.ones((2, 2), bool), None, {})
        result = metrics.result()
    assert result["auc"] is None
    assert result["undefined"]["auc"] == "label 'buy': all labels are 0"
    assert result["labels"]["click"]["auc"] == 1.0

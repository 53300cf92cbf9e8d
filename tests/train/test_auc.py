"""AUC: against scikit-learn, by hand, merged, grouped, and spilled to disk by a tiny bound."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sfctr.spec.errors import CapacityError
from sfctr.train.auc import ROW, ScoreRuns

TINY = 40 * ROW.itemsize


def auc_of(scores, labels, weights=None, *, memory=1 << 20, step=7):
    with ScoreRuns(memory=memory) as runs:
        for start in range(0, len(scores), step):
            part = slice(start, start + step)
            runs.add(scores[part], labels[part], None if weights is None else weights[part])
        (areas,) = runs.areas()
        return float(areas.auc[0]), runs.spilled_runs


def sample(seed: int, rows: int, distinct: int):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, distinct, rows) / 8.0 - 3
    labels = (rng.random(rows) < 0.3).astype(np.float64)
    weights = rng.random(rows).astype(np.float32).astype(np.float64) * (rng.random(rows) < 0.9)
    return scores, labels, weights


@pytest.mark.parametrize("distinct", [3, 50, 100_000])
@pytest.mark.parametrize("memory", [1 << 20, TINY])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_scikit_learns_with_ties_and_weights_in_memory_and_spilled(seed, distinct, memory):
    scores, labels, weights = sample(seed, 3000, distinct)
    found, spilled = auc_of(scores, labels, weights, memory=memory)
    assert found == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights), abs=1e-12)
    plain, _ = auc_of(scores, labels, memory=memory)
    assert plain == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert (spilled > 3) == (memory == TINY and distinct > 3)


def test_a_pair_in_order_counts_one_and_a_tie_a_half():
    # positives 2 and 1, negatives 1 and 0: 2>1, 2>0, 1=1 (half), 1>0
    assert auc_of(np.array([2.0, 1, 1, 0]), np.array([1.0, 1, 0, 0]))[0] == 3.5 / 4


def test_a_weight_is_that_many_rows_of_the_same_kind():
    scores, labels, _ = sample(1, 200, 20)
    counts = np.random.default_rng(0).integers(0, 4, 200)
    weighted, _ = auc_of(scores, labels, counts.astype(np.float64))
    assert weighted == auc_of(np.repeat(scores, counts), np.repeat(labels, counts))[0]


@pytest.mark.parametrize("memory", [1 << 20, TINY])
def test_merged_states_are_the_state_of_the_whole(memory):
    scores, labels, weights = sample(4, 999, 400)
    whole, _ = auc_of(scores, labels, weights)
    with ScoreRuns(memory=memory) as left, ScoreRuns(memory=memory) as right:
        left.add(scores[:400], labels[:400], weights[:400])
        right.add(scores[400:], labels[400:], weights[400:])
        before = [a.area.tolist() for a in right.areas()]
        left.merge(right)
        (areas,) = left.areas()
        assert float(areas.auc[0]) == pytest.approx(whole, abs=1e-13)
        assert [a.area.tolist() for a in right.areas()] == before


@pytest.mark.parametrize("memory", [1 << 20, TINY])
def test_groups_have_the_auc_of_their_own_rows_and_none_with_one_class(memory):
    scores, labels, weights = sample(5, 2000, 300)
    groups = np.random.default_rng(1).integers(0, 30, 2000).astype(np.uint64) * np.uint64(1 << 59)
    labels[groups == 0] = 1
    with ScoreRuns(memory=memory) as runs:
        runs.add(scores, labels, weights, groups)
        found = {}
        for areas in runs.areas():
            found |= dict(zip(areas.group.tolist(), zip(areas.auc, areas.weight, strict=True), strict=True))
    assert list(found) == sorted(set(groups.tolist()))
    for group, (auc, weight) in found.items():
        mine = groups == group
        assert weight == pytest.approx(weights[mine].sum())
        if group == 0:
            assert np.isnan(auc)
        else:
            expected = roc_auc_score(labels[mine], scores[mine], sample_weight=weights[mine])
            assert auc == pytest.approx(expected, abs=1e-12)


def test_equal_scores_take_the_room_of_one():
    with ScoreRuns(memory=TINY) as runs:
        for _ in range(100):
            runs.add(np.array([0.5] * 50), np.array([0.0, 1.0] * 25))
        assert runs.spilled_runs == 0
        (areas,) = runs.areas()
        assert (areas.positive[0], areas.negative[0], areas.auc[0]) == (2500, 2500, 0.5)


def test_no_rows_and_rows_without_weight_give_nothing():
    with ScoreRuns() as runs:
        runs.add(np.zeros(0), np.zeros(0))
        runs.add(np.ones(3), np.ones(3), np.zeros(3))
        assert list(runs.areas()) == []


def test_scores_that_cannot_be_spilled_say_where_and_what_to_do(tmp_path):
    gone = str(tmp_path / "gone")
    words = rf"outgrew {TINY} bytes of memory and could not be written to {re.escape(gone)}: .*; free space there"
    with ScoreRuns(memory=TINY, directory=gone) as runs, pytest.raises(CapacityError, match=words):
        runs.add(np.arange(100.0), np.ones(100))

"""The loss by hand, and what a model may give it."""

from __future__ import annotations

import math

import pytest
import torch

from sfctr.spec.errors import ModelError
from sfctr.train.loss import as_logits, row_weights, weighted_bce

LN2 = math.log(2)


def test_it_is_the_weighted_mean_over_known_labels_summed_over_labels():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [50.0, -50.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    weights = row_weights(mask, torch.tensor([1.0, 3.0, 9.0]))
    expected = (1 * LN2 + 3 * math.log(4 / 3)) / 4 + (1 * LN2 + 3 * LN2) / 4
    assert weighted_bce(logits, labels, weights).item() == pytest.approx(expected, rel=1e-6)


def test_soft_labels_pull_towards_their_value():
    logits = torch.zeros(1, 1, requires_grad=True)
    weighted_bce(logits, torch.tensor([[0.25]]), torch.ones(1, 1)).backward()
    assert logits.grad.item() == pytest.approx(0.5 - 0.25)


def test_a_batch_without_any_known_label_has_loss_zero_and_gradient_zero():
    logits = torch.zeros(3, 1, requires_grad=True)
    loss = weighted_bce(logits, torch.zeros(3, 1), row_weights(torch.zeros(3, 1, dtype=torch.bool), None))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.tolist() == [[0.0]] * 3


def test_parts_with_the_totals_of_the_whole_add_up_to_the_whole():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(7, 2, generator=generator), torch.rand(7, 2, generator=generator)
    weights = torch.rand(7, 2, generator=generator)
    totals = weights.sum(0)
    parts = [weighted_bce(logits[s], labels[s], weights[s], totals) for s in (slice(0, 3), slice(3, 7))]
    assert sum(parts).item() == pytest.approx(weighted_bce(logits, labels, weights).item(), rel=1e-6)


def test_logits_may_be_a_column_or_a_vector_for_one_label():
    assert as_logits(torch.zeros(3), 3, 1, "m").shape == (3, 1)
    assert as_logits(torch.zeros(3, 1), 3, 1, "m").shape == (3, 1)
    assert as_logits(torch.zeros(3, 2, dtype=torch.bfloat16), 3, 2, "m").dtype == torch.float32


@pytest.mark.parametrize(
    ("output", "labels", "words"),
    [
        (torch.zeros(3, 2), 1, r"model 'm' gave float32 of shape \(3, 2\) for 3 rows; .* of shape \(3,\)"),
        (torch.zeros(1), 1, r"gave float32 of shape \(1,\) for 3 rows"),
        (torch.zeros(3), 2, r"gave float32 of shape \(3,\) for 3 rows; .* of shape \(3, 2\)"),
        (torch.zeros(3, dtype=torch.int64), 1, "gave a tensor of int64"),
        ((torch.zeros(3),), 1, "gave a tuple"),
    ],
)
def test_anything_that_is_no_logit_per_row_and_label_is_refused(output, labels, words):
    with pytest.raises(ModelError, match=words):
        as_logits(output, 3, labels, "m")

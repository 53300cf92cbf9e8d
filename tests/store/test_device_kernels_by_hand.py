"""Rows on a device: answers worked out by hand, and what holds beside the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sfctr import _native
from sfctr.store import device as dev
from sfctr.store.device.levels import level_out, stable_order, sum_levels
from sfctr.store.device.optimizers import power, powers, root

F32 = np.float32


def feature(pooling: str, ids: list[int], *, lengths: list[int] | None = None, **options: Any) -> dev.FeatureIds:
    offsets = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = options.pop("weights", None)
    return dev.FeatureIds(
        table=0,
        pooling=pooling,
        ids=np.array(ids, dtype=np.int32),
        offsets=offsets,
        weights=None if weights is None else np.array(weights, dtype=F32),
        **options,
    )


def pooled(one: dev.FeatureIds, num_rows: int) -> tuple[list[Any], list[Any]]:
    """One feature over three keys, in lines 4, 0 and 2: vectors [1, 10], [2, 20], [3, 30], weights 100, 200, 300."""
    cache = torch.full((5, 3), torch.nan)
    slots = torch.tensor([4, 0, 2])
    cache[slots] = torch.tensor([[1.0, 10, 100], [2, 20, 200], [3, 30, 300]])
    vectors, weights = dev.pool(cache, slots, dev.plan_pooling([one], 0, num_rows), dim=2, linear=True)
    return vectors[0].tolist(), weights[0][:, 0].tolist()


def test_one_key_a_row_reads_its_record() -> None:
    assert pooled(feature("one", [2, 0, 2]), 3) == ([[3, 30], [1, 10], [3, 30]], [300, 100, 300])


def test_bags_are_weighted_summed_and_averaged() -> None:
    bag = {"ids": [0, 1, 2], "lengths": [1, 0, 2]}
    assert pooled(feature("sum", **bag), 3) == ([[1, 10], [0, 0], [5, 50]], [100, 0, 500])
    assert pooled(feature("mean", **bag), 3) == ([[1, 10], [0, 0], [2.5, 25]], [100, 0, 250])
    assert pooled(feature("sum", weights=[2, 3, -1], **bag), 3) == ([[2, 20], [0, 0], [3, 30]], [200, 0, 300])
    # The weighted mean divides by the sum of the weights: (3 * 2 - 1 * 3) / 2.
    assert pooled(feature("mean", weights=[2, 3, -1], **bag), 3) == ([[1, 10], [0, 0], [1.5, 15]], [100, 0, 150])


def test_a_mean_whose_weights_cancel_is_zero_and_trains_nothing() -> None:
    bag = feature("mean", [0, 1], lengths=[2], weights=[1, -1])
    assert pooled(bag, 1) == ([[0, 0]], [0])
    assert merged([bag], [[[5.0, 7.0]]], num_unique=2).tolist() == [[0, 0], [0, 0]]


def test_a_sequence_is_left_aligned_with_zeros_after_it() -> None:
    vectors, weights = pooled(feature("sequence", [1, 0, 2], lengths=[2, 0, 1], max_length=2), 3)
    assert vectors == [[[2, 20], [1, 10]], [[0, 0], [0, 0]], [[3, 30], [0, 0]]]
    assert weights == [300, 0, 300]


def gradients_of(features: list[dev.FeatureIds], grads: list[Any], num_unique: int) -> dev.Gradients:
    tensors = [torch.tensor(grad) for grad in grads]
    num_rows = tensors[0].shape[0]
    gradients = dev.Gradients(num_unique, tensors[0].shape[-1], "cpu")
    dev.add_gradients(
        gradients,
        tensors,
        [],
        is_frozen=[False] * len(features),
        plan_of=lambda part: dev.plan_merging(features, 0, num_rows, part),
    )
    return gradients


def merged(features: list[dev.FeatureIds], grads: list[Any], num_unique: int) -> Tensor:
    return gradients_of(features, grads, num_unique).vectors


def test_gradients_are_merged_over_features_bags_and_sequences() -> None:
    features = [
        feature("one", [0, 1]),
        feature("mean", [0, 2], lengths=[2, 0]),
        feature("sequence", [2, 2, 0], lengths=[1, 2], max_length=2),
    ]
    grads = [[[1.0], [2.0]], [[8.0], [16.0]], [[[10.0], [99.0]], [[20.0], [30.0]]]]
    # Key 0: 1 + 8 / 2 + 30; key 1: 2; key 2: 8 / 2 + 10 + 20; key 3 was not looked up.
    assert merged(features, grads, num_unique=4)[:, 0].tolist() == [35, 2, 34, 0]
    assert gradients_of(features, grads, num_unique=4).reached.tolist() == [1, 1, 1, 0]


def test_contributions_are_added_in_chunks_of_64_and_the_chunks_in_order() -> None:
    # 2^-24 added to 1 is lost (ties go to even); two of them in a chunk of their own are 2^-23, which 1 can hold.
    grads = np.zeros((66, 1), dtype=F32)
    grads[[0, 64, 65], 0] = [1, 2.0**-24, 2.0**-24]
    assert merged([feature("one", [0] * 66)], [grads], num_unique=1).item() == 1 + 2.0**-23
    assert merged([feature("one", [0] * 66)], [np.roll(grads, -1, axis=0)], num_unique=1).item() == 1.0


def test_row_ranges_add_up_and_features_without_a_gradient_are_not_reached() -> None:
    features = [feature("one", [0, 1, 0]), feature("one", [2, 2, 1])]
    gradients = dev.Gradients(3, 1, "cpu")
    for begin, end in ((0, 2), (2, 3)):
        dev.add_gradients(
            gradients,
            [torch.full((end - begin, 1), float(end)), None],
            [None, torch.full((end - begin, 1), 0.5)],
            is_frozen=[False, False],
            plan_of=lambda part, begin=begin, end=end: dev.plan_merging(features, begin, end, part),
        )
    assert gradients.vectors[:, 0].tolist() == [2 + 3, 2, 0]
    assert gradients.linear[:, 0].tolist() == [0, 0.5, 0.5 + 0.5]
    assert gradients.reached.tolist() == [1, 3, 2]
    assert dev.grad_norm_squared(gradients) == 25 + 4 + 0.25 + 1


def line(**numbers: float) -> list[float]:
    return [float(numbers.get(column, 0.0)) for column in _native.hyper_columns()]


def test_only_reached_rows_are_updated_each_by_its_tables_numbers() -> None:
    # Row-wise Adagrad on [6, 0, 0, 0]: mean of squares 9, s = 7 + 9 = 16; w - lr / 4 * 6 with lr 0.5 and, table 1, 1.
    rules = dev.Rules(
        vector="rowwise_adagrad", linear=None, layout=_native.RowGroup(4, False, "rowwise_adagrad", None, []).layout()
    )
    cache = torch.tensor([[1.0, 2, 2, 2, 7]]).repeat(6, 1)
    gradients = dev.Gradients(4, 4, "cpu")
    gradients.vectors[:] = torch.tensor([6.0, 0, 0, 0])
    gradients.reached[:] = [1, 0, 1, 0]
    dev.update(
        cache,
        torch.tensor([5, 1, 3, 0]),
        gradients,
        rules,
        table_begin=np.array([0, 2, 2, 3, 4]),
        step=1,
        scale=1.0,
        hyper=np.array([line(lr=0.5), line(lr=1.0)]),
    )
    untouched = [1, 2, 2, 2, 7]
    assert cache[5].tolist() == [0.25, 2, 2, 2, 16]
    assert cache[3].tolist() == [-0.5, 2, 2, 2, 16]
    assert cache[[0, 1, 2, 4]].tolist() == [untouched] * 4


def test_the_step_never_asks_the_device_for_a_value() -> None:
    """Tensors of torch's "meta" device have shapes and no values: whoever asks for one fails."""
    features = [
        feature("one", [0, 1, 1]),
        feature("mean", [0, 2, 1], lengths=[1, 2, 0], weights=[1, 1, -1]),
        feature("sequence", [2, 2, 0], lengths=[1, 2, 0], max_length=2),
    ]
    for rule in ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adam_row", "ftrl"):
        group = _native.RowGroup(3, True, rule, rule, [])
        cache = torch.empty(9, group.record_floats, device="meta")
        slots = torch.empty(3, dtype=torch.int64, device="meta")
        gradients = dev.Gradients(3, 3, "meta")
        for begin, end in ((0, 1), (1, 3)):
            plan = dev.on_device(dev.plan_pooling(features, begin, end), "meta")
            vectors, weights = dev.pool(cache, slots, plan, dim=3, linear=True)
            dev.add_gradients(
                gradients,
                vectors,
                weights,
                is_frozen=[False] * 3,
                plan_of=lambda part, begin=begin, end=end: dev.on_device(
                    dev.plan_merging(features, begin, end, part), "meta"
                ),
            )
        hyper = np.array([line(lr=0.1, beta1=0.9, beta2=0.9)])
        dev.update(
            cache,
            slots,
            gradients,
            dev.Rules(vector=rule, linear=rule, layout=group.layout()),
            table_begin=np.array([0, 3, 3]),
            step=1,
            scale=0.5,
            hyper=hyper,
            linear_hyper=hyper,
        )
        assert gradients.reached.tolist() == [3, 3, 3]


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor) -> tuple[Tensor, ...]:
        plan = dev.plan_pooling([feature("one", [0, 1]), feature("one", [1, 1])], 0, 2)
        return tuple(dev.pool(torch.ones(2, 3), torch.tensor([0, 1]), plan, dim=3, linear=False)[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        ctx.seen = grads


def test_a_model_may_change_what_it_is_given_in_place() -> None:
    first, second = _Pooled.apply(torch.empty(0, requires_grad=True))
    first.mul_(3.0)
    assert second.tolist() == [[1.0] * 3] * 2
    (first.sum() + second.sum()).backward()


@given(lengths=st.lists(st.integers(0, 9), max_size=40).map(lambda values: np.array(values, dtype=np.int64)))
def test_levels_are_prefixes_and_sum_each_group_in_order(lengths: np.ndarray) -> None:
    levels = level_out(lengths)
    assert sorted(levels.places.tolist()) == list(range(lengths.sum()))
    assert sorted(levels.rows.tolist()) == list(range(lengths.size))
    assert list(levels.sizes) == [int((lengths > level).sum()) for level in range(lengths.max(initial=0))]
    # Powers of 3 tell order: each position of a group has a weight of its own, so a sum names who is in it.
    values = np.concatenate([np.zeros(0), *(3.0 ** np.arange(length) for length in lengths)])
    laid_out = torch.empty(values.size, 1)
    laid_out[torch.from_numpy(levels.places), 0] = torch.from_numpy(values).float()
    sums = sum_levels(laid_out, levels.sizes, lengths.size)[torch.from_numpy(levels.rows), 0]
    assert sums.tolist() == [(3.0**length - 1) / 2 for length in lengths]


@given(values=st.lists(st.integers(0, 2**31 - 1), max_size=50).map(lambda found: np.array(found, dtype=np.int64)))
def test_a_stable_order_is_that_of_a_stable_sort(values: np.ndarray) -> None:
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


def test_roots_are_correctly_rounded() -> None:
    """A float32's root taken in double and rounded is its correctly rounded root (53 bits exceed twice 24 and two)."""
    values = np.arange(1 << 20, dtype=np.int32) * 37 + (115 << 23)
    floats = values.view(F32)
    expected = np.sqrt(floats.astype(np.float64)).astype(F32)
    np.testing.assert_array_equal(root(torch.from_numpy(floats)).numpy(), expected)


@pytest.mark.parametrize("base", [0.0, 0.5, 0.9, 0.999, 1 - 2.0**-30])
def test_powers_of_many_are_the_powers_of_each(base: float) -> None:
    exponents = [1, 2, 3, 7, 1000, 65_535, 2**24 - 1, 2**24]
    found = powers(base, torch.tensor(exponents, dtype=torch.int32))
    assert found.tolist() == [power(base, exponent) for exponent in exponents]

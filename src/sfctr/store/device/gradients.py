"""Backward: gradients of positions merged into those of unique keys, and their norm, in the native kernels' order.

  U unique keys, K of them reached by one call, N contributions, F features, D dim

A key's contributions are taken in the order feature, row, position, in chunks of 64 that are summed from +0 in order,
and the chunks' sums are added in order. What was reached follows from which features have a gradient, so it is known
on the host without asking the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sfctr.spec.batch import F32, I64, U8

from .levels import sum_levels
from .optimizers import LANES, add_lanes
from .plans import MergePlan

VECTOR, WEIGHT = 1, 2
"""Bits of `reached`."""

NORM_BLOCK = 1024
"""Keys whose squares are added one after another before blocks are."""


class Gradients:
    """The merged gradients of one working set.

    vectors float32 [U, D] and linear float32 [U, 1], zero where not reached; reached uint8 [U], on the host: bit 1
    says that a key's vector was reached, bit 2 its first-order weight.
    """

    def __init__(self, num_unique: int, dim: int, device: torch.device | str) -> None:
        self.vectors = torch.zeros(num_unique, dim, device=device)
        self.linear = torch.zeros(num_unique, 1, device=device)
        self.reached: U8 = np.zeros(num_unique, dtype=np.uint8)


def add_gradients(
    gradients: Gradients,
    grads: Sequence[Tensor | None],
    linear_grads: Sequence[Tensor | None],
    *,
    is_frozen: Sequence[bool],
    plan_of: Callable[[tuple[int, ...]], MergePlan],
) -> None:
    """Add the gradients of one row range to those of its keys.

    grads [F]: shaped as pool's vectors, float32, or None for a feature that is not reached; linear_grads the same for
    first-order weights, or an empty list. is_frozen [F]: features whose table is never trained. plan_of: the plan of
    this row range for the features given, on the gradients' device; asked once if both lists reach the same features.
    """
    vector_part, linear_part = _part(grads, is_frozen), _part(linear_grads, is_frozen)
    plan = plan_of(vector_part) if vector_part else None
    if plan is not None:
        flat = torch.cat([_rows(grads[f], gradients.vectors.shape[1]) for f in plan.part])
        _assign(gradients, gradients.vectors, VECTOR, plan, _merged(flat, plan.take, plan))
    if linear_part:
        linear_plan = plan if plan is not None and linear_part == vector_part else plan_of(linear_part)
        flat = torch.cat([_rows(linear_grads[f], 1) for f in linear_plan.part])
        # The native kernel adds each weight's chunks to +0 even where there is one: it matters to a sum flushed to -0.
        merged = _merged(flat, linear_plan.take_linear, linear_plan).add_(0.0)
        _assign(gradients, gradients.linear, WEIGHT, linear_plan, merged)


def add_merged(gradients: Gradients, keys: I64, vectors: F32, linear: F32, reached: U8) -> None:
    """Add gradients that were merged elsewhere to those of unique keys, int64 [n], each there once.

    vectors [n, D] and linear [n] (or [0]) count where `reached` has their bit; what comes first to a key is taken as it
    is.
    """
    for bit, target, values in ((VECTOR, gradients.vectors, vectors), (WEIGHT, gradients.linear, linear[:, None])):
        chosen = np.flatnonzero(reached & bit) if values.size else np.empty(0, np.int64)
        if chosen.size == 0:
            continue
        places = torch.from_numpy(keys[chosen]).to(target.device)
        merged = torch.from_numpy(values[chosen]).to(target.device)
        _assign_at(gradients, target, bit, keys[chosen], places, merged)


def _part(grads: Sequence[Tensor | None], is_frozen: Sequence[bool]) -> tuple[int, ...]:
    return tuple(f for f, grad in enumerate(grads) if grad is not None and grad.numel() > 0 and not is_frozen[f])


def _rows(grad: Tensor | None, width: int) -> Tensor:
    assert grad is not None
    return grad.reshape(-1, width)


def _merged(flat: Tensor, take: Tensor, plan: MergePlan) -> Tensor:
    """[K, D] of contributions that lie among flat [rows, D] where `take` says."""
    contributions = flat.index_select(0, take)
    if plan.divisors is not None and plan.weights is not None:
        contributions.div_(plan.divisors).mul_(plan.weights)
    sums = sum_levels(contributions, plan.sizes, plan.num_chunks)
    if plan.hot is not None:
        of_chunks = sums.index_select(0, plan.hot.take)
        sums.index_copy_(0, plan.hot.rows, sum_levels(of_chunks, plan.hot.sizes, plan.hot.rows.shape[0]))
    return sums.index_select(0, plan.rows)


def _assign(gradients: Gradients, target: Tensor, bit: int, plan: MergePlan, merged: Tensor) -> None:
    """Assign the merged gradients, or add them where an earlier row range reached the key."""
    _assign_at(gradients, target, bit, plan.host_keys, plan.keys, merged)


def _assign_at(gradients: Gradients, target: Tensor, bit: int, host_keys: I64, keys: Tensor, merged: Tensor) -> None:
    """The same for the unique keys given, on the host and on the device."""
    reached = (gradients.reached[host_keys] & bit) != 0
    if reached.any():
        before = target.index_select(0, keys)
        mask = torch.from_numpy(reached[:, None]).to(target.device)
        merged = torch.where(mask, before + merged, merged)
    target.index_copy_(0, keys, merged)
    gradients.reached[host_keys] |= bit


def grad_norm_squared(gradients: Gradients) -> float:
    """Sum of the squares of all merged gradients in double: keys in order within blocks of 1024, blocks in order."""
    of_keys = torch.cat([_sums_of_squares(gradients.vectors), _squares(gradients.linear)], dim=1)
    padded = pad(of_keys, (0, 0, 0, -of_keys.shape[0] % NORM_BLOCK))
    of_blocks = padded.view(-1, 2 * NORM_BLOCK).cumsum(dim=1)[:, -1]
    return reduce(add, of_blocks.tolist(), 0.0)  # sum() would compensate for rounding


def _sums_of_squares(vectors: Tensor) -> Tensor:
    """float64 [U, 1]."""
    lanes = vectors.new_zeros(vectors.shape[0], LANES, dtype=torch.float64)
    for columns in torch.split(vectors, LANES, dim=1):
        lanes[:, : columns.shape[1]].add_(_squares(columns))
    return add_lanes(lanes)


def _squares(values: Tensor) -> Tensor:
    doubles = values.double()
    return doubles * doubles

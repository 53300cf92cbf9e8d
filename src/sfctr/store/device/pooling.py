"""Forward: rows of the cache pooled into a batch, in the native kernels' order of operations.

n rows of the range, N positions, G bags, L max_length, D dim
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .levels import sum_levels
from .plans import Bags, PoolPlan
from .records import load_floats, load_vectors


def pool(cache: Tensor, slots: Tensor, plan: PoolPlan, *, dim: int, linear: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Each feature's vectors [n, D] (sequences [n, L, D], zeros after the last) and first-order weights [n, 1].

    The second list is empty without `linear`. The tensors share memory but no autograd history.
    """
    lines = slots.index_select(0, plan.ids)
    vectors = _vectors(load_vectors(cache, lines, dim), plan)
    weights = _weights(load_floats(cache, lines, dim, 1), plan) if linear else []
    # Autograd refuses to let views that leave a function together be modified in place; detached, they are no views.
    return [part.detach() for part in vectors], [part.detach() for part in weights]


def _vectors(rows: Tensor, plan: PoolPlan) -> list[Tensor]:
    plain, in_bags, in_sequences = torch.split(rows, list(plan.counts))
    n, dim = plan.num_rows, rows.shape[1]
    lengths = [length for pooling, length in zip(plan.poolings, plan.max_lengths, strict=True) if pooling == "sequence"]
    padded = rows.new_zeros(n * sum(lengths), dim).index_copy_(0, plan.sequence_places, in_sequences)
    padded_parts = torch.split(padded, [n * length for length in lengths])
    sequences = [part.view(n, length, dim) for part, length in zip(padded_parts, lengths, strict=True)]
    return _by_feature(plan, plain, _sums(in_bags, plan.bags), iter(sequences))


def _weights(rows: Tensor, plan: PoolPlan) -> list[Tensor]:
    plain, in_bags, in_sequences = torch.split(rows, list(plan.counts))
    sequences = _sums(in_sequences, plan.sequences)
    return _by_feature(plan, plain, _sums(in_bags, plan.bags), _split(sequences, plan.num_rows))


def _by_feature(plan: PoolPlan, plain: Tensor, bags: Tensor, sequences: Iterator[Tensor]) -> list[Tensor]:
    one, bag = _split(plain, plan.num_rows), _split(bags, plan.num_rows)
    of_kind = {"one": one, "sum": bag, "mean": bag, "sequence": sequences}
    return [next(of_kind[pooling]) for pooling in plan.poolings]


def _split(rows: Tensor, num_rows: int) -> Iterator[Tensor]:
    """The rows of one feature after another, without end where there are none."""
    begin = 0
    while True:
        yield rows[begin : begin + num_rows]
        begin += num_rows


def _sums(rows: Tensor, bags: Bags) -> Tensor:
    """[G, D] of positions [N, D] that lie in levels."""
    if bags.weights is not None:
        rows = rows * bags.weights
    sums = sum_levels(rows, bags.sizes, bags.rows.shape[0]).index_select(0, bags.rows)
    if bags.divisors is not None:
        sums.div_(bags.divisors)
    if bags.cancelled is not None:
        sums.masked_fill_(bags.cancelled, 0.0)
    return sums

"""The end of a step: every row that a gradient reached is updated in the cache, and no other row is touched.

C lines of the cache, U unique keys, K of them reached, T tables, D dim
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfctr.spec.batch import I64
from sfctr.store.rules import F64

from .gradients import VECTOR, WEIGHT, Gradients
from .optimizers import UPDATES, Numbers, numbers_of, state_widths
from .records import load_floats, load_vectors, store_floats, store_vectors


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Native names of the rules that update a group's vectors ("none" where dim is 0) and first-order weights (None
    without), and where a record's parts lie: RowGroup.layout()."""

    vector: str
    linear: str | None
    layout: Mapping[str, tuple[int, int]]


def update(
    cache: Tensor,
    slots: Tensor,
    gradients: Gradients,
    rules: Rules,
    *,
    table_begin: I64,
    step: int,
    scale: float,
    hyper: F64,
    linear_hyper: F64 | None = None,
) -> None:
    """Multiply the merged gradients by `scale` and apply the optimizers to the reached rows of cache[slots], in place.

    table_begin: int64 [2T + 1], WorkingSet.table_begin(). step counts committed steps from 1. hyper, linear_hyper:
    float64 [T, len(hyper_columns())], as RowGroup.update takes them. The gradients stay as they are.
    """
    assert step >= 1
    keys = np.flatnonzero(gradients.reached & VECTOR)
    if keys.size:
        lines, gradient = _reached(slots, gradients.vectors, keys, scale)
        weights = load_vectors(cache, lines, gradient.shape[1])
        tables = list(_tables(keys, table_begin, hyper, step))
        _update_states(cache, lines, gradient, weights, rules.vector, rules.layout["vector_state"][0], tables)
        store_vectors(cache, lines, weights)
    keys = np.flatnonzero(gradients.reached & WEIGHT)
    if keys.size:
        assert rules.linear is not None and linear_hyper is not None
        lines, gradient = _reached(slots, gradients.linear, keys, scale)
        first = rules.layout["linear"][0]
        weights = load_floats(cache, lines, first, 1)
        tables = list(_tables(keys, table_begin, linear_hyper, step))
        _update_states(cache, lines, gradient, weights, rules.linear, rules.layout["linear_state"][0], tables)
        store_floats(cache, lines, first, weights)


def _reached(slots: Tensor, gradient: Tensor, keys: I64, scale: float) -> tuple[Tensor, Tensor]:
    """Lines [K] and scaled gradients [K, D] of the reached keys."""
    lines = slots
    if keys.size < slots.shape[0]:
        chosen = torch.from_numpy(keys).to(slots.device)
        lines, gradient = slots.index_select(0, chosen), gradient.index_select(0, chosen)
    return lines, gradient if scale == 1 else gradient * scale


def _tables(keys: I64, table_begin: I64, hyper: F64, step: int) -> Iterator[tuple[slice, Numbers]]:
    """Which of the reached keys share their numbers: neighbouring tables of equal hyper-parameters in one."""
    ends = np.searchsorted(keys, table_begin[2::2]).tolist()
    begin = 0
    for t, end in enumerate(ends):
        if t + 1 < len(ends) and np.array_equal(hyper[t], hyper[t + 1]):
            continue
        if begin < end:
            yield slice(begin, end), numbers_of(hyper[t], step)
        begin = end


def _update_states(
    cache: Tensor,
    lines: Tensor,
    gradient: Tensor,
    weights: Tensor,
    rule: str,
    first: int,
    tables: list[tuple[slice, Numbers]],
) -> None:
    """Apply a rule to weights [K, D] in place, and to the state that begins at float `first` of the records."""
    states, at = [], first
    for width in state_widths(rule, gradient.shape[1]):
        states.append((at, load_floats(cache, lines, at, width)))
        at += width
    for rows, numbers in tables:
        UPDATES[rule](numbers, gradient[rows], weights[rows], *(state[rows] for _, state in states))
    for at, state in states:
        store_floats(cache, lines, at, state)

"""Batches made by hand, and stores whose rows all begin at one value, so that answers can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from sfctr.spec.batch import Batch, Keys


def one_keys(values: Sequence[int | None]) -> Keys:
    """Keys of a one-key feature; None is a missing value."""
    nulls = np.array([v is None for v in values], dtype=np.uint8)
    keys = np.array([0 if v is None else v % 2**64 for v in values], dtype=np.uint64)
    return Keys(keys=keys, nulls=nulls if nulls.any() else None)


def list_keys(rows: Sequence[Sequence[int]], weights: Sequence[Sequence[float]] | None = None) -> Keys:
    """Keys of a bag or sequence."""
    flat = np.array([key % 2**64 for row in rows for key in row], dtype=np.uint64)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    flat_weights = None if weights is None else np.array([w for row in weights for w in row], dtype=np.float32)
    return Keys(keys=flat, offsets=offsets, weights=flat_weights)


def make_batch(keys: Mapping[str, Keys], size: int, labels: Sequence[float] | None = None, **more: object) -> Batch:
    values = np.zeros((size, 1), dtype=np.float32) if labels is None else np.array(labels, dtype=np.float32)[:, None]
    return Batch(
        size=size,
        keys=keys,
        labels=values,
        label_mask=np.ones(values.shape, dtype=np.bool_),
        rows=np.arange(size, dtype=np.int64),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def one() -> Callable[[Sequence[int | None]], Keys]:
    return one_keys


@pytest.fixture
def many() -> Callable[..., Keys]:
    return list_keys


@pytest.fixture
def batch() -> Callable[..., Batch]:
    return make_batch

"""What the device needs to know about a row range, made on the host in NumPy: where to gather, in which order to add.

  B rows of the batch, n rows of a range, N positions of it, G bags, K keys reached, D dim

Both plans depend on the batch alone, not on any row, so they can be made while earlier batches train. Weights of a
bag are summed here, under the planning thread's mode for denormals: a thread keeps the one of whoever started it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sfctr.spec.batch import I64

from .features import I32, FeatureIds, FeatureRows
from .levels import level_out, stable_order

Scalar = TypeVar("Scalar", bound=np.generic)

MERGE_CHUNK = 64
"""Contributions to one gradient are summed in chunks of so many: the native kMergeChunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bags:
    """How positions that lie in levels become one row a bag.

    rows: int64 [G], bag -> its sum. weights: float32 [N, 1], or None for ones. divisors: float32 [G, 1], or None.
    cancelled: bool [G, 1], bags that read as 0 since their weights cancel, or None.
    """

    sizes: tuple[int, ...]
    rows: Tensor
    weights: Tensor | None
    divisors: Tensor | None
    cancelled: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan:
    """Forward of rows [begin, end).

    ids: int32 [N], virtual ids of all positions: features of one key, then bags in levels, then sequences in levels.
    counts: how many of each kind. sequence_places: int64, the vector that each position of a sequence is, among those
    of all sequences. poolings, max_lengths: of the features, in their order.
    """

    num_rows: int
    ids: Tensor
    counts: tuple[int, int, int]
    bags: Bags
    sequences: Bags
    sequence_places: Tensor
    poolings: tuple[str, ...]
    max_lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HotKeys:
    """Keys with several chunks. take: int64, their chunks' sums in levels; rows: int64, where each key's sum goes."""

    take: Tensor
    sizes: tuple[int, ...]
    rows: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class MergePlan:
    """Backward of the features `part` in rows [begin, end).

    take, take_linear: int32 [N], where each contribution lies among the gradients of those features put one after
    another, chunks in levels; they differ where sequences have several vectors a row. divisors, weights: float32
    [N, 1], or None where nothing scales. rows: int64 [K], where each key's sum lies. keys: int64 [K], rising virtual
    ids; host_keys: the same on the host.
    """

    part: tuple[int, ...]
    take: Tensor
    take_linear: Tensor
    divisors: Tensor | None
    weights: Tensor | None
    sizes: tuple[int, ...]
    num_chunks: int
    hot: HotKeys | None
    rows: Tensor
    keys: Tensor
    host_keys: I64


def plan_pooling(features: Sequence[FeatureIds], begin: int, end: int) -> PoolPlan:
    """The plan of one forward. `features` are all of the working set's, in their order."""
    parts = [feature.rows(begin, end) for feature in features]
    plain = [part for part in parts if part.feature.pooling == "one"]
    bags = [part for part in parts if part.feature.pooling in ("sum", "mean")]
    sequences = [part for part in parts if part.feature.pooling == "sequence"]
    bag_ids, bag_plan, _ = _plan_bags(bags)
    sequence_ids, sequence_plan, places = _plan_bags(sequences)
    vectors = np.empty(places.size, dtype=np.int64)
    vectors[places] = _joined(_vector_rows(sequences), np.int64)
    plain_ids = _joined((part.ids for part in plain), np.int32)
    return PoolPlan(
        num_rows=end - begin,
        ids=torch.from_numpy(np.concatenate([plain_ids, bag_ids, sequence_ids])),
        counts=(plain_ids.size, bag_ids.size, sequence_ids.size),
        bags=bag_plan,
        sequences=sequence_plan,
        sequence_places=torch.from_numpy(vectors),
        poolings=tuple(feature.pooling for feature in features),
        max_lengths=tuple(feature.max_length for feature in features),
    )


def _plan_bags(parts: Sequence[FeatureRows]) -> tuple[I32, Bags, I64]:
    """Virtual ids in levels, the plan of their bags, and the place of every position in the levels."""
    levels = level_out(_joined((part.lengths for part in parts), np.int64))
    ids = np.empty(levels.places.size, dtype=np.int32)
    ids[levels.places] = _joined((part.ids for part in parts), np.int32)
    weights = divisors = cancelled = None
    if any(part.weights is not None for part in parts):
        weights = np.empty(ids.size, dtype=np.float32)
        weights[levels.places] = _joined((part.position_weights() for part in parts), np.float32)
    if any(part.feature.pooling == "mean" for part in parts):
        found = [part.divisors() for part in parts]
        divisors = _joined((of_part for of_part, _ in found), np.float32)
        cancelled = _joined((of_part for _, of_part in found), np.bool_)
    plan = Bags(
        sizes=levels.sizes,
        rows=torch.from_numpy(levels.rows),
        weights=_column(weights),
        divisors=_column(divisors),
        cancelled=_column(cancelled) if cancelled is not None and cancelled.any() else None,
    )
    return ids, plan, levels.places


def _vector_rows(parts: Iterable[FeatureRows]) -> Iterable[I64]:
    """For each feature the row of every position among the vectors [rows * vectors a row, D] of all features."""
    base = 0
    for part in parts:
        width = part.feature.vectors_a_row
        yield base + part.row_of_position() * width + (part.place_in_row() if width > 1 else 0)
        base += part.lengths.size * width


def _batch_rows(parts: Iterable[FeatureRows]) -> Iterable[I64]:
    """The same among one value a row of the batch and feature."""
    base = 0
    for part in parts:
        yield base + part.row_of_position()
        base += part.lengths.size


def plan_merging(features: Sequence[FeatureIds], begin: int, end: int, part: tuple[int, ...]) -> MergePlan:
    """The plan of one backward that reaches the features numbered in `part`, rising."""
    parts = [features[f].rows(begin, end) for f in part]
    ids = _joined((of_part.ids for of_part in parts), np.int32).astype(np.int64)
    order, host_keys, counts = _by_key(ids)
    num_chunks = -(-counts // MERGE_CHUNK)
    first_chunk = np.cumsum(num_chunks) - num_chunks
    lengths = np.full(num_chunks.sum(), MERGE_CHUNK)
    lengths[first_chunk + num_chunks - 1] = counts - MERGE_CHUNK * (num_chunks - 1)
    levels = level_out(lengths)
    position = np.empty(ids.size, dtype=np.int64)
    position[levels.places] = order
    take = torch.from_numpy(_joined(_vector_rows(parts), np.int64)[position].astype(np.int32))
    take_linear = take
    if any(of_part.feature.vectors_a_row > 1 for of_part in parts):
        take_linear = torch.from_numpy(_joined(_batch_rows(parts), np.int64)[position].astype(np.int32))
    divisors, weights = _scales(parts, position)
    return MergePlan(
        part=part,
        take=take,
        take_linear=take_linear,
        divisors=divisors,
        weights=weights,
        sizes=levels.sizes,
        num_chunks=lengths.size,
        hot=_hot_keys(num_chunks, levels.rows),
        rows=torch.from_numpy(levels.rows[first_chunk]),
        keys=torch.from_numpy(host_keys),
        host_keys=host_keys,
    )


def _by_key(ids: I64) -> tuple[I64, I64, I64]:
    """Positions [N] by key and then in order, the keys there are [K], rising, and how many positions each has [K]."""
    order = stable_order(ids)
    by_key = ids[order]
    first = np.flatnonzero(np.diff(by_key, prepend=-1))
    return order, by_key[first], np.diff(first, append=ids.size)


def _hot_keys(num_chunks: I64, chunk_rows: I64) -> HotKeys | None:
    """Of keys with num_chunks [K] chunks each, whose sums lie at chunk_rows [sum of num_chunks], key by key."""
    is_hot = num_chunks > 1
    if not is_hot.any():
        return None
    levels = level_out(num_chunks[is_hot])
    take = np.empty(levels.places.size, dtype=np.int64)
    take[levels.places] = chunk_rows[np.repeat(is_hot, num_chunks)]
    rows = np.empty(levels.rows.size, dtype=np.int64)
    rows[levels.rows] = chunk_rows[(np.cumsum(num_chunks) - num_chunks)[is_hot]]
    return HotKeys(take=torch.from_numpy(take), sizes=levels.sizes, rows=torch.from_numpy(rows))


def _scales(parts: Sequence[FeatureRows], position: I64) -> tuple[Tensor | None, Tensor | None]:
    if not any(part.is_scaled for part in parts):
        return None, None
    found = [part.scales() for part in parts]
    divisors, weights = (_joined((of_part[i] for of_part in found), np.float32)[position] for i in (0, 1))
    return _column(divisors), _column(weights)


def _joined(arrays: Iterable[npt.NDArray[Scalar]], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    return np.concatenate([np.empty(0, dtype=dtype), *arrays])


def _column(values: npt.NDArray[Any] | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values[:, None])

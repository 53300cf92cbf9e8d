"""Batches cut and joined by rows. A part is a view where it can be; nothing is changed in place.

A batch that is one process's part of a whole (Batch.whole) is cut and joined by rows of the whole: of those it has the
ones that have places there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sfctr.spec.batch import Batch, Keys

from .column import bounds_of


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Rows start:stop of a batch, as views."""
    whole, places = batch.whole, batch.places
    if whole is not None and places is not None:
        whole, (first, last) = stop - start, np.searchsorted(places, [start, stop])
        places = places[first:last] - start
        start, stop = int(first), int(last)
    part = slice(start, stop)
    return Batch(
        size=stop - start,
        dense={name: values[part] for name, values in batch.dense.items()},
        keys={name: _cut_keys(keys, start, stop) for name, keys in batch.keys.items()},
        labels=batch.labels[part],
        label_mask=batch.label_mask[part],
        weight=None if batch.weight is None else batch.weight[part],
        rows=batch.rows[part],
        time=None if batch.time is None else batch.time[part],
        keep={name: values[part] for name, values in batch.keep.items()},
        whole=whole,
        places=places,
    )


def _cut_keys(keys: Keys, start: int, stop: int) -> Keys:
    if keys.offsets is None:
        nulls = None if keys.nulls is None else keys.nulls[start:stop]
        return Keys(keys=keys.keys[start:stop], nulls=nulls if nulls is not None and nulls.any() else None)
    offsets = keys.offsets[start : stop + 1]
    items = slice(offsets[0], offsets[-1])
    weights = None if keys.weights is None else keys.weights[items]
    return Keys(keys=keys.keys[items], offsets=offsets - offsets[0] if offsets[0] else offsets, weights=weights)


def joined(batches: Sequence[Batch]) -> Batch:
    """The rows of all, in turn."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    whole, places = None, None
    if first.whole is not None:
        bounds = bounds_of(np.array([b.whole_size for b in batches]))
        whole = int(bounds[-1])
        places = np.concatenate([b.places + at for b, at in zip(batches, bounds, strict=False) if b.places is not None])
    return Batch(
        size=sum(b.size for b in batches),
        dense={name: np.concatenate([b.dense[name] for b in batches]) for name in first.dense},
        keys={name: _joined_keys([b.keys[name] for b in batches]) for name in first.keys},
        labels=np.concatenate([b.labels for b in batches]),
        label_mask=np.concatenate([b.label_mask for b in batches]),
        weight=_joined_optional([b.weight for b in batches]),
        rows=np.concatenate([b.rows for b in batches]),
        time=_joined_optional([b.time for b in batches]),
        keep={name: np.concatenate([b.keep[name] for b in batches]) for name in first.keep},
        whole=whole,
        places=places,
    )


def _joined_optional(arrays: Sequence[Any]) -> Any:
    return None if arrays[0] is None else np.concatenate(arrays)


def _joined_keys(parts: Sequence[Keys]) -> Keys:
    keys = np.concatenate([p.keys for p in parts])
    if parts[0].offsets is None:
        nulls = None
        if any(p.nulls is not None for p in parts):
            nulls = np.concatenate([np.zeros(len(p.keys), np.uint8) if p.nulls is None else p.nulls for p in parts])
        return Keys(keys=keys, nulls=nulls)
    lengths = np.concatenate([np.diff(p.offsets) for p in parts if p.offsets is not None])
    return Keys(keys=keys, offsets=bounds_of(lengths), weights=_joined_optional([p.weights for p in parts]))


def regrouped(batches: Iterable[Batch | None], size: int, *, skip: int = 0) -> Iterator[Batch | None]:
    """The same rows in batches of `size`, but for the last, without the first `skip` rows. A None, which says only that
    work goes on, is passed on, and stands for batches that are skipped."""
    waiting: list[Batch] = []
    have = 0
    for batch in batches:
        if batch is None or skip >= batch.whole_size:
            skip -= 0 if batch is None else batch.whole_size
            yield None
            continue
        start, skip = skip, 0
        while batch.whole_size - start >= size - have:
            stop = start + size - have
            yield joined([*waiting, cut(batch, start, stop)])
            waiting, have, start = [], 0, stop
        if start < batch.whole_size:
            waiting.append(cut(batch, start, batch.whole_size))
            have += batch.whole_size - start
    if waiting:
        yield joined(waiting)

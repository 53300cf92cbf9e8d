"""Batches as records: everything of fixed width packed into one row of bytes, lists beside it as they are.

A shuffled batch picks rows from all over memory. Packed, each costs one visit there, and not one for every column.

  n rows, R bytes of a record
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.batch import F32, I64, U8, U64, Batch, Keys

Picks = tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]
"""Row i of what is gathered is row picks[1][i] of piece picks[0][i]."""


@dataclass(frozen=True, slots=True)
class Lists:
    """A ragged column: row b owns items offsets[b]:offsets[b + 1] of keys, and of weights where it has them."""

    offsets: I64
    keys: U64
    weights: F32 | None


@dataclass(frozen=True, slots=True)
class Records:
    """packed: uint8 [n, R]; lists: feature name -> its ragged column."""

    packed: U8
    lists: Mapping[str, Lists]

    @property
    def num_bytes(self) -> int:
        arrays = [a for part in self.lists.values() for a in (part.offsets, part.keys, part.weights) if a is not None]
        return self.packed.nbytes + sum(a.nbytes for a in arrays)

    def cut(self, start: int, stop: int) -> Records:
        """Rows start:stop, as views. Offsets then do not begin at 0."""
        lists = {
            name: Lists(part.offsets[start : stop + 1], part.keys, part.weights) for name, part in self.lists.items()
        }
        return Records(self.packed[start:stop], lists)


class Layout:
    """Where each column of fixed width lies in a record, taken from any batch of a source."""

    def __init__(self, like: Batch) -> None:
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._offsets: list[int] = []
        self._weighted = {name: k.weights is not None for name, k in like.keys.items() if k.offsets is not None}
        self.record_bytes = 0
        for name, array in _columns(like).items():
            self._kinds[name] = (array.dtype, array.shape[1:])
            self._offsets.append(self.record_bytes)
            self.record_bytes += array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))

    def pack(self, batch: Batch) -> Records:
        """The batch's rows as records that own their memory."""
        packed = np.empty((batch.size, self.record_bytes), np.uint8)
        columns = [np.ascontiguousarray(column) for column in _columns(batch).values()]
        _native.pack_records(columns, self._offsets, packed)
        lists = {}
        for name in self._weighted:
            keys = batch.keys[name]
            assert keys.offsets is not None
            lists[name] = Lists(*(None if a is None else a.copy() for a in (keys.offsets, keys.keys, keys.weights)))  # type: ignore[arg-type]
        return Records(packed, lists)

    def gather(self, pieces: Sequence[Records], picks: Picks) -> Batch:
        """A batch of the picked rows."""
        rows = len(picks[0])
        columns = {name: np.empty((rows, *shape), dtype) for name, (dtype, shape) in self._kinds.items()}
        _native.gather_records([p.packed for p in pieces], *picks, self._offsets, list(columns.values()))
        lists = {name: _gathered([p.lists[name] for p in pieces], picks) for name in self._weighted}
        return _batch(columns, lists)


def _columns(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """Arrays of one entry a row, under names that _batch knows again. Every one-key feature has nulls here."""
    found: dict[str, Any] = {f"dense/{name}": values for name, values in batch.dense.items()}
    for name, keys in batch.keys.items():
        if keys.offsets is None:
            found[f"keys/{name}"] = keys.keys
            found[f"nulls/{name}"] = np.zeros(len(keys.keys), np.uint8) if keys.nulls is None else keys.nulls
    found.update({f"keep/{name}": values for name, values in batch.keep.items()})
    found.update({name: getattr(batch, name) for name in ("labels", "label_mask", "weight", "rows", "time")})
    return {name: array for name, array in found.items() if array is not None}


def _batch(columns: dict[str, npt.NDArray[Any]], lists: Mapping[str, Lists]) -> Batch:
    def group(part: str) -> dict[str, Any]:
        mark = f"{part}/"
        return {name[len(mark) :]: array for name, array in columns.items() if name.startswith(mark)}

    nulls = group("nulls")
    keys = {name: Keys(keys=k, nulls=nulls[name] if nulls[name].any() else None) for name, k in group("keys").items()}
    keys.update({n: Keys(keys=part.keys, offsets=part.offsets, weights=part.weights) for n, part in lists.items()})
    return Batch(
        size=len(columns["rows"]),
        dense=group("dense"),
        keys=keys,
        labels=columns["labels"],
        label_mask=columns["label_mask"],
        weight=columns.get("weight"),
        rows=columns["rows"],
        time=columns.get("time"),
        keep=group("keep"),
    )


def _gathered(parts: Sequence[Lists], picks: Picks) -> Lists:
    bounds = [part.offsets for part in parts]
    offsets = np.empty(len(picks[0]) + 1, np.int64)
    _native.gather_offsets(bounds, *picks, offsets)

    def items_of(arrays: Sequence[Any]) -> Any:
        out = np.empty(offsets[-1], arrays[0].dtype)
        _native.gather_items(arrays, bounds, *picks, offsets, out)
        return out

    weights = None if parts[0].weights is None else items_of([part.weights for part in parts])
    return Lists(offsets, items_of([part.keys for part in parts]), weights)

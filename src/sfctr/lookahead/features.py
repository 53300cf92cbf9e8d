"""features(): every feature of a row range of a batch as tensors on the store's device, for training and evaluation.

B rows, K labels, L max_length, D dim
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.schema import Sequence as SequenceFeature
from sfctr.store import Group, Store

from .dense_lookup import dense_features, sequence_mask
from .layout import GroupLayout, Layout
from .pooled import look_up, look_up_on_device


def slice_keys(keys: Keys, begin: int, end: int) -> Keys:
    """The keys of rows [begin, end); views where nothing must be shifted."""
    if keys.offsets is None:
        first, last, offsets = begin, end, None
    else:
        first, last = int(keys.offsets[begin]), int(keys.offsets[end])
        offsets = keys.offsets[begin : end + 1] - first
    return Keys(
        keys=keys.keys[first:last],
        offsets=offsets,
        nulls=None if keys.nulls is None else keys.nulls[first:last],
        weights=None if keys.weights is None else keys.weights[first:last],
    )


def slice_batch(batch: Batch, begin: int, end: int) -> Batch:
    """Rows [begin, end) of a batch."""
    if begin == 0 and end == batch.size:
        return batch
    return Batch(
        size=end - begin,
        dense={name: values[begin:end] for name, values in batch.dense.items()},
        keys={name: slice_keys(keys, begin, end) for name, keys in batch.keys.items()},
        labels=batch.labels[begin:end],
        label_mask=batch.label_mask[begin:end],
        weight=None if batch.weight is None else batch.weight[begin:end],
        rows=batch.rows[begin:end],
        time=None if batch.time is None else batch.time[begin:end],
        keep={name: values[begin:end] for name, values in batch.keep.items()},
        whole=batch.whole,
        places=None if batch.places is None else batch.places[begin:end],
    )


def places_between(batch: Batch, first: int, last: int) -> tuple[int, int]:
    """Begin and end of the rows of a batch whose places in the whole batch are in [first, last)."""
    if batch.places is None:
        return first, last
    begin, end = np.searchsorted(batch.places, [first, last])
    return int(begin), int(end)


class FeatureReader:
    """Makes features() of row ranges; holds the layout and nothing of a batch."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self.layout, self.store = layout, store
        self._anchor = torch.empty(0, requires_grad=True)

    def read(
        self,
        batch: Batch,
        working_sets: Sequence[_native.WorkingSet],
        begin: int,
        end: int,
        *,
        training: bool,
        outside: dict[str, int] | None = None,
    ) -> dict[str, Tensor]:
        """All entries for rows [begin, end), in the schema's order.

        `outside` collects the look-ups of dense tables that found no row (evaluation alone; in training they raise).
        """
        found: dict[str, Tensor] = {}
        for group, layout, working_set in zip(self.store.groups, self.layout.groups, working_sets, strict=True):
            if layout.lookups:
                found |= self._group(layout, group, working_set, begin, end, training=training)
        part = slice_batch(batch, begin, end)
        for lookup in self.layout.dense_tables:
            table = self.store.dense_tables[lookup.table]
            entries, missed = dense_features(table, part.keys[lookup.name], lookup, part.rows, training=training)
            found |= entries
            if outside is not None:
                outside[lookup.name] = outside.get(lookup.name, 0) + missed
        return self._in_order(part, found)

    def _group(
        self,
        layout: GroupLayout,
        group: Group,
        working_set: _native.WorkingSet,
        begin: int,
        end: int,
        *,
        training: bool,
    ) -> dict[str, Tensor]:
        on_device = group.on_device(working_set) if training else None
        if on_device is not None:
            outputs = look_up_on_device(self._anchor, on_device, begin, end)
        else:
            outputs = look_up(self._anchor, layout, group.native, working_set, begin, end, training=training)
        names = [lookup.name for lookup in layout.lookups]
        entries = dict(zip((*names, *(f"{name}.linear" for name in names)), outputs, strict=False))
        empty = {lookup.name for lookup in layout.lookups if lookup.dim == 0}
        return {name: tensor.to(self.store.device) for name, tensor in entries.items() if name not in empty}

    def _in_order(self, part: Batch, found: dict[str, Tensor]) -> dict[str, Tensor]:
        entries: dict[str, Tensor] = {}
        for feature in self.layout.schema.features:
            name = feature.name
            if name in part.dense:
                entries[name] = torch.from_numpy(part.dense[name]).to(self.store.device)
                continue
            for entry in (name, f"{name}.linear"):
                if entry in found:
                    entries[entry] = found[entry]
            if isinstance(feature, SequenceFeature):
                offsets = part.keys[name].offsets
                assert offsets is not None
                mask = sequence_mask(offsets, feature.max_length)
                entries[f"{name}.mask"] = torch.from_numpy(mask).to(self.store.device)
        return entries


def as_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """A tensor over the array's memory (copied only to another device)."""
    return torch.from_numpy(array).to(device)

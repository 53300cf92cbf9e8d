"""ReadView: features() for evaluation and scoring. It reads rows and changes nothing: no row, no count, no order.

A key that has no row reads as zero, or as its table's rare row, and is counted as unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sfctr.spec.batch import Batch
from sfctr.spec.exchange import Exchange
from sfctr.spec.schema import Schema
from sfctr.store import Store

from .dicts import batch_of
from .features import FeatureReader
from .layout import layout_of
from .prepared import Rows


class ReadView:
    """`unseen` holds, for each feature with keys, (look-ups that found no row, all look-ups) since the last reset."""

    def __init__(self, store: Store, schema: Schema, exchange: Exchange | None = None) -> None:
        self._store, self._rows = store, Rows(store, exchange)
        self._reader = FeatureReader(layout_of(schema, store), store)
        self._lookups: dict[str, int] = {}
        self._missed: dict[str, int] = {}

    @torch.no_grad()
    def features(self, batch: Batch | Mapping[str, Any]) -> dict[str, Tensor]:
        """Name -> tensor on the store's device, as Ready.features() gives them, without gradients.

        batch: as Lookahead takes them; a dict needs no labels. Raises DataError where a column does not fit.
        """
        layout = self._reader.layout
        if not isinstance(batch, Batch):
            batch = batch_of(batch, layout.schema, with_labels=False)
        working_sets = layout.working_sets(batch)
        self._rows.view(working_sets)
        for group, group_layout, working_set in zip(self._store.groups, layout.groups, working_sets, strict=True):
            missed = group.native.unseen(working_set)
            for lookup, count in zip(group_layout.lookups, missed.tolist(), strict=True):
                self._missed[lookup.name] = self._missed.get(lookup.name, 0) + count
        for feature in layout.schema.keyed:
            found = batch.keys[feature.name].keys.size
            self._lookups[feature.name] = self._lookups.get(feature.name, 0) + found
        return self._reader.read(batch, working_sets, 0, batch.size, training=False, outside=self._missed)

    @property
    def unseen(self) -> dict[str, tuple[int, int]]:
        return {name: (self._missed.get(name, 0), total) for name, total in self._lookups.items()}

    def reset(self) -> None:
        """Count from zero again."""
        self._lookups, self._missed = {}, {}

"""What sfctr.embed puts in the place of nn.Embedding and nn.EmbeddingBag: the same call, over rows of a store.

Torch's own functions do the look-up, over the few rows that a call needs; so every option means what it means there
and outputs are the same bits. Inside a step (an open Ready of a Lookahead with ids=) rows are those of the batch, and
gradients are collected. Anywhere else, and in evaluation mode without gradients, they are read from the store and
nothing changes.

  N ids of a call, U unique ones, D dim
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfctr import _native
from sfctr.spec.batch import I64
from sfctr.spec.errors import ModelError
from sfctr.store import Store

from .placing import place

_ID_TYPES = (torch.int64, torch.int32)


class OpenRows(Protocol):
    """The batch in training, as modules see it."""

    @property
    def is_open(self) -> bool: ...
    def weight(self, table: str) -> Tensor: ...
    def places(self, table: str, ids: I64) -> I64 | None: ...
    def missing_id(self, table: str, ids: I64) -> int: ...


class Embedded:
    """What the embedded modules of one model share: the store, and the batch whose rows are in training."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batch: OpenRows | None = None

    @property
    def open_batch(self) -> OpenRows | None:
        return self.batch if self.batch is not None and self.batch.is_open else None


class TableRows:
    """The rows of one table, for the modules that share them.

    name: of the module, for messages. padding [D]: the row that padding_idx reads as; it is not the store's.
    """

    def __init__(self, embedded: Embedded, table: str, name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
        self.embedded, self.table, self.name = embedded, table, name
        self.num_embeddings, self.padding_idx = module.num_embeddings, module.padding_idx
        self.is_trained = module.weight.requires_grad
        self.padding: Tensor | None = None
        if module.padding_idx is not None:
            weight = module.weight.detach()
            self.padding = torch.zeros(1, weight.shape[1]) if weight.is_meta else weight[module.padding_idx, None].cpu()

    def __deepcopy__(self, memo: object) -> TableRows:
        """A copy of a model reads the same rows."""
        return self

    def look_up(self, ids: Tensor, *, training: bool) -> tuple[Tensor, Tensor, int | None]:
        """(weight [U, D], places shaped as ids, place of the padding): weight[places] are the rows of ids.

        Raises IndexError for an id outside the table, ModelError where ids are no integers or a gradient would be lost.
        """
        if ids.dtype not in _ID_TYPES:
            raise ModelError(f"'{self.name}' was given ids of {ids.dtype} and needs integers, as nn.Embedding does")
        flat = ids.detach().reshape(-1).cpu().numpy().astype(np.int64)
        outside = (flat < 0) | (flat >= self.num_embeddings)
        if outside.any():
            raise IndexError(
                f"'{self.name}' has rows 0 to {self.num_embeddings - 1} and was asked for {flat[outside][0]}"
            )
        is_padding = np.zeros(flat.size, np.bool_) if self.padding_idx is None else flat == self.padding_idx
        weight, places = self._rows(flat[~is_padding], training=training)
        all_places = np.full(flat.size, weight.shape[0], np.int64)
        all_places[~is_padding] = places
        padding = None
        if self.padding is not None:
            padding = weight.shape[0]
            weight = torch.cat([weight, self.padding.to(weight.device)])
        return weight, torch.from_numpy(all_places).reshape(ids.shape).to(weight.device), padding

    def _rows(self, ids: I64, *, training: bool) -> tuple[Tensor, I64]:
        wants_gradient = self.is_trained and torch.is_grad_enabled()
        batch = self.embedded.open_batch
        if batch is not None and self.is_trained and (wants_gradient or training):
            places = batch.places(self.table, ids)
            if places is not None:
                return batch.weight(self.table), places
            if wants_gradient:
                raise ModelError(
                    f"'{self.name}' was asked for id {batch.missing_id(self.table, ids)}, which no column of ids="
                    f" announces for it; add the column it comes from: ids={{..., COLUMN: model.{self.name}}}"
                )
        elif wants_gradient and training:
            raise ModelError(
                f"'{self.name}' was called in training mode outside of a step, where its gradient would be lost; train"
                f" inside 'for ready in sfctr.Lookahead(loader, store, ids={{COLUMN: model.{self.name}}})', or call"
                " model.eval() first"
            )
        return self._view(ids)

    @torch.no_grad()
    def _view(self, ids: I64) -> tuple[Tensor, I64]:
        """Rows as the store has them; of an id that was never trained and had no weight to begin from, zeros."""
        keys = ids.view(np.uint64)
        found = _native.WorkingSet(1, ids.size, [_native.FeatureKeys(0, "one", keys)])
        store = self.embedded.store
        if not ids.size:
            return torch.empty((0, store.tables[self.table].dim), device=store.device), ids
        placed = place(store, {self.table: found.keys().copy()})
        store.view(placed.working_sets)
        features = placed.reader.read(placed.batch, placed.working_sets, 0, 1, training=False)
        return placed.vectors(features)[self.table], found.virtual_ids(0).astype(np.int64)


class EmbeddedModule(nn.Module):
    """A module whose rows are in a store. It has no parameters: Ready.step() updates its rows."""

    def __init__(self, rows: TableRows, module: nn.Embedding | nn.EmbeddingBag) -> None:
        super().__init__()
        self.rows = rows
        self.num_embeddings, self.embedding_dim = module.num_embeddings, module.embedding_dim
        self.padding_idx = module.padding_idx
        self.train(module.training)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, table='{self.rows.table}', in store"


class EmbeddedEmbedding(EmbeddedModule):
    """Called as nn.Embedding."""

    def forward(self, input: Tensor) -> Tensor:
        """[*] ids -> [*, D]."""
        weight, places, padding = self.rows.look_up(input, training=self.training)
        return F.embedding(places, weight, padding_idx=padding)


class EmbeddedBag(EmbeddedModule):
    """Called as nn.EmbeddingBag of mode "sum" or "mean"."""

    def __init__(self, rows: TableRows, module: nn.EmbeddingBag) -> None:
        super().__init__(rows, module)
        self.mode, self.include_last_offset = module.mode, module.include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """ids [B, L], or [N] with offsets [B] (with include_last_offset [B + 1]) -> [B, D]."""
        weight, places, padding = self.rows.look_up(input, training=self.training)
        if offsets is not None:
            offsets = offsets.to(weight.device, torch.int64)
        return F.embedding_bag(
            places,
            weight,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

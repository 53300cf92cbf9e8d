"""Dropout whose mask belongs to the rows of the whole batch, so that it does not depend on which rank has which rows.

Every rank draws the mask of all rows, from the step's generator, which is the same on all ranks, and takes its own rows
of it. With all rows on one rank the bits are those of nn.Dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError


@dataclass
class Rows:
    """Which rows of a batch are run through the model at the moment: `places` [B] among `whole`; None: all of them."""

    whole: int = 0
    places: Tensor | None = None


class RowDropout(nn.Dropout):
    """nn.Dropout of the rows that `rows` names. columns: (first, total) where x has some columns of a layer's alone."""

    def __init__(self, like: nn.Dropout, rows: Rows, columns: tuple[int, int] | None = None) -> None:
        super().__init__(like.p)
        self.train(like.training)
        self.rows, self.columns = rows, columns

    def forward(self, x: Tensor) -> Tensor:
        places = self.rows.places
        if not self.training or self.p == 0 or places is None:
            return super().forward(x)
        if x.shape[0] != len(places):
            raise ModelError(
                f"dropout got a tensor of shape {tuple(x.shape)} where the model has {len(places)} rows; over several"
                " processes its first dim must be the rows of the batch: reshape around the dropout"
            )
        first, total = self.columns or (0, x.shape[1] if x.dim() > 1 else 0)
        shape = (self.rows.whole, total, *x.shape[2:]) if x.dim() > 1 else (self.rows.whole,)
        mask = nn.functional.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), self.p)[places.to(x.device)]
        return x * (mask[:, first : first + x.shape[1]] if x.dim() > 1 else mask)


def key_by_row(model: nn.Module, rows: Rows) -> bool:
    """Put RowDropout where the model has nn.Dropout; whether it has any. Raises ModelError for other dropout."""
    found = False
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, RowDropout(child, rows))
                found = found or child.p > 0
            elif isinstance(child, nn.modules.dropout._DropoutNd) and not isinstance(child, RowDropout):
                raise ModelError(
                    f"the model has {type(child).__name__}, whose masks would differ over several processes; use"
                    " nn.Dropout, or train in one process"
                )
    return found

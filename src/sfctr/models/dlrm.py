"""DLRM (Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input

from .layers import MLP, Features, Numbers, columns_of, to_logits, vector_of
from .needs import Needs, common_dim


class PairDots(nn.Module):
    """Dot product of every pair of two different fields, [B, F, D] to [B, F (F - 1) / 2]."""

    pairs: Tensor

    def __init__(self, num_fields: int) -> None:
        super().__init__()
        i, j = torch.tril_indices(num_fields, num_fields, offset=-1)
        self.register_buffer("pairs", i * num_fields + j, persistent=False)
        self.width = len(i)

    def forward(self, vectors: Tensor) -> Tensor:
        # index_select, not [:, i, j]: the backward of the latter is not repeatable with two threads.
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)


class DLRM(nn.Module):
    """A bottom MLP makes one vector of all numbers; it and the keyed vectors interact; a top MLP reads the result.

    interaction:   "dot": the bottom vector, and the dot products of all pairs; "cat": all vectors side by side.
    bottom_hidden: hidden sizes of the bottom MLP, which ends in the tables' dim (and has a ReLU there, as theirs does).
    hidden, dropout, batch_norm: of the top MLP.
    dim:           length of the bottom vector where the schema has no keyed feature.
    Without numbers there is no bottom MLP.
    """

    needs: ClassVar[Needs] = Needs(equal_dims=True)

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        num_labels: int = 1,
        interaction: Literal["dot", "cat"] = "dot",
        bottom_hidden: Sequence[int] = (64,),
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        dim: int = 16,
    ) -> None:
        super().__init__()
        self.needs.check("dlrm", inputs)
        if interaction not in ("dot", "cat"):
            raise ModelError(f"model 'dlrm': interaction is {interaction!r} and must be 'dot' or 'cat'")
        self.keyed = tuple(item for item in inputs if item.kind != "dense")
        dim = common_dim(inputs, dim)
        num_numbers = columns_of(inputs)
        self.numbers = Numbers(inputs) if num_numbers else None
        self.bottom = MLP(num_numbers, (*bottom_hidden, dim), batch_norm=batch_norm) if num_numbers else None
        num_fields = len(self.keyed) + int(self.bottom is not None)
        self.dots = PairDots(num_fields) if interaction == "dot" and num_fields > 1 else None
        beside_dots = dim if self.bottom is not None else 0
        width = num_fields * dim if self.dots is None else self.dots.width + beside_dots
        self.top = MLP(width, hidden, out=num_labels, dropout=dropout, batch_norm=batch_norm)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        fields = [vector_of(item, features) for item in self.keyed]
        beside: list[Tensor] = []
        if self.bottom is not None and self.numbers is not None:
            beside.append(self.bottom(self.numbers(features)))
        if self.dots is None:
            return to_logits(self.top(torch.cat(beside + fields, dim=1)))
        dots = self.dots(torch.stack(beside + fields, dim=1))
        return to_logits(self.top(torch.cat([*beside, dots], dim=1)))

"""DCN-V2 (Wang et al., "DCN V2: Improved Deep & Cross Network", WWW 2021), without its mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input

from .layers import MLP, Concat, Features, linear, to_logits
from .needs import Needs


class CrossLayer(nn.Module):
    """x_{l+1} = x_0 * (W x_l + b) + x_l (equation 1); with `rank`, W = U V^T of that rank (equation 2)."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.weight: nn.Module = (
            linear(width, width)
            if rank is None
            else nn.Sequential(linear(width, rank, bias=False), linear(rank, width))
        )

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        crossed: Tensor = first * self.weight(x) + x
        return crossed


class DCNv2(nn.Module):
    """Cross layers over all inputs side by side, and an MLP.

    cross_layers: how many; l layers model products of up to l + 1 inputs.
    rank:         None for full matrices.
    structure:    "parallel": MLP and cross layers both read the inputs and are joined; "stacked": the MLP reads what
                  the cross layers give.
    hidden, dropout, batch_norm: of the MLP; no hidden sizes leave the cross layers alone.
    """

    needs: ClassVar[Needs] = Needs()

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        num_labels: int = 1,
        cross_layers: int = 3,
        rank: int | None = None,
        structure: Literal["parallel", "stacked"] = "parallel",
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.needs.check("dcnv2", inputs)
        if structure not in ("parallel", "stacked"):
            raise ModelError(f"model 'dcnv2': structure is {structure!r} and must be 'parallel' or 'stacked'")
        if cross_layers < 1 or (rank is not None and rank < 1):
            raise ModelError(
                f"model 'dcnv2': cross_layers is {cross_layers} and rank {rank}; both must be at least 1"
                " (leave rank out for full matrices)"
            )
        self.parallel = structure == "parallel" and len(hidden) > 0
        self.concat = Concat(inputs)
        width = self.concat.width
        self.cross = nn.ModuleList(CrossLayer(width, rank) for _ in range(cross_layers))
        self.deep = MLP(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.out = linear(self.deep.width + (width if self.parallel else 0), num_labels)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        first = self.concat(features)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        x = torch.cat([x, self.deep(first)], dim=1) if self.parallel else self.deep(x)
        return to_logits(self.out(x))

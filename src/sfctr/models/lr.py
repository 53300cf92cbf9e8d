"""Logistic regression (Richardson et al., "Predicting Clicks", WWW 2007): w0 + sum_i w_i x_i."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sfctr.spec.inputs import Input

from .layers import Features, FirstOrder, to_logits
from .needs import Needs


class LR(nn.Module):
    """A bias, a weight for each key (the tables' first-order weights) and one for each column of numbers."""

    needs: ClassVar[Needs] = Needs(vectors=False, linear=True)

    def __init__(self, inputs: Sequence[Input], *, num_labels: int = 1) -> None:
        super().__init__()
        self.needs.check("lr", inputs)
        self.first_order = FirstOrder(inputs, num_labels)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        return to_logits(self.first_order(features))

"""Factorisation machine (Rendle, "Factorization Machines", ICDM 2010).

w0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sfctr.spec.inputs import Input

from .layers import Features, FieldVectors, FirstOrder, PerLabel, to_logits
from .needs import Needs, common_dim


def second_order(vectors: Tensor) -> Tensor:
    """Sum over pairs of fields of the dot product of their vectors [B, F, D], as [B, 1].

    By Rendle's lemma 3.1, in time linear in F: half of (square of the sum less the sum of the squares), summed over D.
    """
    square_of_sum = vectors.sum(1).square()
    sum_of_squares = vectors.square().sum(1)
    return 0.5 * (square_of_sum - sum_of_squares).sum(1, keepdim=True)


class FM(nn.Module):
    """First-order weights and pairwise products of field vectors; a bag or a sequence is one field.

    dim: length of the vectors of numbers where the schema has no keyed feature; else the tables' own.
    """

    needs: ClassVar[Needs] = Needs(linear=True, equal_dims=True)

    def __init__(self, inputs: Sequence[Input], *, num_labels: int = 1, dim: int = 16) -> None:
        super().__init__()
        self.needs.check("fm", inputs)
        self.first_order = FirstOrder(inputs, num_labels)
        self.fields = FieldVectors(inputs, common_dim(inputs, dim))
        self.per_label = PerLabel(num_labels)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels (which share the pairwise term up to a learned factor)."""
        return to_logits(self.first_order(features) + self.per_label(second_order(self.fields(features))))

"""DeepFM (Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", IJCAI 2017).

A factorisation machine and an MLP share one vector for each field, and their outputs are added (their equation 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sfctr.spec.inputs import Input

from .fm import second_order
from .layers import MLP, Features, FieldVectors, FirstOrder, PerLabel, to_logits
from .needs import Needs, common_dim


class DeepFM(nn.Module):
    """hidden, dropout, batch_norm: of the deep part. dim: as in FM."""

    needs: ClassVar[Needs] = Needs(linear=True, equal_dims=True)

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        num_labels: int = 1,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        dim: int = 16,
    ) -> None:
        super().__init__()
        self.needs.check("deepfm", inputs)
        self.first_order = FirstOrder(inputs, num_labels)
        self.fields = FieldVectors(inputs, common_dim(inputs, dim))
        self.per_label = PerLabel(num_labels)
        width = self.fields.num_fields * self.fields.dim
        self.deep = MLP(width, hidden, out=num_labels, dropout=dropout, batch_norm=batch_norm)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        vectors = self.fields(features)
        machine = self.first_order(features) + self.per_label(second_order(vectors))
        return to_logits(machine + self.deep(vectors.flatten(1)))

"""Wide & Deep (Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016).

The logit is the sum of a wide part, linear in the keys and numbers (crossed columns of the schema included), and a deep
part, an MLP over embeddings and numbers laid side by side; both are trained together (their equation 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sfctr.spec.inputs import Input

from .layers import MLP, Concat, Features, FirstOrder, to_logits
from .needs import Needs


class WideDeep(nn.Module):
    """hidden, dropout, batch_norm: of the deep part."""

    needs: ClassVar[Needs] = Needs(linear=True)

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        num_labels: int = 1,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.needs.check("widedeep", inputs)
        self.wide = FirstOrder(inputs, num_labels)
        self.concat = Concat(inputs)
        self.deep = MLP(self.concat.width, hidden, out=num_labels, dropout=dropout, batch_norm=batch_norm)

    def forward(self, features: Features) -> Tensor:
        """Logits [B], or [B, K] for K labels."""
        return to_logits(self.wide(features) + self.deep(self.concat(features)))

"""Pieces that several models share. Each is a plain module over the dict of tensors that features() gives.

  B rows, K labels, F fields, D dim, W columns of numbers, L positions of a sequence

Numbers enter a model in one of two ways. `FieldVectors` gives each column a learned vector that its value multiplies,
as factorisation machines do; `Concat` lays the columns beside the embeddings, as Wide & Deep, DCN-V2 and DIN do.
A sequence that a model does not attend over enters as the mean of its positions, and an empty one as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input

Features = Mapping[str, Tensor]

VECTOR_STD = 0.01
"""Vectors of numbers begin as N(0, 0.01), like the rows of a table."""


def linear(width_in: int, width_out: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier-normal weights (Glorot and Bengio 2010; also DLRM's choice) and a bias of zero."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    nn.init.xavier_normal_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that takes a batch of one row (the last of an epoch may be) by its running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] < 2:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        normalised: Tensor = super().forward(x)
        return normalised


class Dice(nn.Module):
    """Data-adaptive activation (Zhou et al. 2018, equation 3): p(s) s + (1 - p(s)) alpha s, [B, H] to [B, H].

    p(s) is the sigmoid of the batch-normalised s; alpha is learned for each unit and begins at 0.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = BatchNorm(width, eps=1e-8, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.alpha * x


def _activation(name: str, width: int) -> nn.Module:
    if name == "relu":
        return nn.ReLU()
    if name == "prelu":
        return nn.PReLU(width)
    if name == "dice":
        return Dice(width)
    raise ModelError(f"activation is {name!r} and must be 'relu', 'prelu' or 'dice'")


class MLP(nn.Sequential):
    """Hidden layers, each Linear, batch norm if asked for, activation, dropout; then Linear to `out` if given.

    With no hidden layers and no `out` it passes its input on. `width` is the length of what it gives.
    """

    def __init__(
        self,
        width_in: int,
        hidden: Sequence[int],
        *,
        out: int | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        activation: str = "relu",
    ) -> None:
        if any(not isinstance(width, int) or isinstance(width, bool) or width < 1 for width in hidden):
            raise ModelError(f"hidden sizes are {list(hidden)!r} and must all be whole numbers of at least 1")
        if not 0 <= dropout < 1:
            raise ModelError(f"dropout is {dropout!r} and must be at least 0 and below 1")
        layers: list[nn.Module] = []
        width = width_in
        for size in hidden:
            layers.append(linear(width, size))
            layers += [BatchNorm(size)] if batch_norm else []
            layers.append(_activation(activation, size))
            layers += [nn.Dropout(dropout)] if dropout else []
            width = size
        if out is not None:
            layers.append(linear(width, out))
            width = out
        super().__init__(*layers)
        self.width = width


def masked_mean(positions: Tensor, mask: Tensor) -> Tensor:
    """Mean of the true positions of [B, L, D] under a mask [B, L]: [B, D], zero where there is none."""
    kept = mask.unsqueeze(2).to(positions.dtype)
    mean: Tensor = (positions * kept).sum(1) / kept.sum(1).clamp(min=1)
    return mean


def vector_of(item: Input, features: Features) -> Tensor:
    """[B, D] of a pooled input, or of a sequence's mean."""
    if item.kind == "sequence":
        return masked_mean(features[item.name], features[f"{item.name}.mask"])
    return features[item.name]


def columns_of(inputs: Sequence[Input]) -> int:
    """Columns of numbers over all dense inputs."""
    return sum(item.width for item in inputs if item.kind == "dense")


class Numbers(nn.Module):
    """All dense inputs beside each other, [B, W]."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        super().__init__()
        self.names = [item.name for item in inputs if item.kind == "dense"]
        self.width = columns_of(inputs)

    def forward(self, features: Features) -> Tensor:
        return torch.cat([features[name] for name in self.names], dim=1)


class Concat(nn.Module):
    """Every input beside the others, in their order: numbers, pooled vectors, means of sequences. [B, width]"""

    def __init__(self, inputs: Sequence[Input]) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.width = sum(item.width if item.kind == "dense" else item.dim for item in inputs)

    def forward(self, features: Features) -> Tensor:
        return torch.cat([vector_of(item, features) for item in self.inputs], dim=1)


class FieldVectors(nn.Module):
    """One vector for each field, [B, F, D]: each keyed input's, and for each column of numbers value * v.

    v is a learned vector of the column (Rendle 2010, where a real-valued variable is one coordinate of x).
    """

    def __init__(self, inputs: Sequence[Input], dim: int) -> None:
        super().__init__()
        self.keyed = tuple(item for item in inputs if item.kind != "dense")
        self.num_fields = len(self.keyed) + columns_of(inputs)
        self.dim = dim
        self.numbers = Numbers(inputs) if columns_of(inputs) else None
        if self.numbers is not None:
            self.number_vectors = nn.Parameter(torch.randn(self.numbers.width, dim) * VECTOR_STD)

    def forward(self, features: Features) -> Tensor:
        parts = []
        if self.keyed:
            parts.append(torch.stack([vector_of(item, features) for item in self.keyed], dim=1))
        if self.numbers is not None:
            parts.append(self.numbers(features).unsqueeze(2) * self.number_vectors)
        return torch.cat(parts, dim=1)


class PerLabel(nn.Module):
    """A score [B, 1] that all labels share, to [B, K]: as it is for one label, by a learned factor for each of more."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(num_labels)) if num_labels > 1 else None

    def forward(self, score: Tensor) -> Tensor:
        return score if self.factor is None else score * self.factor


class FirstOrder(nn.Module):
    """Bias, first-order weights of all keys, and a weight for each column of numbers: w0 + sum_i w_i x_i, [B, K].

    Weights of keys come pooled as ".linear" (a sequence gives the sum over its positions) and are shared by all labels;
    bias and weights of numbers are each label's own and begin at zero.
    """

    def __init__(self, inputs: Sequence[Input], num_labels: int) -> None:
        super().__init__()
        self.keyed = [f"{item.name}.linear" for item in inputs if item.linear]
        self.per_label = PerLabel(num_labels if self.keyed else 1)
        self.bias = nn.Parameter(torch.zeros(num_labels))
        self.numbers = Numbers(inputs) if columns_of(inputs) else None
        if self.numbers is not None:
            self.weights = nn.Parameter(torch.zeros(self.numbers.width, num_labels))

    def forward(self, features: Features) -> Tensor:
        score: Tensor = self.bias
        if self.keyed:
            total = torch.cat([features[name] for name in self.keyed], dim=1).sum(1, keepdim=True)
            score = score + self.per_label(total)
        if self.numbers is not None:
            score = score + self.numbers(features) @ self.weights
        return score


def to_logits(scores: Tensor) -> Tensor:
    """What a model gives: [B] for one label, [B, K] for several."""
    return scores.squeeze(1) if scores.shape[1] == 1 else scores

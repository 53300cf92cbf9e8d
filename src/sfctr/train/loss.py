"""The loss: binary cross-entropy of logits, masked and weighted.  B rows, K labels"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sfctr.spec.errors import ModelError


def row_weights(mask: Tensor, weight: Tensor | None) -> Tensor:
    """float32 [B, K]: a row's weight (1 without weights) where its label is known, else 0."""
    known = mask.to(torch.float32)
    return known if weight is None else known * weight.unsqueeze(1)


def weighted_bce(logits: Tensor, labels: Tensor, weights: Tensor, totals: Tensor | None = None) -> Tensor:
    """Sum over labels of sum(w * bce) / sum(w), all arguments [B, K].

    totals: sum of the weights [K], where the rows given are a part of a batch; the parts' losses then add up to the
    whole's. A label without any weight adds 0.
    """
    losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    totals = weights.sum(0) if totals is None else totals
    return ((losses * weights).sum(0) / torch.where(totals > 0, totals, 1.0)).sum()


def as_logits(output: object, size: int, num_labels: int, model: str) -> Tensor:
    """What a model gave, as float32 [B, K]. Raises ModelError unless it is [B, K], or [B] for one label."""
    if isinstance(output, Tensor) and output.is_floating_point():
        if output.shape == (size, num_labels):
            return output.float()
        if num_labels == 1 and output.shape == (size,):
            return output.float().unsqueeze(1)
        found = f"{str(output.dtype).removeprefix('torch.')} of shape {tuple(output.shape)}"
    elif isinstance(output, Tensor):
        found = f"a tensor of {str(output.dtype).removeprefix('torch.')}"
    else:
        found = f"a {type(output).__name__}"
    wanted = f"({size},)" if num_labels == 1 else f"({size}, {num_labels})"
    raise ModelError(f"model '{model}' gave {found} for {size} rows; it must give logits (floats) of shape {wanted}")

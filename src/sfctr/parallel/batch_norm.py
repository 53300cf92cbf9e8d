"""Batch normalisation over the rows of all ranks, with the statistics that one process with all rows would have.

Each rank gives the count, mean and sum of squared deviations of its rows; they are joined in the order of ranks (Chan,
Golub and LeVeque 1983) in float64. A rank without rows takes part. Every forward in training and its backward are
collective.

  R rows of this rank, C columns
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfctr.spec.errors import ModelError
from sfctr.spec.peers import Peers

from .sums import gather_numbers

KIND = "batch norm"


class WideBatchNorm(nn.BatchNorm1d):
    """`like` over the rows of all ranks; parameters and buffers are like's own, under their names.

    Fewer than two rows in all: nn.BatchNorm1d itself refuses them and so does this; a class derived from it is taken to
    normalise them by the running statistics, as sfctr's own does.
    """

    def __init__(self, like: nn.BatchNorm1d, peers: Peers) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self._parameters, self._buffers = like._parameters, like._buffers
        self.train(like.training)
        self._peers, self._refuses_one = peers, type(like) is nn.BatchNorm1d

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        rows_RC = x.transpose(1, -1).reshape(-1, self.num_features) if x.dim() > 2 else x
        count, mean, squares = _join(self._peers, rows_RC)
        if count < 2:
            if self._refuses_one:
                raise ValueError(f"Expected more than 1 value per channel when training, got {count} over all ranks")
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        if self.training:
            self._follow(mean, squares / (count - 1))
        mean_C = torch.from_numpy(mean).to(x.device)
        scale_C = torch.rsqrt(torch.from_numpy(squares / count).to(x.device) + self.eps)
        normal: Tensor = _Normalise.apply(rows_RC, mean_C, scale_C, count, self._peers)  # type: ignore[no-untyped-call]
        normal = (normal if self.weight is None else normal * self.weight + self.bias).to(x.dtype)
        if x.dim() == 2:
            return normal
        return normal.reshape(*x.transpose(1, -1).shape).transpose(1, -1)

    @torch.no_grad()
    def _follow(self, mean: Any, variance: Any) -> None:
        """Move the running statistics, as torch's layer does."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        step = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, found in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - step).add_(torch.from_numpy(found).to(running) * step)


def widen_batch_norms(model: nn.Module, peers: Peers) -> bool:
    """Put WideBatchNorm where the model has nn.BatchNorm1d; whether it has any. Raises ModelError for another kind."""
    found = False
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_other_norm(child):
                raise ModelError(
                    f"the model has {type(child).__name__}, and of several processes only nn.BatchNorm1d takes its"
                    " statistics over the rows of all; use that one, or a norm within a row such as nn.LayerNorm"
                )
            if isinstance(child, nn.BatchNorm1d):
                setattr(parent, name, WideBatchNorm(child, peers))
                found = True
    return found


def _is_other_norm(module: nn.Module) -> bool:
    """Batch norm that nothing can be put in the place of."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, nn.BatchNorm1d)


def _join(peers: Peers, rows_RC: Tensor) -> tuple[int, Any, Any]:
    """Rows over all ranks, their mean [C] and sum of squared deviations from it [C]."""
    own = rows_RC.detach().double()
    mean_C = own.sum(0) / max(len(own), 1)
    mine = torch.cat([mean_C.new_tensor([len(own)]), mean_C, (own - mean_C).square().sum(0)])
    columns = rows_RC.shape[1]
    count, mean, squares = 0.0, np.zeros(columns), np.zeros(columns)
    for other in gather_numbers(peers, KIND, mine.cpu().numpy()):
        n, their_mean, their_squares = other[0], other[1 : 1 + columns], other[1 + columns :]
        if n:
            apart, total = their_mean - mean, count + n
            mean = mean + apart * (n / total)
            squares = squares + their_squares + apart * apart * (count * n / total)
            count = total
    return int(count), mean, squares


class _Normalise(torch.autograd.Function):
    """(x - mean) * scale, where mean and scale are those of the rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean_C: Tensor, scale_C: Tensor, count: int, peers: Peers) -> Tensor:
        normal = (x.double() - mean_C) * scale_C
        ctx.save_for_backward(normal, scale_C)
        ctx.count, ctx.peers, ctx.dtype = count, peers, x.dtype
        return normal.to(torch.promote_types(x.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        normal, scale_C = ctx.saved_tensors
        gradient = gradients[0].double()
        own = torch.stack([gradient.sum(0), (gradient * normal).sum(0)])
        every = gather_numbers(ctx.peers, KIND, own.cpu().numpy().reshape(-1))
        total = np.zeros(every.shape[1])
        for part in every:
            total += part
        mean_C, along_C = torch.from_numpy(total / ctx.count).to(gradient.device).reshape(2, -1)
        found = (gradient - mean_C - normal * along_C) * scale_C
        return found.to(ctx.dtype), None, None, None, None

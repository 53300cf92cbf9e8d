"""Optimizers of the dense part: torch's own, in their fused form, which takes one pass over the parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import SGD, Adagrad, Adam, AdamW, DenseOptimizer


def make_dense_optimizer(options: DenseOptimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimizer over the parameters that want a gradient; None where there is none.

    Raises ConfigError for an optimizer that exists for rows alone.
    """
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    kind = type(options).__name__
    if not isinstance(options, SGD | Adagrad | Adam | AdamW):
        raise ConfigError(
            f"train.optimizer is {kind}, which updates rows of tables alone; choose SGD, Adagrad, Adam or AdamW for the"
            f" dense part, and give {kind} to tables"
        )
    return _make(options, wanted) if wanted else None


def _make(options: DenseOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    lr, decay = options.lr, options.weight_decay
    match options:
        case SGD(momentum=momentum, nesterov=nesterov):
            return torch.optim.SGD(parameters, lr, momentum, weight_decay=decay, nesterov=nesterov, fused=True)
        case Adagrad(eps=eps, initial_accumulator=start):
            # torch has Adagrad's fused kernel for the CPU alone.
            fused = all(parameter.device.type == "cpu" for parameter in parameters)
            return torch.optim.Adagrad(parameters, lr, 0.0, decay, start, eps, fused=fused or None)
        case Adam(beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.Adam(parameters, lr, (beta1, beta2), eps, decay, fused=True)
        case AdamW(beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.AdamW(parameters, lr, (beta1, beta2), eps, decay, fused=True)


def set_lr(optimizer: torch.optim.Optimizer | None, lr: float) -> None:
    """Give every parameter the learning rate of this step."""
    for group in [] if optimizer is None else optimizer.param_groups:
        group["lr"] = lr

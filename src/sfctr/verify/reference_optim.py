"""Row optimizers of the reference: docs/optimizers.md in plain torch, on the rows that a step reached.

n rows, D dim
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Optimizer, RowWiseAdagrad

from .outcome import state_widths

State = dict[str, Tensor]


def initial_state(optimizer: Optimizer, like: Tensor) -> State:
    """State of rows that nothing was done to: each part [n, its width], in the type of `like` [n, D]."""
    start = optimizer.initial_accumulator if isinstance(optimizer, Adagrad | RowWiseAdagrad) else 0.0
    return {
        part: torch.full((like.shape[0], width), start, dtype=like.dtype, device=like.device)
        for part, width in state_widths(optimizer, like.shape[1]).items()
    }


def updated(optimizer: Optimizer, w: Tensor, s: State, g: Tensor, *, lr: float, step: int) -> tuple[Tensor, State]:
    """Weights [n, D] and state after one step of gradients `g`; `step` counts committed steps from 1."""
    if not isinstance(optimizer, AdamW | FTRL):
        g = g + optimizer.weight_decay * w
    match optimizer:
        case SGD(momentum=0.0):
            return w - lr * g, s
        case SGD(momentum=momentum, nesterov=nesterov):
            m = momentum * s["m"] + g
            return w - lr * (g + momentum * m if nesterov else m), {"m": m}
        case Adagrad(eps=eps):
            total = s["s"] + g * g
            return w - lr * g / (total.sqrt() + eps), {"s": total}
        case RowWiseAdagrad(eps=eps):
            total = s["s"] + (g * g).mean(dim=1, keepdim=True)
            return w - lr / (total.sqrt() + eps) * g, {"s": total}
        case Adam() | AdamW():
            return _adam(optimizer, w, s, g, lr=lr, step=step)
        case FTRL():
            return (w, s) if lr == 0 else _ftrl(optimizer, w, s, g, lr=lr)


def _adam(o: Adam | AdamW, w: Tensor, s: State, g: Tensor, *, lr: float, step: int) -> tuple[Tensor, State]:
    """torch.optim.SparseAdam's rule; with bias_correction "row" each row counts its own steps."""
    if isinstance(o, AdamW):
        w = w * (1 - lr * o.weight_decay)
    m = s["m"] + (g - s["m"]) * (1 - o.beta1)
    v = s["v"] + (g * g - s["v"]) * (1 - o.beta2)
    if o.bias_correction == "row":
        t = s["t"] + 1
        counts = t.double()
        size = (lr * (1 - o.beta2**counts).sqrt() / (1 - o.beta1**counts)).to(w.dtype)
        return w - size * (m / (v.sqrt() + o.eps)), {"m": m, "v": v, "t": t}
    alpha = lr * math.sqrt(1 - o.beta2**step) / (1 - o.beta1**step)
    return w - alpha * (m / (v.sqrt() + o.eps)), {"m": m, "v": v}


def _ftrl(o: FTRL, w: Tensor, s: State, g: Tensor, *, lr: float) -> tuple[Tensor, State]:
    """Algorithm 1 of McMahan et al. (KDD 2013), per coordinate."""
    n = s["n"] + g * g
    z = s["z"] + g - (n.sqrt() - s["n"].sqrt()) / lr * w
    shrunk = z - z.sign() * o.l1
    new = torch.where(z.abs() <= o.l1, torch.zeros_like(z), -shrunk / ((o.beta + n.sqrt()) / lr + o.l2))
    return new, {"n": n, "z": z}

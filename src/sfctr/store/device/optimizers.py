"""The optimizers over rows, as torch operations; docs/optimizers.md has each formula with its source.

  K rows, D columns (1 for a first-order weight)

Every operation is an IEEE multiply, add, divide or square root of its own: a fused one, as addcmul or lerp, would round
once where the native kernels round twice. Rules change weights and state in place and leave gradients as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sfctr import _native
from sfctr.store.rules import F64

LANES = 16
"""A sum over the columns of a row runs in so many lanes, column c in lane c % 16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """What one table's update takes, as the native update_args makes it: float32 values (in Python's doubles), rounded
    once, after what can be computed in double. lr64, beta1, beta2 are doubles. step counts committed steps from 1."""

    step: int
    lr: float
    eps: float
    weight_decay: float
    momentum: float
    nesterov: bool
    decoupled: bool
    one_minus_beta1: float
    one_minus_beta2: float
    decay: float
    l1: float
    l2: float
    beta: float
    lr64: float
    beta1: float
    beta2: float

    @property
    def step_size(self) -> float:
        """Adam's, corrected for the run's committed steps."""
        correction2 = math.sqrt(1 - power(self.beta2, self.step))
        return float32(self.lr64 * correction2 / (1 - power(self.beta1, self.step)))


def numbers_of(hyper: F64, step: int) -> Numbers:
    """The numbers of one line of hyper-parameters, float64 [len(hyper_columns())]."""
    h = dict(zip(_native.hyper_columns(), hyper.tolist(), strict=True))
    return Numbers(
        step=step,
        **{name: float32(h[name]) for name in ("lr", "eps", "weight_decay", "momentum", "l1", "l2", "beta")},
        nesterov=h["nesterov"] != 0,
        decoupled=h["decoupled"] != 0,
        one_minus_beta1=float32(1 - h["beta1"]),
        one_minus_beta2=float32(1 - h["beta2"]),
        decay=float32(1 - h["lr"] * h["weight_decay"]),
        lr64=h["lr"],
        beta1=h["beta1"],
        beta2=h["beta2"],
    )


def float32(value: float) -> float:
    """The nearest float32."""
    return float(np.float32(value))


def power(base: float, exponent: int) -> float:
    """base^exponent by repeated squaring, as the native core computes it."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def powers(base: float, exponents: Tensor) -> Tensor:
    """The same for many exponents below 2^25, in float64."""
    result = torch.ones_like(exponents, dtype=torch.float64)
    for bit in range(25):
        result = torch.where(exponents.bitwise_and(1 << bit) != 0, result * base, result)
        base *= base
    return result


def root(values: Tensor) -> Tensor:
    """Square roots, correctly rounded."""
    # On the CPU torch leaves them to a library whose last bit may be off; NumPy takes the processor's instruction.
    return torch.from_numpy(np.sqrt(values.numpy())) if values.is_cpu else values.sqrt()


def add_lanes(lanes: Tensor) -> Tensor:
    """[K, 1] of [K, 16]: lane i with i + 8, then 4, 2, 1."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes


def _decayed(n: Numbers, gradient: Tensor, w: Tensor) -> Tensor:
    """The gradient with L2."""
    return gradient if n.weight_decay == 0 else gradient + w * n.weight_decay


def _sgd(n: Numbers, gradient: Tensor, w: Tensor) -> None:
    w.sub_(_decayed(n, gradient, w) * n.lr)


def _momentum(n: Numbers, gradient: Tensor, w: Tensor, m: Tensor) -> None:
    g = _decayed(n, gradient, w)
    m.mul_(n.momentum).add_(g)
    w.sub_((g + m * n.momentum if n.nesterov else m) * n.lr)


def _adagrad(n: Numbers, gradient: Tensor, w: Tensor, s: Tensor) -> None:
    g = _decayed(n, gradient, w)
    s.add_(g * g)
    w.sub_((g * n.lr).div_(root(s).add_(n.eps)))


def _rowwise_adagrad(n: Numbers, gradient: Tensor, w: Tensor, s: Tensor) -> None:
    g = _decayed(n, gradient, w)
    first, *others = torch.split(pad(g * g, (0, -g.shape[1] % LANES)), LANES, dim=1)
    for squares in others:
        first = first + squares
    s.add_(add_lanes(first).div_(g.shape[1]))
    # A number divided by a tensor would be taken as its reciprocal times the number.
    factor = torch.full_like(s, n.lr).div_(root(s).add_(n.eps))
    w.sub_(g * factor)


def _move(n: Numbers, gradient: Tensor, w: Tensor, m: Tensor, v: Tensor, step_size: float | Tensor) -> None:
    g = gradient if n.decoupled else _decayed(n, gradient, w)
    if n.decoupled:
        w.mul_(n.decay)
    m.add_((g - m).mul_(n.one_minus_beta1))
    v.add_((g * g - v).mul_(n.one_minus_beta2))
    w.sub_((m / root(v).add_(n.eps)).mul_(step_size))


def _adam(n: Numbers, gradient: Tensor, w: Tensor, m: Tensor, v: Tensor) -> None:
    _move(n, gradient, w, m, v, n.step_size)


def _adam_row(n: Numbers, gradient: Tensor, w: Tensor, m: Tensor, v: Tensor, count: Tensor) -> None:
    t = count.add_(1).to(torch.int32)
    correction = root(1 - powers(n.beta2, t)).mul_(n.lr64).div_(1 - powers(n.beta1, t))
    _move(n, gradient, w, m, v, correction.to(torch.float32))


def _ftrl(n: Numbers, gradient: Tensor, w: Tensor, squares: Tensor, z: Tensor) -> None:
    if n.lr == 0:  # 1 / lr has no value; as with every other rule, nothing then moves
        return
    g = _decayed(n, gradient, w)
    before = root(squares)
    squares.add_(g * g)
    after = root(squares)
    z.add_(g - (after - before).div_(n.lr).mul_(w))
    shrunk = torch.where(z < 0, z + n.l1, z - n.l1)
    w.copy_(shrunk.neg_().div_((after + n.beta).div_(n.lr).add_(n.l2)))
    w.masked_fill_(z.abs() <= n.l1, 0.0)


UPDATES: dict[str, Callable[..., None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "adam_row": _adam_row,
    "ftrl": _ftrl,
}
"""By native name: (numbers, gradient [K, D], weights [K, D], the states of `state_widths`)."""


def state_widths(rule: str, dim: int) -> tuple[int, ...]:
    """Floats of each state that a rule keeps for a row, in the order of the record."""
    widths = {
        "sgd": (),
        "momentum": (dim,),
        "adagrad": (dim,),
        "rowwise_adagrad": (1,),
        "adam": (dim, dim),
        "adam_row": (dim, dim, 1),
        "ftrl": (dim, dim),
    }
    return widths[rule]

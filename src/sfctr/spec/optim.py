"""Options of optimizers and schedules. The arithmetic is in docs/optimizers.md and, for rows, in the native kernels.

One struct serves both parts of a model where both can use it; `FTRL` and `RowWiseAdagrad` exist for rows alone.
Every struct is frozen, prints itself, and checks its own ranges once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import ConfigError


def _check(owner: object, name: str, low: float, high: float = float("inf"), *, open_low: bool = False) -> None:
    value = getattr(owner, name)
    if not (value > low if open_low else value >= low) or not value < high:
        bound = f"{'>' if open_low else '>='} {low:g}" + ("" if high == float("inf") else f" and < {high:g}")
        raise ConfigError(f"{type(owner).__name__}.{name} is {value!r} and must be {bound}")


class _Optimizer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    lr: float = 1e-3
    """Learning rate before the schedule's factor."""

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay", "initial_accumulator", "l1", "l2", "beta"):
            if hasattr(self, name):
                _check(self, name, 0.0)
        for name in ("momentum", "beta1", "beta2"):
            if hasattr(self, name):
                _check(self, name, 0.0, 1.0)


class SGD(_Optimizer, frozen=True, kw_only=True, tag="sgd"):
    """Stochastic gradient descent; torch.optim.SGD's rule with dampening 0."""

    lr: float = 1e-2
    momentum: float = 0.0
    """Share of the last velocity that is kept."""
    nesterov: bool = False
    """Look one step of momentum ahead."""
    weight_decay: float = 0.0
    """L2 added to the gradient; for rows it touches working rows only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and self.momentum == 0:
            raise ConfigError("SGD.nesterov needs a momentum above 0")


class Adagrad(_Optimizer, frozen=True, kw_only=True, tag="adagrad"):
    """Duchi et al. 2011; torch.optim.Adagrad's rule without its lr_decay."""

    lr: float = 1e-2
    eps: float = 1e-10
    """Added to the root of the accumulator."""
    initial_accumulator: float = 0.0
    """What the sum of squared gradients begins from."""
    weight_decay: float = 0.0
    """L2 added to the gradient; for rows it touches working rows only."""


class RowWiseAdagrad(_Optimizer, frozen=True, kw_only=True, tag="rowwise_adagrad"):
    """Adagrad with one accumulator a row: the mean of the squared gradient over the row's dim (FBGEMM, TorchRec)."""

    lr: float = 1e-2
    eps: float = 1e-8
    """Added to the root of the accumulator."""
    initial_accumulator: float = 0.0
    """What the sum of mean squared gradients begins from."""
    weight_decay: float = 0.0
    """L2 added to the gradient; it touches working rows only."""


class Adam(_Optimizer, frozen=True, kw_only=True, tag="adam"):
    """Kingma and Ba 2015. On rows: torch.optim.SparseAdam to the letter (only working rows move)."""

    lr: float = 1e-3
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Added to the root of the mean of squared gradients."""
    weight_decay: float = 0.0
    """L2 added to the gradient; for rows it touches working rows only."""
    bias_correction: Literal["global", "row"] = "global"
    """Rows only: correct by the run's committed steps (SparseAdam), or by how often the row itself was updated."""


class AdamW(_Optimizer, frozen=True, kw_only=True, tag="adamw"):
    """Loshchilov and Hutter 2019: Adam with decoupled decay, w *= 1 - lr * weight_decay before the step."""

    lr: float = 1e-3
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Added to the root of the mean of squared gradients."""
    weight_decay: float = 1e-2
    """Decoupled decay; for rows it touches working rows only."""
    bias_correction: Literal["global", "row"] = "global"
    """Rows only: correct by the run's committed steps, or by how often the row itself was updated."""


class FTRL(_Optimizer, frozen=True, kw_only=True, tag="ftrl"):
    """Follow the regularised leader, proximal (McMahan et al., KDD 2013); `lr` is the paper's alpha."""

    lr: float = 5e-2
    beta: float = 1.0
    """Added to the root of the sum of squared gradients."""
    l1: float = 0.0
    """Weight of the absolute penalty, which makes weights exactly zero."""
    l2: float = 0.0
    """Weight of the squared penalty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "lr", 0.0, open_low=True)


Optimizer = SGD | Adagrad | RowWiseAdagrad | Adam | AdamW | FTRL
"""What a table's rows can be updated by."""

DenseOptimizer = SGD | Adagrad | Adam | AdamW
"""What the dense part can be updated by."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The factor that multiplies every learning rate, dense and sparse, at each step.

    Rises linearly from 0 over `warmup_steps` (step s of them has factor (s + 1) / warmup_steps), then follows `decay`
    until `decay_steps` steps after the warm-up, and stays where it then is.
    """

    warmup_steps: int = 0
    """Length of the linear rise in steps."""
    decay: Literal["none", "linear", "cosine", "inverse_sqrt"] = "none"
    """Shape of the fall after it."""
    decay_steps: int = 0
    """Length of the decay in steps; 0 means to the end of the run where that is known."""
    final: float = 0.0
    """Factor at the end of a linear or cosine decay, and the least of inverse_sqrt; 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("warmup_steps", "decay_steps", "final"):
            _check(self, name, 0)
        if self.final > 1:
            raise ConfigError(f"Schedule.final is {self.final!r} and must be at most 1")


class Plateau(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multiply every learning rate by `factor` when the watched metric has not improved for `patience` evaluations."""

    factor: float = 0.1
    """What one reduction multiplies by."""
    patience: int = 0
    """Evaluations without improvement that are borne before a reduction; 0 reduces at the first."""
    min_factor: float = 1e-3
    """The product of all reductions never falls below this."""

    def __post_init__(self) -> None:
        _check(self, "factor", 0.0, 1.0, open_low=True)
        _check(self, "patience", 0)
        _check(self, "min_factor", 0.0)

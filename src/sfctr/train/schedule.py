"""The factor on every learning rate: a pure function of the step, times what a plateau has taken off."""

from __future__ import annotations

import math

from sfctr.spec.errors import ConfigError
from sfctr.spec.optim import Plateau, Schedule
from sfctr.spec.runfile import Train

from .state import State


def steps_of_run(train: Train, num_rows: int | None) -> int | None:
    """Steps that a run over `num_rows` rows (None: not known) takes if nothing stops it early; None: not known."""
    if num_rows is None:
        return train.max_steps
    steps = train.epochs * -(-num_rows // train.batch_size)
    return min(steps, train.max_steps or steps)


def decay_steps(schedule: Schedule, total_steps: int | None) -> int:
    """Steps that the decay takes. Raises ConfigError where it ends with the run and the run's length is not known."""
    if schedule.decay_steps or schedule.decay in ("none", "inverse_sqrt"):
        return schedule.decay_steps
    if total_steps is None:
        raise ConfigError(
            f'train.schedule.decay is "{schedule.decay}" and how many steps the run takes is not known beforehand;'
            " set train.schedule.decay_steps or train.max_steps"
        )
    return max(1, total_steps - schedule.warmup_steps)


def schedule_factor(schedule: Schedule, step: int, length: int) -> float:
    """Factor at `step` (from 0), with `length` = decay_steps(...).

    Warm-up of W steps: (step + 1) / W. Then, with t steps since: 1; linear or cosine from 1 to `final` at t = length;
    or 1 / sqrt(1 + t / max(W, 1)), which is sqrt(W / step) after a warm-up, never below `final`, and held from t =
    length on if that is set.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    since, final = step - schedule.warmup_steps, schedule.final
    if schedule.decay == "none":
        return 1.0
    if schedule.decay == "inverse_sqrt":
        since = min(since, length) if length else since
        return max(final, 1 / math.sqrt(1 + since / max(schedule.warmup_steps, 1)))
    done = min(since / length, 1.0)
    if schedule.decay == "linear":
        return 1 + (final - 1) * done
    return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2


class PlateauFactor:
    """What plateaus of the watched metric have made of the learning rate so far; 1 without options."""

    def __init__(self, options: Plateau | None) -> None:
        self._options = options
        self._without_improvement = 0
        self.factor = 1.0

    def observe(self, improved: bool) -> bool:
        """Take note of an evaluation; whether it lowered the factor."""
        self._without_improvement = 0 if improved else self._without_improvement + 1
        if self._options is None or self._without_improvement <= self._options.patience:
            return False
        self._without_improvement = 0
        before = self.factor
        self.factor = min(before, max(before * self._options.factor, self._options.min_factor))
        return self.factor < before

    def state(self) -> State:
        return State({"factor": self.factor, "without_improvement": self._without_improvement})

    def restore(self, state: State) -> None:
        self.factor, self._without_improvement = state.plain["factor"], state.plain["without_improvement"]

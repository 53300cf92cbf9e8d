"""Which evaluation was the best so far, and whether to go on."""

from __future__ import annotations

from sfctr.spec.runfile import Metric

from .state import State

_RISES = {"auc": True, "gauc": True, "logloss": False, "ne": False}


class Watch:
    """Follows one metric over evaluations. One that is undefined counts for nothing, neither way.

    min_delta: what a value must gain on the best before it to count as an improvement.
    stop_after: evaluations without improvement, one after the other, that end the run; None: never.
    """

    def __init__(self, metric: Metric, *, min_delta: float = 0.0, stop_after: int | None = None) -> None:
        self.metric = metric
        self.best: float | None = None
        self._min_delta, self._stop_after = min_delta, stop_after
        self._without_improvement = 0

    def observe(self, value: float | None) -> bool | None:
        """Whether `value` is an improvement; None where it is undefined."""
        if value is None:
            return None
        improved = self.best is None or self._gain(value, self.best) > self._min_delta
        if improved:
            self.best = value
        self._without_improvement = 0 if improved else self._without_improvement + 1
        return improved

    def state(self) -> State:
        return State({"best": self.best, "without_improvement": self._without_improvement})

    def restore(self, state: State) -> None:
        self.best, self._without_improvement = state.plain["best"], state.plain["without_improvement"]

    def _gain(self, value: float, best: float) -> float:
        return value - best if _RISES[self.metric] else best - value

    @property
    def should_stop(self) -> bool:
        return self._stop_after is not None and self._without_improvement >= self._stop_after

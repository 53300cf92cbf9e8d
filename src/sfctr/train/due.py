"""When a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from sfctr.spec.runfile import Checkpoints


class Due:
    """Tells when a checkpoint is due, by steps and by minutes.

    A clock that jumps ahead makes one due; one that jumps back has the minutes begin anew.
    """

    def __init__(self, options: Checkpoints, now: Callable[[], float] = monotonic) -> None:
        self._options, self._now = options, now
        self.saved_at: int | None = None
        self._last = now()

    def at(self, step: int, *, is_late: bool | None = None) -> bool:
        """is_late: by the minutes of whoever decides for all; None: by these."""
        if step == self.saved_at:
            return False
        by_steps = self._options.every_steps is not None and step % self._options.every_steps == 0
        return by_steps or (self.is_late() if is_late is None else is_late)

    def is_late(self) -> bool:
        """Whether it is due by minutes."""
        minutes, now = self._options.every_minutes, self._now()
        self._last = min(self._last, now)
        return minutes > 0 and now - self._last >= 60 * minutes

    def saved(self, step: int) -> None:
        """A checkpoint of `step` is there, or being written."""
        self.saved_at, self._last = step, self._now()

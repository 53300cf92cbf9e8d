"""Being asked to stop waits for the step in hand, so that no step is half done.

An interrupt (Ctrl-C, the notebook's stop button) is raised as KeyboardInterrupt, SIGTERM as Terminated: outside of
`held()` at once, inside at its end. A second interrupt is raised even inside; a second SIGTERM waits as the first did,
because what it would break is what the first is waiting for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from sfctr.spec.errors import Terminated

_Raised = type[KeyboardInterrupt] | type[Terminated]
_RAISED: dict[int, _Raised] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
_CODES = {None: 0, KeyboardInterrupt: 1, Terminated: 2}


class Interrupts:
    """Installed by `with`, for the signals that are not ignored. Does nothing outside the main thread, which alone gets
    them.

    deferred: what comes waits until raise_if() is told to raise it: ranks that train together end at the same step.
    """

    def __init__(self, *, deferred: bool = False) -> None:
        self._depth = int(deferred)
        self._waiting: _Raised | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _RAISED:
                before = signal.getsignal(number)
                if before not in (signal.SIG_IGN, None):
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._depth and (self._waiting is None or number == signal.SIGTERM):
            self._waiting = self._waiting or _RAISED[number]
            return
        raise _RAISED[number]

    @property
    def asked(self) -> int:
        """What waits: 0 for nothing, 1 for an interrupt, 2 for SIGTERM."""
        return _CODES[self._waiting]

    def raise_if(self, asked: int) -> None:
        """Raise what was asked of this rank or another one, by its number."""
        for kind, code in _CODES.items():
            if kind is not None and code == asked:
                raise kind

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise what comes in here at the end of the block, or of the outermost one."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                waiting, self._waiting = self._waiting, None
        if self._depth == 0 and waiting is not None:
            raise waiting

"""An interrupt (Ctrl-C, the notebook's stop button) waits for the step in hand, so that no step is half done.

Outside `held()` it is raised at once, as ever; a second one is raised even inside.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Installed by `with`. Does nothing where interrupts are ignored, or outside the main thread, which gets none."""

    def __init__(self) -> None:
        self._holding = self._waiting = False

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        self._installed = in_main and self._before not in (signal.SIG_IGN, None)
        if self._installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._waiting:
            self._waiting = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise an interrupt that comes in here at the end of the block."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            waiting, self._waiting = self._waiting, False
        if waiting:
            raise KeyboardInterrupt

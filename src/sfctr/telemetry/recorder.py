"""Seconds and counts by name, and the notices already given. Any thread may call any of this beside any other.

A span costs about a microsecond: two clock reads and an uncontended lock.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar, Token
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import Self

from .chrome import ChromeTrace


class Recorder:
    """Adds up what the code inside its `with` block does; an inner recorder hides the outer one.

    trace: where each span is written, too.
    """

    def __init__(self, trace: ChromeTrace | None = None) -> None:
        self.trace = trace
        self._lock = Lock()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._said: dict[str, None] = {}
        self._tokens: list[Token[Recorder]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _current.reset(self._tokens.pop())

    def seconds(self) -> dict[str, float]:
        """Total seconds of each span so far; spans still open are not in it. Spans that overlap count each in full."""
        with self._lock:
            return dict(self._seconds)

    def counts(self) -> dict[str, int]:
        """How often each span ended, and the totals given to `count`."""
        with self._lock:
            return dict(self._counts)

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to the total of `name`."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + n

    def add(self, name: str, seconds: float) -> None:
        """Record a span of `seconds` that has just ended."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._counts[name] = self._counts.get(name, 0) + 1

    def is_news(self, text: str) -> bool:
        """Whether `text` is asked about for the first time."""
        with self._lock:
            if text in self._said:
                return False
            self._said[text] = None
            return True

    def said(self) -> list[str]:
        """The notices given so far, in their order."""
        with self._lock:
            return list(self._said)


_current: ContextVar[Recorder] = ContextVar("sfctr_recorder", default=Recorder())  # noqa: B039  one for the process
_log = logging.getLogger("sfctr")


def current() -> Recorder:
    """The recorder of this context: that of the innermost `with Recorder()`, else the process's own."""
    return _current.get()


def notice(text: str) -> None:
    """Say one line to the user; the same text is said once for each recorder.

    It goes to the logger "sfctr" as a warning, because that is the lowest level that Python shows on stderr where no
    logging is set up, as in a notebook.
    """
    if current().is_news(text):
        _log.warning("%s", text)


class span:
    """`with span("step"): ...` adds its seconds and one count to the recorder that is current when it begins.

    args: what a trace shows of it, such as step=7.
    """

    __slots__ = ("_args", "_began", "_name", "_recorder")

    def __init__(self, name: str, **args: int) -> None:
        self._name, self._args = name, args

    def __enter__(self) -> None:
        self._recorder = _current.get()
        self._began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        ended = perf_counter()
        self._recorder.add(self._name, ended - self._began)
        if self._recorder.trace is not None:
            self._recorder.trace.write(self._name, self._began, ended, self._args)

"""A board that all ranks read and write, to tell which of them has failed: gloo's own errors do not say.

It is the store that the ranks met at, held by rank 0's process. Each rank writes who it is, twice a second a sign of
life with the number of its collective calls, and its last words when an error ends it. The first failure that anybody
writes down is the one that all ranks report.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sfctr.spec.errors import SfctrError

from .collectives import Store

BEAT_S = 0.5
"""Seconds between signs of life."""
SILENT_S = 2.0
"""Without a sign of life for so long a rank's process has ended or been stopped."""
WATCH_BEATS = 4
"""Beats between looks at the others' signs of life."""
GRACE_S = 5.0
"""How long the store's holder stays after a failure, so that others can read of it; and others' time to end then."""

T = TypeVar("T")


class Board:
    """One rank's view of the board. Any thread may call; no call takes much longer than GRACE_S, whoever is dead.

    timeout_s: a rank without a sign of life for so long has failed, whatever the others wait for.
    on_failure: called once, in a thread of its own, with the failure's words, where this process is still here GRACE_S
        after a failure was written down: it may wait for a rank that has gone, and nothing of torch's ends that wait.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout_s: float = 120.0,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        self._store, self._rank, self._size, self._on_failure = store, rank, size, on_failure
        self._timeout_s = timeout_s
        self._seen: dict[int, tuple[int, float]] = {}
        """Of each rank its last sign of life, and when it was new here; of the store's holder, who watches."""
        self.calls: dict[str, int] = {}
        """Collective calls begun, by the name of the peers that they were made through."""
        self._gone: list[int] = []
        self._names = {rank: f"rank {rank} ({socket.gethostname()}, pid {os.getpid()})"}
        store.set(f"who/{rank}", self._names[rank])
        self._beat(0)
        self._closed = threading.Event()
        self._known = ""  # of a failure
        self._beats = threading.Thread(target=self._live, name="sfctr-beat", daemon=True)
        self._beats.start()

    def meet(self) -> None:
        """Learn who the others are; waits for them as long as the store was told to."""
        for rank in range(self._size):
            self._names[rank] = self._store.get(f"who/{rank}").decode()

    def close(self) -> None:
        """No more signs of life."""
        self._closed.set()
        if self._beats is not threading.current_thread():
            self._beats.join(GRACE_S)

    def report(self, error: BaseException) -> str:
        """Write down what ends this rank; gives the failure that stands, which may be an earlier one."""
        words = str(error) if isinstance(error, SfctrError) else f"{type(error).__name__}: {error}".removesuffix(": ")
        return self._write(f"{self._names[self._rank]} has ended: {' '.join(words.split())}")

    def linger(self) -> None:
        """Keep the board until every other rank that lives has read of the failure, or GRACE_S are over."""
        if self._rank == 0:
            others = [f"read/{rank}" for rank in range(1, self._size) if rank not in self._gone]
            until = time.monotonic() + GRACE_S
            while time.monotonic() < until and not _ask(lambda: bool(self._store.check(others)), True):
                time.sleep(0.05)

    def explain(self, name: str, waited_s: float, *, timed_out: bool) -> str:
        """Why a call through peers `name` has failed: the words of the failure that all ranks report.

        Whoever wrote last words says it; else a rank without signs of life has gone; else, where the time was over,
        the rank that has not come to this call is the one that all others wait for.
        """
        before, began = self._ticks(), time.monotonic()
        while time.monotonic() < began + SILENT_S:
            known = self.failure()
            if known is not None:
                return known
            time.sleep(0.1)
        beats = self._ticks()
        if beats is None or before is None:
            return f"{self._names[0]} has ended or cannot be reached: the others met at it; see its output"
        silent = self._gone = [rank for rank in range(self._size) if rank != self._rank and beats[rank] == before[rank]]
        behind = [rank for rank in range(self._size) if beats[rank][1].get(name, 0) < self.calls.get(name, 0)]
        late = f"not answered for {waited_s:.0f} s; see its output"
        if silent:
            return self._write(f"{self._names[silent[0]]} has {late if timed_out else 'ended; see its output'}")
        if timed_out and behind:
            return self._write(f"{self._names[behind[0]]} has {late}")
        time.sleep(GRACE_S / 2)  # whose time was over before is about to write which rank it was
        return self.failure() or "the connection to another rank was lost; see the output of the others"

    def failure(self) -> str | None:
        """The one that all ranks report, if there is one. Once read it is known, also when the store has gone."""
        if self._known:
            return self._known
        found = _ask(lambda: self._store.get("failure").decode() if self._store.check(["failure"]) else "", "")
        if found:
            self._known = found
            _ask(lambda: self._store.set(f"read/{self._rank}", "1"), None)
        return found or None

    def _write(self, words: str) -> str:
        first = _ask(lambda: bytes(self._store.compare_set("failure", "", words)).decode(), words)
        return (self.failure() or first) if first else words

    def _beat(self, tick: int) -> None:
        self._store.set(f"beat/{self._rank}", json.dumps([tick, self.calls]))

    def _ticks(self) -> list[tuple[int, dict[str, int]]] | None:
        """Every rank's last sign of life; None where the board cannot be read."""
        keys = [f"beat/{rank}" for rank in range(self._size)]
        found = _ask(lambda: [self._store.get(key) for key in keys], None)
        return None if found is None else [tuple(json.loads(value)) for value in found]

    def _live(self) -> None:
        tick, answered = 0, time.monotonic()
        while not self._closed.wait(BEAT_S):
            tick += 1
            try:
                if not _within(GRACE_S, lambda tick=tick: self._beat(tick)):  # type: ignore[misc]
                    if time.monotonic() - answered > self._timeout_s and self._on_failure is not None:
                        self._on_failure(f"{self._names[0]} cannot be reached: the others met at it; see its output")
                        return
                    continue
            except RuntimeError:
                return  # the store has gone; whoever asks learns it
            answered = time.monotonic()
            if self._rank == 0 and tick % WATCH_BEATS == 0:
                self._watch(answered)
            words = self.failure() if self._on_failure is not None else None
            if words is not None and self._on_failure is not None:
                if not self._closed.wait(GRACE_S):
                    self._on_failure(words)
                return

    def _watch(self, now: float) -> None:
        """Write down a rank whose signs of life have stopped."""
        for rank, (tick, _) in enumerate(self._ticks() or ()):
            if rank not in self._seen or self._seen[rank][0] != tick:
                self._seen[rank] = tick, now
            elif now - self._seen[rank][1] > self._timeout_s:
                silent_s = now - self._seen[rank][1]
                self._write(f"{self._names[rank]} has not answered for {silent_s:.0f} s; see its output")


def _within(seconds: float, work: Callable[[], None]) -> bool:
    """Do it; False where it takes longer, and may never end. Raises what it raises."""
    errors: list[RuntimeError] = []

    def run() -> None:
        try:
            work()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sfctr-beat-once", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()


def _ask(question: Callable[[], T], otherwise: T) -> T:
    """What the store answers, or `otherwise` where it has gone or does not answer in GRACE_S: it has no time-out."""
    answers: list[T] = []

    def ask() -> None:
        try:
            answers.append(question())
        except RuntimeError:
            return

    thread = threading.Thread(target=ask, name="sfctr-ask", daemon=True)
    thread.start()
    thread.join(GRACE_S)
    return answers[0] if answers else otherwise

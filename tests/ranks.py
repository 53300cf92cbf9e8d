"""Several ranks as threads of one process: what a test of many processes needs where no process is to start.

`in_ranks(3, body)` runs body(peers) once a rank, each in a thread with Peers of its own, and gives what they returned.
Bytes are copied on their way, as they would be between processes. Every rank must make the same calls: one that makes
another call, ends early or raises breaks what the others wait for, so that all end, and the first error is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from sfctr.spec.errors import PeerError
from sfctr.spec.peers import Bytes

T = TypeVar("T")

TIMEOUT_S = 60.0


class Meeting:
    """Where the ranks of a test meet: what each brought to the call under way."""

    def __init__(self, size: int, timeout_s: float = TIMEOUT_S) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout_s)
        self.brought: list[Any] = [None] * size
        self.calls: list[Any] = [None] * size

    def bring(self, rank: int, call: tuple[str, str], mine: Any) -> list[Any]:
        """What every rank brought. PeerError where another one has gone, does not come, or makes another call."""
        self.brought[rank], self.calls[rank] = mine, call
        self._wait(rank)
        brought, calls = list(self.brought), list(self.calls)
        self._wait(rank)  # nobody brings the next before all have taken this
        if len(set(calls)) > 1:
            self.barrier.abort()
            raise PeerError(f"ranks make different calls: {calls}")
        return brought

    def _wait(self, rank: int) -> None:
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerError(f"rank {rank} waited for a rank that has gone, or did not come in time") from None


class ThreadPeers:
    """The Peers of one thread. moved: kind -> bytes that this rank gave to others."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size = rank, meeting.size
        self.moved: dict[str, int] = {}
        self._meeting = meeting

    def gather(self, kind: str, mine: Bytes) -> list[Bytes]:
        mine = self._given(kind, mine, self.size - 1)
        return [part.copy() for part in self._meeting.bring(self.rank, ("gather", kind), mine)]

    def exchange(self, kind: str, parts: Sequence[Bytes], lengths: Sequence[int] | None = None) -> list[Bytes]:
        assert len(parts) == self.size, f"{len(parts)} parts for {self.size} ranks"
        mine = [self._given(kind, part, int(to != self.rank)) for to, part in enumerate(parts)]
        brought = self._meeting.bring(self.rank, ("exchange", kind), mine)
        got = [of_rank[self.rank].copy() for of_rank in brought]
        if lengths is not None:
            found = [len(part) for part in got]
            assert found == list(lengths), f"{kind}: lengths {found} came where {list(lengths)} were awaited"
        return got

    def _given(self, kind: str, part: Bytes, times: int) -> Bytes:
        assert part.dtype == np.uint8 and part.ndim == 1 and part.flags.c_contiguous, "bytes are contiguous uint8 [n]"
        self.moved[kind] = self.moved.get(kind, 0) + times * len(part)
        return part.copy()


def in_ranks(size: int, body: Callable[[ThreadPeers], T], *, timeout_s: float = TIMEOUT_S) -> list[T]:
    """What body(peers) returned in each of `size` threads. Raises the first error of any of them.

    To return is a call too: a rank that does so while others make another one is a rank that has gone.
    """
    meeting = Meeting(size, timeout_s)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(ThreadPeers(meeting, rank))
            meeting.bring(rank, ("end", ""), None)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerError)), errors[0])
    left = [thread.name for thread in threads if thread.is_alive()]
    assert not left, f"{', '.join(left)} did not end within {timeout_s} s"
    return results

"""Work done ahead in threads: in order, within bounds, ending with its consumer and carrying exceptions to it.

Whoever iterates owns the threads: when the iterator is exhausted, closed or dropped, they have ended before it returns;
but one that hangs in the work itself is left there after a while, which is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Condition, Thread
from typing import Generic, TypeVar

from sfctr.telemetry import notice

CLOSE_TIMEOUT_S = 5.0
"""How long a thread that reads is waited for."""

T = TypeVar("T")
R = TypeVar("R")


class _Channel(Generic[T]):
    """A bounded queue between one producer and one consumer, either of whom may leave."""

    def __init__(self, depth: int) -> None:
        self._changed = Condition()
        self._items: deque[T] = deque()
        self._depth = depth
        self._ended = self._left = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Wait for room and add `item`; False where the consumer has left."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._items) < self._depth)
            if not self._left:
                self._items.append(item)
                self._changed.notify_all()
            return not self._left

    @property
    def is_left(self) -> bool:
        return self._left

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def leave(self) -> None:
        with self._changed:
            self._left = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended)
                if not self._items:
                    error, self._error = self._error, None
                    break
                item = self._items.popleft()
                self._changed.notify_all()
            yield item
        if error is not None:
            raise error


def ahead(make: Callable[[], Generator[T | None, None, None]], depth: int) -> Generator[T, None, None]:
    """The items of make(), produced in a thread up to `depth` ahead. A None among them says only "still working": it is
    passed to nobody, and is where the work ends early if the consumer has left."""
    channel: _Channel[T] = _Channel(depth)

    def work() -> None:
        error: BaseException | None = None
        items = make()
        try:
            for item in items:
                if channel.is_left or (item is not None and not channel.put(item)):
                    break
            items.close()
        except BaseException as caught:  # handed to the consumer, whatever it is
            error = caught
        channel.end(error)

    thread = Thread(target=copy_context().run, args=(work,), name="sfctr-reader", daemon=True)
    thread.start()
    try:
        yield from channel
    finally:
        channel.leave()
        thread.join(CLOSE_TIMEOUT_S)
        if thread.is_alive():
            notice(f"reading has not ended for {CLOSE_TIMEOUT_S:g} s since it was asked to: it is left where it hangs")


def mapped(function: Callable[[T], R], items: Iterable[T], threads: int) -> Generator[R, None, None]:
    """function(item) for every item, in order: by `threads` threads, or by the caller where that is 0."""
    if threads == 0:
        for item in items:
            yield function(item)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sfctr-convert")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(copy_context().run, function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

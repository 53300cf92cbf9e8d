"""A generator run by a thread of its own, at most `depth` items ahead of whoever consumes it.

The thread ends when the generator does, when it raises (the consumer sees the exception in its place in the order), or
when the consumer closes or forgets this one; close() waits for it. The generator is closed by the thread that ran it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")


class _Channel:
    """Items on their way; guarded by one condition. `stop` is the consumer's wish, `done` the producer's word."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[object] = deque()
        self.changed = threading.Condition()
        self.stop = False
        self.done = False
        self.error: BaseException | None = None


def run_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """The same items, prepared up to `depth` ahead; depth 0 uses no thread."""
    if depth == 0:
        yield from items
        return
    channel = _Channel(depth)
    thread = threading.Thread(target=_produce, args=(items, channel), name="sfctr-lookahead", daemon=True)
    thread.start()
    try:
        while True:
            with channel.changed:
                channel.changed.wait_for(lambda: channel.items or channel.done)
                if not channel.items:
                    break
                item = channel.items.popleft()
                channel.changed.notify_all()
            yield item  # type: ignore[misc]
        if channel.error is not None:
            raise channel.error
    finally:
        with channel.changed:
            channel.stop = True
            channel.changed.notify_all()
        thread.join()


def _produce(items: Iterator[object], channel: _Channel) -> None:
    try:
        for item in items:
            with channel.changed:
                channel.changed.wait_for(lambda: len(channel.items) < channel.depth or channel.stop)
                if channel.stop:
                    break
                channel.items.append(item)
                channel.changed.notify_all()
    except BaseException as error:
        channel.error = error
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
        with channel.changed:
            channel.done = True
            channel.changed.notify_all()

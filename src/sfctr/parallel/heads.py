"""What goes before the keys of a message: how the batch is on the rank that sends it, or why there is none.

K labels
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from sfctr.spec.errors import PeerError, mark_agreed
from sfctr.spec.exchange import Whole

from .packing import Array, Reader

_NO_TIME = np.iinfo(np.int64).min


class _State(IntEnum):
    GOES_ON = 0
    ENDED = 1  # all batches were read
    STOPPED = 2  # before that
    FAILED = 3


def head_of(whole: Whole) -> list[Array]:
    time = _NO_TIME if whole.time is None else whole.time
    return [np.array([_State.GOES_ON, whole.size, time, whole.weights.size]), whole.weights]


def last_head(*, read_all: bool) -> list[Array]:
    """Of a rank that has no next batch."""
    return [np.array([_State.ENDED if read_all else _State.STOPPED, 0, 0, 0])]


def failed_head(error: BaseException) -> list[Array]:
    words = np.frombuffer(f"{type(error).__name__}: {error}".encode(), np.uint8)
    return [np.array([_State.FAILED, 0, 0, 0]), words]


def read_heads(messages: Sequence[Reader]) -> Whole | None:
    """Of the batch that all ranks go on with, whose keys then follow; None where they have come to an end.

    Raises PeerError where a rank says that it cannot go on, or some have read all their batches and others not.
    """
    parts: list[Whole] = []
    states: list[int] = []
    for rank, message in enumerate(messages):
        state, size, time, num_labels = message.take(np.int64, 4).tolist()
        if state == _State.FAILED:
            failure = PeerError(f"rank {rank} cannot go on: {message.rest().tobytes().decode()}")
            mark_agreed(failure)
            raise failure
        states.append(state)
        weights = message.take(np.float64, num_labels).copy()
        parts.append(Whole(size=size, weights=weights, time=None if time == _NO_TIME else time))
    if _State.STOPPED in states:
        return None
    if len(set(states)) > 1:
        ended, others = states.index(_State.ENDED), states.index(_State.GOES_ON)
        raise PeerError(f"rank {ended} has read all its batches and rank {others} has not; do all read the same data?")
    return joined(parts) if states[0] == _State.GOES_ON else None


def joined(parts: Sequence[Whole]) -> Whole:
    """Of the parts of all ranks, in their order."""
    times = [part.time for part in parts if part.time is not None]
    weights = np.sum([part.weights for part in parts], axis=0)
    return Whole(size=sum(part.size for part in parts), weights=weights, time=max(times, default=None))

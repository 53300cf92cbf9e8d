"""Who has a row in a table over time: options as the native core takes them, and what is kept beside the rows.

docs/vocabulary.md has the rules; native/include/sfctr/membership.h keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.batch import I64, U64
from sfctr.spec.tables import Table

U32 = npt.NDArray[np.uint32]

MOST_WAITING = 65536
"""Keys whose count is kept at least while they wait for a row; twice the capacity where that is more."""


def membership_rule(table: Table) -> _native.MembershipRule | None:
    """What the native core needs to decide who has a row; None for a table without such options."""
    if not table.has_membership:
        return None
    return _native.MembershipRule(
        capacity=table.capacity or 0,
        admit_after=table.admit_after,
        expire_after_steps=table.expire_after_steps or 0,
        expire_after_ns=table.expire_after_ns,
        rare=table.unseen == "rare",
        most_waiting=max(MOST_WAITING, 2 * (table.capacity or 0)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """Keys that wait for a row [n], in the order of their hashes; the steps that reached each, and the last of them."""

    keys: U64
    counts: U32
    last: U32


@dataclass(frozen=True, kw_only=True, slots=True)
class EventClock:
    """Steps [n] at which the greatest event time rose, and what it was from then on, int64 ns since 1970."""

    steps: U32
    times: I64


NO_CLOCK = EventClock(steps=np.empty(0, np.uint32), times=np.empty(0, np.int64))

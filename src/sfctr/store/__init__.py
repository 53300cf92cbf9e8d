"""Holds the rows of *this* process in RAM and on disk, and updates them. Knows no rank, no batch, no model."""

from .elements import narrow, widen
from .group import (
    ABSENT,
    FRESH,
    INDEX_BYTES,
    NUM_SHARDS,
    RARE_KEY,
    REFUSED,
    ROW,
    Group,
    RowBlock,
    Unsent,
)
from .groups import rules_of
from .membership import NO_CLOCK, EventClock, Waiting
from .replica import Replica
from .spill import remove_left
from .store import Store

__all__ = [
    "ABSENT",
    "FRESH",
    "INDEX_BYTES",
    "NO_CLOCK",
    "NUM_SHARDS",
    "RARE_KEY",
    "REFUSED",
    "ROW",
    "EventClock",
    "Group",
    "Replica",
    "RowBlock",
    "Store",
    "Unsent",
    "Waiting",
    "narrow",
    "remove_left",
    "rules_of",
    "widen",
]

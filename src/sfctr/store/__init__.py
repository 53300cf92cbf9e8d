"""Holds the rows of *this* process in RAM and on disk, and updates them. Knows no rank, no batch, no model."""

from .elements import narrow, widen
from .group import INDEX_BYTES, RARE_KEY, Group, RowBlock, Unsent
from .groups import rules_of
from .membership import NO_CLOCK, EventClock, Waiting
from .spill import remove_left
from .store import Store

__all__ = [
    "INDEX_BYTES",
    "NO_CLOCK",
    "RARE_KEY",
    "EventClock",
    "Group",
    "RowBlock",
    "Store",
    "Unsent",
    "Waiting",
    "narrow",
    "remove_left",
    "rules_of",
    "widen",
]

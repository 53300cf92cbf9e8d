"""Faults: ways in which keeping rows can go wrong, so that tests can make them happen.

What is tested takes a `Faults` by its constructor and asks it; what judges the result never sees one.

  n keys of a table that a step looks up
"""

from __future__ import annotations

from typing import Protocol

from .batch import U64, Bools


class Faults(Protocol):
    """Asked once a step (from 1) and table, about keys uint64 [n]; each answers with those it strikes, bool [n]."""

    def fetch_early(self, step: int, table: str, keys: U64) -> Bools:
        """Their rows are read for this step before the step ahead of it has written them."""
        ...

    def drop_write_back(self, step: int, table: str, keys: U64) -> Bools:
        """What this step made of their rows is not written."""
        ...

    def apply_twice(self, step: int, table: str, keys: U64) -> Bools:
        """Their merged gradients of this step count twice."""
        ...

    def lose_state(self, step: int, table: str, keys: U64) -> Bools:
        """Their rows leave this step without optimizer state."""
        ...

    def use_wrong_slot(self, step: int, table: str, keys: U64) -> Bools:
        """After this step their rows lie in each other's slots, every one's in that of the next."""
        ...

"""Which rows are a rank's own, where several hold the rows of a run between them."""

from __future__ import annotations

from typing import Protocol

from .batch import U64, Bools


class Owns(Protocol):
    """Says of keys uint64 [n] of a table which are this rank's own, bool [n]. Every row is owned by one rank.

    is_null: they are of the rows beside the keys, of a missing value (key 0) and of rare keys (key 1). Key 0 is in the
    first shard of a table: what a table has once, such as its counters, goes with it.
    """

    def __call__(self, table: str, keys: U64, *, is_null: bool = False) -> Bools: ...

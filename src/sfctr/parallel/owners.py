"""Which rank owns which rows. Pure.

A table's rows are in 256 shards, by the leading bits of their keys' hashes; a rank owns whole shards. Where a rule of
membership decides over several shards together, these stay together: so what it decides depends on no number of ranks.

  T tables of a group; native tables 2t hold their keys, 2t + 1 the rows beside them (see docs/ARCHITECTURE.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from sfctr import _native
from sfctr.spec.batch import I64, U64, Bools
from sfctr.spec.tables import Table

NUM_SHARDS = 256
REPLICATED_BYTES = 1_000_000
"""A table that is bounded to so many bytes is replicated where nothing else was asked for."""

Ranks = npt.NDArray[np.int64]


def placed(table: Table, row_bytes: int) -> Table:
    """The table with its placement decided."""
    if table.placement != "auto":
        return table
    bounds = [bound for bound in (table.buckets, table.capacity) if bound is not None]
    is_small = not table.has_membership and bool(bounds) and min(bounds) * row_bytes <= REPLICATED_BYTES
    placement: Literal["sharded", "replicated"] = "replicated" if is_small else "sharded"
    return msgspec.structs.replace(table, placement=placement)


def owners_of(placement: str, size: int, *, parts: int = NUM_SHARDS, number: int = 0) -> Ranks:
    """[256]: the rank that owns each shard of a table, where `parts` equal ranges of shards may not be divided.

    number: of the table among those of the run; tables that are on one rank are dealt out by it.
    """
    if placement == "one":
        return np.full(NUM_SHARDS, number % size)
    part = np.arange(NUM_SHARDS) * parts // NUM_SHARDS
    owner: Ranks = part * size // parts
    return owner


def shards_of(keys: U64) -> npt.NDArray[np.uint8]:
    """uint8 [n]: the shard of each key."""
    found = np.empty(keys.size, np.uint8)
    _native.shards_of(np.ascontiguousarray(keys), found)
    return found


class GroupOwners:
    """The owners of one group's rows: of each table [256], in the order of the group's tables."""

    def __init__(self, owners: Sequence[Ranks]) -> None:
        self._owners = np.repeat(np.stack(owners), 2, axis=0)  # [2T, 256]

    @property
    def num_native(self) -> int:
        """2T."""
        return len(self._owners)

    def of_keys(self, keys: U64, table_begin: I64) -> Ranks:
        """[U]: the owner of each key; native table n has keys[table_begin[n]:table_begin[n + 1]]."""
        native = np.repeat(np.arange(self.num_native), np.diff(table_begin))
        found: Ranks = self._owners[native, shards_of(keys)]
        return found

    def owns(self, rank: int, place: int, keys: U64) -> Bools:
        """bool [n]: which rows of the table in this place are the rank's."""
        found: Bools = self._owners[2 * place, shards_of(keys)] == rank
        return found

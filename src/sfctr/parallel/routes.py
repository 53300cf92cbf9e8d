"""Where the keys of a batch go, for one group of tables: to owners, and to all ranks where rows have copies. Pure.

U unique keys, N keys of a list, T tables (2T native ones), P ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sfctr.spec.batch import I64, U64, Bools

from .owners import GroupOwners, Ranks


@dataclass(frozen=True)
class KeyList:
    """Keys by native table, as a working set has them: table n has keys[table_begin[n]:table_begin[n + 1]]."""

    keys: U64
    table_begin: I64

    @classmethod
    def of_counts(cls, keys: U64, counts: I64) -> KeyList:
        """counts [2T]: keys of each native table."""
        return cls(keys, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))

    @cached_property
    def native(self) -> I64:
        """[N]: the native table of each key."""
        return np.repeat(np.arange(self.table_begin.size - 1), np.diff(self.table_begin))

    @property
    def counts(self) -> I64:
        return np.diff(self.table_begin)

    def only(self, chosen: Bools) -> KeyList:
        """Those that are chosen, bool [N], in their order."""
        counts = np.bincount(self.native[chosen], minlength=self.table_begin.size - 1)
        return KeyList.of_counts(np.ascontiguousarray(self.keys[chosen]), counts)


@dataclass(frozen=True)
class Route:
    """The way of a rank's own keys.

    keys: of its working set. owner: [U]. has_copies: bool [U], whose rows have copies on every rank.
    """

    keys: KeyList
    owner: Ranks
    has_copies: Bools
    size: int

    @cached_property
    def by_owner(self) -> tuple[I64, ...]:
        """[P]: positions of the keys that each rank owns."""
        order = np.argsort(self.owner, kind="stable")
        return tuple(np.split(order, np.cumsum(np.bincount(self.owner, minlength=self.size))[:-1]))

    @cached_property
    def travelling(self) -> tuple[I64, ...]:
        """[P]: positions of those whose rows come from each rank."""
        if not self.has_copies.any():
            return self.by_owner
        return tuple(positions[~self.has_copies[positions]] for positions in self.by_owner)

    def told(self, rank: int) -> KeyList:
        """The keys that a rank must know of."""
        return self.keys.only((self.owner == rank) | self.has_copies)


def route(keys: KeyList, owners: GroupOwners, is_replicated: Bools, size: int) -> Route:
    """is_replicated: bool [2T]."""
    return Route(keys, owners.of_keys(keys.keys, keys.table_begin), is_replicated[keys.native], size)


@dataclass(frozen=True)
class Asked:
    """What the ranks told one of them.

    owned: [P] of each rank's keys, those that it owns itself. others: [P] those that others own, and that it has copies
    of. answered: [P] positions in `owned` whose rows travel to the rank that asked.
    """

    owned: tuple[KeyList, ...]
    others: tuple[KeyList, ...]
    answered: tuple[I64, ...]


def asked(told: Sequence[KeyList], owners: GroupOwners, is_replicated: Bools, rank: int) -> Asked:
    """Of what every rank told `rank`."""
    if not is_replicated.any():
        return Asked(tuple(told), (), tuple(np.arange(keys.keys.size) for keys in told))
    mine = [owners.of_keys(keys.keys, keys.table_begin) == rank for keys in told]
    owned = tuple(keys.only(chosen) for keys, chosen in zip(told, mine, strict=True))
    others = tuple(keys.only(~chosen) for keys, chosen in zip(told, mine, strict=True))
    return Asked(owned, others, tuple(np.flatnonzero(~is_replicated[keys.native]) for keys in owned))

"""Copies of rows that other ranks own, for one batch and one group.

Every rank is told all keys of a batch whose rows have copies. It brings, from their owners, the records that its
replica lacks, when all steps before have ended; and it applies to all of them what the owners apply to their rows. A
copy is therefore its row, bit for bit, for as long as the replica has it: what changes a row changes every copy.

An owner numbers its keys by native table, then by first appearance among what the ranks told it; of what a replica
numbers, those that one rank owns are in that order, too. So rows are named by their place in it.

  U unique keys of a batch that others own, P ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sfctr import _native
from sfctr.spec.batch import F32, I64, Bools

from .owners import GroupOwners
from .routes import KeyList
from .shapes import Gradients, RowShape


class Replica(Protocol):
    """What this asks of a store.Replica."""

    def announce(self, working_set: Any) -> None: ...
    def place(self, working_set: Any) -> bool: ...
    def discard(self, working_set: Any) -> None: ...
    def missing(self, working_set: Any) -> I64: ...
    def fill(self, working_set: Any, ids: I64, records: F32) -> None: ...
    def weights(self, working_set: Any, out: F32) -> None: ...
    def add_gradients(self, working_set: Any, ids: Any, vectors: F32, linear: F32, reached: Any) -> None: ...
    def update(self, working_set: Any, step: int, *, lr_factor: float, scale: float) -> None: ...


class Copies:
    """told: of each rank, those of its keys that other ranks than this one own."""

    def __init__(
        self,
        replica: Replica,
        owners: GroupOwners,
        told: Sequence[KeyList],
        *,
        is_replicated: Bools,
        shape: RowShape,
        rank: int,
    ) -> None:
        self._replica, self._shape, self._rank = replica, shape, rank
        self._is_replicated = is_replicated
        self.working_set = _native.WorkingSet.of_sources(
            is_replicated.size // 2, [(keys.keys, keys.table_begin) for keys in told]
        )
        owner = owners.of_keys(self.working_set.keys(), self.working_set.table_begin())
        self._of_owner = [np.flatnonzero(owner == q) for q in range(len(told))]

    def announce(self) -> None:
        self._replica.announce(self.working_set)

    def place(self) -> bool:
        return self._replica.place(self.working_set)

    def discard(self) -> None:
        self._replica.discard(self.working_set)

    def wanted(self) -> list[I64]:
        """[P]: of each owner's rows, by their place in its order, those that there is no copy of."""
        lacking = self._replica.missing(self.working_set)
        return [np.searchsorted(mine, lacking[np.isin(lacking, mine)]) for mine in self._of_owner]

    def fill(self, owner: int, wanted: I64, records: F32) -> None:
        """The records [n, R] of what was wanted of an owner."""
        self._replica.fill(self.working_set, self._of_owner[owner][wanted], records)

    def num_of_owner(self, owner: int) -> int:
        """Rows that a rank owns."""
        return self._of_owner[owner].size

    def weights(self) -> F32:
        """[N, W]: of this rank's own keys that others own, in their order."""
        found = np.empty((self.working_set.num_unique, self._shape.words), np.float32)
        self._replica.weights(self.working_set, found)
        return found[self.working_set.source_ids(self._rank)]

    def add(self, owner: int, gradients: Gradients) -> None:
        """The sums of an owner, of all its rows that have copies, in its order."""
        ids = self._of_owner[owner].astype(np.int32)
        self._replica.add_gradients(self.working_set, ids, *gradients)

    def update(self, step: int, *, lr_factor: float, scale: float) -> None:
        self._replica.update(self.working_set, step, lr_factor=lr_factor, scale=scale)


def replicated_ids(working_set: _native.WorkingSet, is_replicated: Bools) -> I64:
    """Unique keys of an owner's working set whose rows have copies, in its order."""
    return np.flatnonzero(np.repeat(is_replicated, np.diff(working_set.table_begin())))

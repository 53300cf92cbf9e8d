"""Copies of the rows of one group that other processes hold, and train at every step.

A copy is the whole record, with the state of the optimizers. Whoever holds the row gives it once (`missing`, `fill`);
from then on the copy gets the same merged gradients, by the same kernels, with the same numbers, so it has the bits of
the row. Copies take bounded RAM: those that must leave it are forgotten, and asked for again when they are wanted.
Batches are planned in the order of training, some ahead of it, by one thread beside another one that does all else.

  U unique keys of a working set of sources, m of them missing, W words of weights, R floats of a record
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from sfctr import _native
from sfctr.spec.batch import F32, I64, U8

from .device.features import I32
from .groups import GroupPlan
from .rules import hyper_parameters, with_lr
from .seeds import table_init


class Replica:
    """Copies of rows of one plan's tables, none of which has options of membership. budget: of RAM.

    seed: of the run, by which bf16 is rounded where the row is held. A batch that has more rows than the budget has
    room for is trained all the same, in memory of its own, and its surplus forgotten.
    """

    def __init__(self, plan: GroupPlan, seed: int, budget: _native.Budget, *, policy: str = "lru") -> None:
        assert not plan.has_membership, "rows that may be removed have no copies"
        self.plan = plan
        self.native = _native.RowGroup(
            plan.dim,
            plan.linear_rule is not None,
            plan.vector_rule,
            plan.linear_rule,
            # A key of a frozen table that has no row is copied as well: as the zeros that it reads as.
            [table_init(msgspec.structs.replace(table, frozen=False), seed) for table in plan.tables],
            budget=budget,
            policy=policy,
            dtype=plan.dtype,
            forgets=True,
        )
        self._hyper = hyper_parameters([table.optimizer for table in plan.tables])
        self._linear_hyper = hyper_parameters([table.linear for table in plan.tables if table.linear is not None])
        self._is_frozen = np.array([table.frozen for table in plan.tables])

    @property
    def wire_words(self) -> int:
        return self.native.wire_words

    def announce(self, working_set: _native.WorkingSet) -> None:
        """The batch will be planned after those announced before it: its copies are spared where they can be."""
        self.native.announce(working_set)

    def place(self, working_set: _native.WorkingSet) -> bool:
        """Give every key of a batch its place in RAM, until update() or discard(); copies go for it where they must.

        False, with nothing changed, where batches in flight hold the room: try again when one of them has ended.
        """
        if not self.native.plan(working_set):
            return False
        self.native.fetch(working_set)
        return True

    def missing(self, working_set: _native.WorkingSet) -> I64:
        """Unique keys [m] without a copy now. Called when every batch before this one has ended; fill() all of them."""
        return self.native.missing(working_set)

    def fill(self, working_set: _native.WorkingSet, ids: I64, records: F32) -> None:
        """Keep the records [m, R] of unique keys `ids` [m], as Group.records gives them where the rows are held."""
        self.native.fill(working_set, ids, records)

    def weights(self, working_set: _native.WorkingSet, out: F32, ids: I32 | None = None) -> None:
        """Write the weights of unique keys `ids` [n] as they are now to out [n, W]; of all [U, W] where it is None.

        Nothing is missing any more.
        """
        self.native.weights(working_set, out, ids)

    def add_gradients(self, working_set: _native.WorkingSet, ids: I32, vectors: F32, linear: F32, reached: U8) -> None:
        """As Group.add_gradients; what comes to a frozen table is dropped here too."""
        if self._is_frozen.any():
            native_tables = np.searchsorted(working_set.table_begin(), ids, side="right") - 1
            reached = np.where(self._is_frozen[native_tables // 2], np.uint8(0), reached)
        self.native.add_gradients(working_set, ids, vectors, linear, reached)

    def update(self, working_set: _native.WorkingSet, step: int, *, lr_factor: float, scale: float) -> None:
        """One optimizer step, with the numbers of the step that the holders of the rows take; ends the batch."""
        linear = with_lr(self._linear_hyper, lr_factor) if self._linear_hyper.size else None
        self.native.update(working_set, step, scale, with_lr(self._hyper, lr_factor), linear)

    def discard(self, working_set: _native.WorkingSet) -> None:
        """End the use of a batch without training it."""
        self.native.discard(working_set)

    def clear(self) -> None:
        """Forget all copies: the rows have changed in another way than by a step. No batch may be in flight."""
        self.native.forget_all()

    @property
    def num_rows(self) -> int:
        return sum(self.native.num_rows(space) for space in range(2 * len(self.plan.tables)))

    def memory_bytes(self) -> int:
        return self.native.memory_bytes()

    def counters(self) -> Mapping[str, int]:
        """What has moved: "fresh" counts copies that were asked for, "evicted" those that were forgotten."""
        return self.native.counters()

"""The rows of one batch of one group where they are trained: on the device, from when they are all there to the end.

B rows of the batch, n of a range, U unique keys, R floats of a record, D dim, L max_length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import F32, I64, U8
from sfctr.store.rules import F64

from .features import FeatureIds
from .gradients import Gradients, add_gradients, add_merged, grad_norm_squared
from .levels import on_device
from .link import Link
from .plans import MergePlan, PoolPlan, plan_merging, plan_pooling
from .pooling import pool
from .records import load_floats
from .updates import Rules, update


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What the rows of a group have in common. is_frozen [T]: tables that are never trained."""

    dim: int
    linear: bool
    rules: Rules
    is_frozen: tuple[bool, ...]


class DeviceRows:
    """forward and backward of row ranges, then update at most once.

    records: float32 [., R], where copies put them before `mark`; slots: int64 [U], which of them is each unique key's.
    """

    def __init__(
        self,
        kind: Kind,
        link: Link,
        working_set: _native.WorkingSet,
        records: Tensor,
        slots: I64,
        mark: torch.cuda.Event | None,
    ) -> None:
        self._kind, self._link, self._working_set = kind, link, working_set
        self.records, self._host_slots, self._mark = records, slots, mark
        self._slots: Tensor | None = None
        self._gradients: Gradients | None = None
        self._features = [
            FeatureIds(
                table=feature.table,
                pooling=feature.pooling,
                ids=working_set.virtual_ids(number),
                offsets=feature.offsets,
                weights=feature.weights,
                max_length=feature.max_length,
            )
            for number, feature in enumerate(working_set.features)
        ]
        self._is_frozen = [kind.is_frozen[feature.table] for feature in self._features]
        self._plan_ahead()

    def begin(self, records: Tensor, slots: I64) -> None:
        """Begin anew with other records, which are there already."""
        self.records, self._host_slots, self._slots, self._gradients = records, slots, None, None

    def _plan_ahead(self) -> None:
        """Plan for the whole batch, as long as others train."""
        size = self._working_set.num_rows
        self._whole = (0, size)
        self._pooling = plan_pooling(self._features, 0, size)
        trained = tuple(f for f, frozen in enumerate(self._is_frozen) if not frozen and self._features[f].ids.size)
        self._merging = plan_merging(self._features, 0, size, trained)

    @property
    def reached(self) -> U8:
        """uint8 [U]: not 0 where a gradient has reached the key."""
        if self._gradients is None:
            return np.zeros(self._working_set.num_unique, dtype=np.uint8)
        return self._gradients.reached

    def forward(self, begin: int, end: int) -> tuple[list[Tensor], list[Tensor]]:
        """Pooled vectors [n, D] (sequences [n, L, D]) of every feature, and first-order weights [n, 1] if there are."""
        slots = self._on_device()
        plan = on_device(self._pool_plan(begin, end), self._link.device)
        return pool(self.records, slots, plan, dim=self._kind.dim, linear=self._kind.linear)

    def _on_device(self) -> Tensor:
        """The slots; records are there when what is asked of the device next begins."""
        if self._slots is None:
            self._link.wait(self._mark, self.records)
            self._slots = self._link.indices(self._host_slots)
        return self._slots

    def _pool_plan(self, begin: int, end: int) -> PoolPlan:
        return self._pooling if (begin, end) == self._whole else plan_pooling(self._features, begin, end)

    def backward(
        self, begin: int, end: int, grads: Sequence[Tensor | None], linear_grads: Sequence[Tensor | None]
    ) -> None:
        """Merge gradients of a row range, shaped as forward's outputs (None: not reached), into those of its keys."""

        def plan_of(part: tuple[int, ...]) -> MergePlan:
            is_ready = (begin, end) == self._whole and part == self._merging.part
            plan = self._merging if is_ready else plan_merging(self._features, begin, end, part)
            return on_device(plan, self._link.device)

        if self._gradients is None:
            self._gradients = Gradients(self._working_set.num_unique, self._kind.dim, self._link.device)
        add_gradients(self._gradients, grads, linear_grads, is_frozen=self._is_frozen, plan_of=plan_of)

    def add_merged(self, ids: I64, vectors: F32, linear: F32, reached: U8) -> None:
        """Add gradients that were merged elsewhere to those of unique keys `ids` [n], each there once."""
        if self._gradients is None:
            self._gradients = Gradients(self._working_set.num_unique, self._kind.dim, self._link.device)
        if any(self._kind.is_frozen):
            native_tables = np.searchsorted(self._working_set.table_begin(), ids, side="right") - 1
            reached = np.where(np.array(self._kind.is_frozen)[native_tables // 2], np.uint8(0), reached)
        add_merged(self._gradients, ids, vectors, linear, reached)

    def gradients(self) -> tuple[F32, F32, U8]:
        """As RowGroup.gradients gives them, in arrays of their own."""
        num_unique, dim = self._working_set.num_unique, self._kind.dim
        found = Gradients(num_unique, dim, "cpu") if self._gradients is None else self._gradients
        linear = found.linear.cpu().numpy()[:, 0] if self._kind.linear else np.empty(0, np.float32)
        return found.vectors.cpu().numpy(), linear, found.reached

    def floats(self, ids: I64 | None, length: int) -> F32:
        """The first `length` floats of the records of unique keys `ids`, of all where it is None, as they are now."""
        slots = self._on_device()
        if ids is not None:
            slots = slots.index_select(0, self._link.indices(ids))
        found: F32 = load_floats(self.records, slots, 0, length).cpu().numpy()
        return found

    def grad_norm_squared(self) -> float:
        """Of all merged gradients, in double."""
        return 0.0 if self._gradients is None else grad_norm_squared(self._gradients)

    def update(self, step: int, scale: float, hyper: F64, linear_hyper: F64 | None) -> None:
        """Apply the optimizers to the records of the keys reached."""
        if self._gradients is None:
            return
        update(
            self.records,
            self._on_device(),
            self._gradients,
            self._kind.rules,
            table_begin=self._working_set.table_begin(),
            step=step,
            scale=scale,
            hyper=hyper,
            linear_hyper=linear_hyper,
        )

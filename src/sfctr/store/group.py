"""A group: the rows of the tables that one native call serves, and the steps of a batch through them.

They are trained in RAM, or on a device from keep_on_device() on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sfctr import _native
from sfctr.spec.batch import F32, U64, Bools
from sfctr.spec.errors import SchemaError

from .device import Rules
from .device.link import Link
from .device.rows import DeviceRows, Kind
from .device_cache import DeviceCache
from .groups import GroupPlan, initial_accumulator
from .rules import hyper_parameters, with_lr
from .seeds import table_init


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """Some rows of one table.

    keys uint64 [n]; nulls bool [n], True for the row of a missing value; vectors float32 [n, dim]; linear float32 [n]
    or None; state float32 [n, S], the optimizer state as docs/optimizers.md lays it out (a dense table has S = 0).
    """

    keys: U64
    nulls: Bools
    vectors: F32
    linear: F32 | None
    state: F32


class Group:
    """The rows of the tables of one plan. `budget` of RAM is shared with the other groups of a store."""

    def __init__(self, plan: GroupPlan, seed: int, budget: _native.Budget, *, disk: str | None, policy: str) -> None:
        self.plan = plan
        self.tables = {table.name: place for place, table in enumerate(plan.tables)}
        self.native = _native.RowGroup(
            plan.dim,
            plan.linear_rule is not None,
            plan.vector_rule,
            plan.linear_rule,
            [table_init(table, seed) for table in plan.tables],
            budget,
            disk,
            policy,
            staging_bytes=staging_bytes(budget.limit),
        )
        self._staging_bytes = staging_bytes(budget.limit)
        self._cache: DeviceCache | None = None
        vector = [table.optimizer for table in plan.tables]
        linear = [table.linear for table in plan.tables if table.linear is not None]
        self._hyper = hyper_parameters(vector)
        self._linear_hyper = hyper_parameters(linear)

    @property
    def row_bytes(self) -> int:
        """Of a record."""
        return 4 * self.native.record_floats

    def keep_on_device(self, device: torch.device, num_lines: int) -> None:
        """Train rows in so many lines on a device from now on. Raises CapacityError where they do not fit there."""
        plan = self.plan
        kind = Kind(
            dim=plan.dim,
            linear=plan.linear_rule is not None,
            rules=Rules(vector=plan.vector_rule, linear=plan.linear_rule, layout=self.native.layout()),
            is_frozen=tuple(table.frozen for table in plan.tables),
        )
        link = Link(device, self.native.record_floats, self._staging_bytes)
        self._cache = DeviceCache(self.native, kind, link, num_lines)

    @property
    def num_lines(self) -> tuple[int, int]:
        """Lines on the device, and how many of them may be in use."""
        return (0, 0) if self._cache is None else (self._cache.num_lines, self.native.lines_bound())

    def lift(self, working_set: _native.WorkingSet) -> bool:
        """Have the rows of a fetched batch on the device; False where batches in flight hold the room there."""
        return self._cache is None or self._cache.lift(working_set)

    def on_device(self, working_set: _native.WorkingSet) -> DeviceRows | None:
        """The rows of a batch that was lifted, or None: they are in RAM."""
        return None if self._cache is None else self._cache.rows(working_set)

    def grad_norm_squared(self, working_set: _native.WorkingSet) -> float:
        """Of all merged gradients of a batch, in double."""
        rows = self.on_device(working_set)
        return self.native.grad_norm_squared(working_set) if rows is None else rows.grad_norm_squared()

    def update(self, working_set: _native.WorkingSet, step: int, *, lr_factor: float, scale: float) -> None:
        """One optimizer step on the rows that backward reached; `step` counts committed steps from 1."""
        hyper = with_lr(self._hyper, lr_factor)
        linear = with_lr(self._linear_hyper, lr_factor) if self._linear_hyper.size else None
        if self._cache is None:
            self.native.update(working_set, step, scale, hyper, linear)
        else:
            self._cache.update(working_set, step, scale, hyper, linear)

    def discard(self, working_set: _native.WorkingSet) -> None:
        """End the use of a batch that was announced or planned, without training it."""
        if self._cache is not None:
            self._cache.discard(working_set)
        self.native.discard(working_set)

    def view(self, working_set: _native.WorkingSet) -> None:
        """Find the rows of a batch for reading alone, in RAM."""
        self._lower()
        self.native.locate(working_set, False)

    def _lower(self) -> None:
        if self._cache is not None:
            self._cache.lower()

    def _drop(self) -> None:
        if self._cache is not None:
            self._cache.drop()

    def close(self) -> None:
        """Free what is on the device."""
        if self._cache is not None:
            self._cache.close()

    def num_rows(self, place: int) -> int:
        """Rows of the table in this place, that of a missing value included."""
        return self.native.num_rows(2 * place) + self.native.num_rows(2 * place + 1)

    def blocks(self, place: int, size: int) -> Iterator[RowBlock]:
        """All rows of the table in this place, in the order of their keys' hashes, `size` at a time."""
        for space in (2 * place, 2 * place + 1):
            start: int | None = 0
            while start is not None:
                self._lower()
                keys, records, start = self.native.export_rows(space, start, size)
                yield self._split(keys, records, is_null=space % 2 == 1)

    def _split(self, keys: U64, records: F32, *, is_null: bool) -> RowBlock:
        dim, has_linear = self.plan.dim, self.plan.linear_rule is not None
        return RowBlock(
            keys=keys,
            nulls=np.full(keys.size, is_null),
            vectors=records[:, :dim],
            linear=records[:, dim] if has_linear else None,
            state=records[:, dim + has_linear :],
        )

    def load(self, place: int, block: RowBlock) -> None:
        """Insert or overwrite rows of the table in this place, with their state."""
        parts = [block.vectors, *([block.linear[:, None]] if block.linear is not None else []), block.state]
        records = np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)
        if records.shape[1] != self.native.record_floats:
            raise SchemaError(
                f"table '{self.plan.tables[place].name}': rows of {records.shape[1]} floats were given and"
                f" {self.native.record_floats} are needed; dim, optimizer and linear must be as they were when the rows"
                " were written"
            )
        self._drop()
        for is_null in (False, True):
            chosen = block.nulls == is_null
            if chosen.any():
                self.native.import_rows(2 * place + is_null, block.keys[chosen], records[chosen])

    def begin_from(self, place: int, keys: U64, vectors: F32) -> None:
        """Begin rows from given vectors [n, dim], with fresh state and first-order weights of zero."""
        table = self.plan.tables[place]
        if vectors.shape != (keys.size, self.plan.dim):
            raise SchemaError(
                f"table '{table.name}' has dim {self.plan.dim} and the given vectors have shape {tuple(vectors.shape)}"
                f" for {keys.size} keys"
            )
        records = np.zeros((keys.size, self.native.record_floats), dtype=np.float32)
        records[:, : self.plan.dim] = vectors
        for part, optimizer in (("vector_state", table.optimizer), ("linear_state", table.linear)):
            begin, length = self.native.layout()[part]
            records[:, begin : begin + length] = initial_accumulator(optimizer)
        self._drop()
        self.native.import_rows(2 * place, keys, records)

    def counters(self) -> Mapping[str, int]:
        """What has moved since the store was made; see the native core's GroupCounters."""
        return self.native.counters()


def staging_bytes(ram_bytes: int) -> int:
    """Buffers of the disk, as a share of the RAM that rows may take: a sixty-fourth, between 64 KiB and 8 MiB."""
    return min(8 << 20, max(64 << 10, ram_bytes >> 6))

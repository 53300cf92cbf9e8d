"""The rows of this process: one native group for each kind of table, and the dense tables beside them.

A store knows no rank, no batch and no model. Its rows change in one place only, `commit`, which is one optimizer step;
everything else reads. One thread at a time may use a store, except that working sets may be built beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import nn

from sfctr import _native
from sfctr.spec.batch import F32, U64, Bools
from sfctr.spec.errors import CapacityError, SchemaError, nearest
from sfctr.spec.tables import Table, Tiers

from .dense import DenseTable
from .elements import narrow, widen
from .groups import GroupPlan, initial_accumulator, plan_groups
from .rules import hyper_parameters, with_lr
from .seeds import table_init

INDEX_BYTES = 24
"""What a key may take in the index, beside its record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """Some rows of one table.

    keys uint64 [n]; nulls bool [n], True for the row of a missing value; vectors float32 [n, dim], exactly what is held
    whatever the table's dtype; linear float32 [n] or None; state float32 [n, S], the optimizer state as
    docs/optimizers.md lays it out (a dense table has S = 0).
    """

    keys: U64
    nulls: Bools
    vectors: F32
    linear: F32 | None
    state: F32


class Group:
    """The rows of the tables that one native call serves."""

    def __init__(self, plan: GroupPlan, seed: int) -> None:
        self.plan = plan
        self.tables = {table.name: place for place, table in enumerate(plan.tables)}
        self.native = _native.RowGroup(
            plan.dim,
            plan.linear_rule is not None,
            plan.vector_rule,
            plan.linear_rule,
            [table_init(table, seed) for table in plan.tables],
            plan.dtype,
        )
        vector = [table.optimizer for table in plan.tables]
        linear = [table.linear for table in plan.tables if table.linear is not None]
        self._hyper = hyper_parameters(vector)
        self._linear_hyper = hyper_parameters(linear)

    def update(self, working_set: _native.WorkingSet, step: int, *, lr_factor: float, scale: float) -> None:
        """One optimizer step on the rows that backward reached; `step` counts committed steps from 1."""
        linear = with_lr(self._linear_hyper, lr_factor) if self._linear_hyper.size else None
        self.native.update(working_set, step, scale, with_lr(self._hyper, lr_factor), linear)

    def growth_bytes(self, working_set: _native.WorkingSet) -> int:
        """Bytes that a step may add."""
        return self.native.num_new(working_set) * (4 * self.native.record_floats + INDEX_BYTES)


class Store:
    """Rows of all tables, held in RAM.

    tables: what to hold. tiers: bounds; a step that would outgrow `tiers.ram` raises CapacityError and is not applied.
    seed: of initial rows. device: where dense tables' parameters and features() live. threads: of sfctr's own kernels
    (changes no number; shared by the whole process).
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        tiers: Tiers = Tiers(),  # noqa: B008  frozen
        seed: int = 0,
        device: str | torch.device = "cpu",
        threads: int = 1,
    ) -> None:
        self.tables: Mapping[str, Table] = {table.name: table for table in tables}
        self.device = torch.device(device)
        self.seed = seed
        self.steps = 0
        self.groups = tuple(Group(plan, seed) for plan in plan_groups(tables))
        self.dense_tables = nn.ModuleDict({t.name: DenseTable(t, seed, self.device) for t in tables if t.dense})
        self._ram_bytes = tiers.ram_bytes
        self._closed = False
        _native.set_num_threads(threads)

    def commit(self, working_sets: Sequence[_native.WorkingSet], *, lr_factor: float = 1.0, scale: float = 1.0) -> None:
        """One optimizer step: `working_sets[g]` holds the gradients of group g, to be multiplied by `scale`."""
        assert not self._closed, "the store is closed"
        for group, working_set in zip(self.groups, working_sets, strict=True):
            group.update(working_set, self.steps + 1, lr_factor=lr_factor, scale=scale)
        self.steps += 1

    def make_room(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """Raise CapacityError where a step of these working sets could outgrow `tiers.ram`; nothing is changed then."""
        if self._ram_bytes is None:
            return
        growth = sum(g.growth_bytes(w) for g, w in zip(self.groups, working_sets, strict=True))
        needed = self.memory_bytes() + growth
        if needed <= self._ram_bytes:
            return
        largest = max((name for name, table in self.tables.items() if not table.dense), key=self.num_rows)
        raise CapacityError(
            f"tiers.ram is {self._ram_bytes:,} bytes and the rows with their index need {needed:,} at step"
            f" {self.steps + 1:,}; raise tiers.ram, or give table '{largest}' ({self.num_rows(largest):,} rows) buckets"
        )

    def dense_parameters(self) -> list[nn.Parameter]:
        """Parameters of the dense tables, for the dense part's optimizer."""
        return list(self.dense_tables.parameters())

    def group_of(self, table: str) -> tuple[Group, int]:
        """The group that holds a table that is not dense, and the table's place in it."""
        for group in self.groups:
            if table in group.tables:
                return group, group.tables[table]
        raise SchemaError(f"the store has no table '{table}'{nearest(table, self.tables)}")

    def num_rows(self, table: str) -> int:
        """Rows held for a table; a dense table has all of its rows from the start."""
        if table in self.tables and self.tables[table].dense:
            return self.tables[table].rows_of_dense + 1
        group, place = self.group_of(table)
        return group.native.num_rows(2 * place) + group.native.num_rows(2 * place + 1)

    def memory_bytes(self) -> int:
        """Bytes of rows and index, without dense tables."""
        return sum(group.native.memory_bytes() for group in self.groups)

    def rows(self, table: str, block: int = 65536) -> Iterator[RowBlock]:
        """All rows of a table in blocks of at most `block`, in an order that follows from what was trained."""
        if table in self.tables and self.tables[table].dense:
            yield self._dense_block(table)
            return
        group, place = self.group_of(table)
        for space in (2 * place, 2 * place + 1):
            for start in range(0, group.native.slot_end(space), block):
                keys, records = group.native.export_rows(space, start, block)
                yield self._split(group, keys, records, is_null=space % 2 == 1)

    def _dense_block(self, name: str) -> RowBlock:
        table = self.dense_tables[name]
        assert isinstance(table, DenseTable)
        count = table.table.rows_of_dense + 1
        nulls = np.zeros(count, dtype=np.bool_)
        nulls[-1] = True
        keys = np.arange(count, dtype=np.uint64)
        keys[-1] = 0
        empty = np.empty((count, 0), dtype=np.float32)
        vectors = empty if table.weight is None else table.weight.detach().cpu().numpy().copy()
        linear = None if table.linear is None else table.linear.detach().cpu().numpy()[:, 0].copy()
        return RowBlock(keys=keys, nulls=nulls, vectors=vectors, linear=linear, state=empty)

    @staticmethod
    def _split(group: Group, keys: U64, records: F32, *, is_null: bool) -> RowBlock:
        words, has_linear = group.native.layout()["vector"][1], group.plan.linear_rule is not None
        return RowBlock(
            keys=keys,
            nulls=np.full(keys.size, is_null),
            vectors=widen(records[:, :words], group.plan.dim, group.plan.dtype),
            linear=records[:, words] if has_linear else None,
            state=records[:, words + has_linear :],
        )

    def load_rows(self, table: str, block: RowBlock) -> None:
        """Insert or overwrite rows of a table that is not dense, with their state.

        A table in bf16 takes the vectors rounded to nearest even; those of another such table stay as they are.
        """
        group, place = self.group_of(table)
        layout = {part: length for part, (_, length) in group.native.layout().items()}
        given = (block.vectors.shape[1], int(block.linear is not None), block.state.shape[1])
        needed = (group.plan.dim, layout["linear"], layout["vector_state"] + layout["linear_state"])
        if given != needed:
            raise SchemaError(
                f"table '{table}': rows with {given[0]} + {given[1]} weights and {given[2]} floats of state were given"
                f" and {needed[0]} + {needed[1]} weights and {needed[2]} are needed; dim, optimizer and linear must be"
                " as they were when the rows were written"
            )
        parts = [narrow(block.vectors, group.plan.dtype), block.state]
        if block.linear is not None:
            parts.insert(1, block.linear[:, None])
        records = np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)
        for is_null in (False, True):
            chosen = block.nulls == is_null
            if chosen.any():
                group.native.import_rows(2 * place + is_null, block.keys[chosen], records[chosen])

    def set_vectors(self, table: str, keys: U64, vectors: F32) -> None:
        """Begin rows from given vectors (pre-trained ones) with fresh state and zero first-order weights.

        A table in bf16 takes them rounded to nearest even.
        """
        group, place = self.group_of(table)
        if vectors.shape != (keys.size, group.plan.dim):
            raise SchemaError(
                f"table '{table}' has dim {group.plan.dim} and the given vectors have shape {tuple(vectors.shape)} for"
                f" {keys.size} keys"
            )
        records = np.zeros((keys.size, group.native.record_floats), dtype=np.float32)
        records[:, : group.native.layout()["vector"][1]] = narrow(vectors, group.plan.dtype)
        options = self.tables[table]
        for part, optimizer in (("vector_state", options.optimizer), ("linear_state", options.linear)):
            begin, length = group.native.layout()[part]
            records[:, begin : begin + length] = initial_accumulator(optimizer)
        group.native.import_rows(2 * place, keys, records)

    def close(self) -> None:
        """Free the rows. Calling it again does nothing."""
        self._closed = True
        self.groups = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

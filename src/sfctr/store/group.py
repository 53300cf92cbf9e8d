"""A group: the rows of the tables that one native call serves, and the steps of a batch through them.

They are trained in RAM, or on a device from keep_on_device() on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from sfctr import _native
from sfctr.spec.batch import F32, I64, U8, U64, Bools
from sfctr.spec.errors import SchemaError

from .device import Rules
from .device.features import I32
from .device.link import Link
from .device.rows import DeviceRows, Kind
from .device_cache import DeviceCache
from .elements import narrow, widen
from .groups import GroupPlan, initial_accumulator
from .membership import U32, EventClock, Waiting
from .rules import hyper_parameters, with_lr
from .seeds import table_init

INDEX_BYTES = 24
"""What a key counts as taking in the index, beside its record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBlock:
    """Some rows of one table.

    keys uint64 [n]; nulls bool [n], True for the row of a missing value; vectors float32 [n, dim], exactly what is held
    whatever the table's dtype; linear float32 [n] or None; state float32 [n, S], the optimizer state as
    docs/optimizers.md lays it out (a dense table has S = 0).
    last uint32 [n], the step that trained each row last (0 for rows beside the keys), or None without membership.
    The row of a missing value has key 0; the one that stands for rare keys is a null with key 1.
    """

    keys: U64
    nulls: Bools
    vectors: F32
    linear: F32 | None
    state: F32
    last: U32 | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsent:
    """Keys of one table, uint64: whose rows have changed, and are new, since whoever follows them had all; the same of
    rows beside the keys (see RowBlock); and keys whose rows have gone."""

    keys: U64
    beside: U64
    gone: U64


_MOVED = ("fetched", "evicted", "lifted", "lowered")
"""What counts of rows are of such as are copied from one tier to another."""

NUM_SHARDS = 256
"""Of a table, by the leading bits of its keys' hashes; see _native.shards_of."""

ROW, ABSENT, REFUSED, FRESH = range(4)
"""What a unique key has: a row; none, and reads as unseen; none yet, in training; one from this step on."""

RARE_KEY = np.uint64(1)
"""Of the null that stands for rare keys."""


class Group:
    """The rows of the tables of one plan. `budget` of RAM is shared with the other groups of a store.

    disk: a directory for rows that the budget has no room for; None: they are refused. policy: whose rows leave first.
    faults: for tests.
    """

    def __init__(
        self,
        plan: GroupPlan,
        seed: int,
        budget: _native.Budget,
        *,
        disk: str | None,
        policy: str,
        faults: _native.RowFaults | None = None,
    ) -> None:
        self.plan = plan
        self.tables = {table.name: place for place, table in enumerate(plan.tables)}
        self._staging_bytes = staging_bytes(budget.limit, _record_bytes(plan))
        self.native = _native.RowGroup(
            plan.dim,
            plan.linear_rule is not None,
            plan.vector_rule,
            plan.linear_rule,
            [table_init(table, seed) for table in plan.tables],
            budget=budget,
            disk=disk,
            policy=policy,
            dtype=plan.dtype,
            staging_bytes=self._staging_bytes,
            snapshot_bytes=snapshot_bytes(budget.limit),
            faults=faults,
        )
        self._cache: DeviceCache | None = None
        vector = [table.optimizer for table in plan.tables]
        linear = [table.linear for table in plan.tables if table.linear is not None]
        self._hyper = hyper_parameters(vector)
        self._linear_hyper = hyper_parameters(linear)
        self._written_back_us = 0

    @property
    def row_bytes(self) -> int:
        """Of a record."""
        return 4 * self.native.record_floats

    def keep_on_device(self, device: torch.device, num_lines: int) -> None:
        """Train rows in so many lines on a device from now on. Raises CapacityError where they do not fit there.

        The plan must be one that may be on a device.
        """
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

    @property
    def device_bytes(self) -> int:
        """Of the rows that are on the device now."""
        return 0 if self._cache is None else self.counters()["device_rows"] * self.row_bytes

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

    @property
    def wire_words(self) -> int:
        """W: float32 words of a row's weights, its vector (dim halves of words in bf16) and its first-order weight."""
        return self.native.wire_words

    def weights(self, working_set: _native.WorkingSet, out: F32, ids: I32 | None = None) -> None:
        """Write the weights of unique keys `ids` [n] as they are now to out [n, W]; of all [U, W] where it is None.

        Zeros of a key that is absent or refused. The batch is fetched, settled and lifted, or it is viewed.
        """
        rows = self.on_device(working_set)
        if rows is None:
            self.native.weights(working_set, out, ids)
        else:
            out[:] = rows.floats(None if ids is None else ids.astype(np.int64), self.wire_words)

    def kinds(self, working_set: _native.WorkingSet) -> U8:
        """Of each unique key [U]: ROW, ABSENT, REFUSED or FRESH."""
        return self.native.kinds(working_set)

    def records(self, working_set: _native.WorkingSet, ids: I64) -> F32:
        """The whole records [m, R] of unique keys `ids` [m] as they are now, with the state of the optimizers."""
        rows = self.on_device(working_set)
        if rows is not None:
            return rows.floats(ids, self.native.record_floats)
        records = np.empty((ids.size, self.native.record_floats), dtype=np.float32)
        self.native.gather(working_set, ids.astype(np.uint32), records)
        return records

    def adopt(self, working_set: _native.WorkingSet, weights: F32, kinds: U8 | None, *, train: bool) -> None:
        """From now on the rows of this batch are `weights` [U, W] and `kinds` [U], as their holder gave them.

        kinds None: every key has a row. Until discard() the batch is looked up, and its gradients merged, as if it had
        been planned and settled here, on the device where rows are trained there; it pins nothing, and plan(),
        settle() and update() refuse it. Nobody may write to `weights` until then.
        """
        self.native.adopt(working_set, weights, kinds, train)
        if self._cache is not None and train:
            self._cache.adopt(working_set, weights, self.native.kinds(working_set) == ABSENT)

    def gradients(self, working_set: _native.WorkingSet) -> tuple[F32, F32, U8]:
        """Merged: vectors [U, dim], first-order weights [U] (or [0]), reached [U], whose bit 1 says that there is a
        vector, bit 2 a weight, bit 4 that the key was reached and refused. What was not reached is undefined. Views of
        the batch, or copies."""
        rows = self.on_device(working_set)
        if rows is not None:
            return rows.gradients()
        if working_set.has_gradients:
            return self.native.gradients(working_set)
        num_unique, has_linear = working_set.num_unique, self.plan.linear_rule is not None
        vectors, linear = (
            np.zeros((num_unique, self.plan.dim), np.float32),
            np.zeros(num_unique * has_linear, np.float32),
        )
        return vectors, linear, np.zeros(num_unique, np.uint8)

    def add_gradients(self, working_set: _native.WorkingSet, ids: I32, vectors: F32, linear: F32, reached: U8) -> None:
        """Add gradients, as gradients() gives them, to those of unique keys `ids` [n], each there once.

        Calls add up in their order; what comes first to a key is taken as it is. What comes to a frozen table is
        dropped, and so is what comes to a refused key, but for that it was reached.
        """
        rows = self.on_device(working_set)
        if rows is None:
            self.native.add_gradients(working_set, ids, vectors, linear, reached)
        else:
            rows.add_merged(ids.astype(np.int64), vectors, linear, reached)

    def shares(self, place: int) -> int:
        """In how many equal ranges of hashes the rule of membership of the table in this place counts what it bounds;
        NUM_SHARDS where it bounds nothing. Stores that hold whole ranges decide together as one that holds all."""
        return self.native.num_shares(place)

    def expect(self, place: int, shards: Bools) -> None:
        """Say that keys of the table in this place will be of these shards, bool [NUM_SHARDS], and few of others.

        Before rows come: these are then found as fast, and take as few bytes, as if keys were of all shards. Changes
        no row, and no order in which rows are given.
        """
        self.native.expect_shards(place, shards)

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
        """Rows of the table in this place, those of a missing value and of rare keys included."""
        return self.native.num_rows(2 * place) + self.native.num_rows(2 * place + 1)

    def blocks(self, place: int, size: int) -> Iterator[RowBlock]:
        """All rows of the table in this place, in the order of their keys' hashes, `size` at a time."""
        for space in (2 * place, 2 * place + 1):
            start: int | None = 0
            while start is not None:
                self._lower()
                keys, records, start = self.native.export_rows(space, start, size)
                if keys.size > 0:
                    last = self.native.last_trained(space, keys) if self.plan.has_membership else None
                    yield self._split(keys, records, last, is_null=space % 2 == 1)

    def _split(self, keys: U64, records: F32, last: U32 | None, *, is_null: bool) -> RowBlock:
        words, has_linear = self.native.layout()["vector"][1], self.plan.linear_rule is not None
        return RowBlock(
            keys=keys,
            nulls=np.full(keys.size, is_null),
            vectors=widen(records[:, :words], self.plan.dim, self.plan.dtype),
            linear=records[:, words] if has_linear else None,
            state=records[:, words + has_linear :],
            last=last,
        )

    def load(self, place: int, block: RowBlock) -> None:
        """Insert or overwrite rows of the table in this place, with their state."""
        layout = {part: length for part, (_, length) in self.native.layout().items()}
        given = (block.vectors.shape[1], int(block.linear is not None), block.state.shape[1])
        needed = (self.plan.dim, layout["linear"], layout["vector_state"] + layout["linear_state"])
        if given != needed:
            raise SchemaError(
                f"table '{self.plan.tables[place].name}': rows with {given[0]} + {given[1]} weights and {given[2]}"
                f" floats of state were given and {needed[0]} + {needed[1]} weights and {needed[2]} are needed; dim,"
                " optimizer and linear must be as they were when the rows were written"
            )
        parts = [narrow(block.vectors, self.plan.dtype), block.state]
        if block.linear is not None:
            parts.insert(1, block.linear[:, None])
        records = np.ascontiguousarray(np.concatenate(parts, axis=1), dtype=np.float32)
        self._drop()
        for is_null in (False, True):
            chosen = block.nulls == is_null
            if chosen.any():
                last = block.last[chosen] if block.last is not None else None
                self.native.import_rows(2 * place + is_null, block.keys[chosen], records[chosen], last)

    def load_records(self, space: int, keys: U64, records: F32, last: U32 | None, *, only_new: bool) -> None:
        """Insert or overwrite rows as the native core has them; `only_new` leaves those that there are."""
        self._drop()
        if only_new and keys.size:
            is_new = self.native.find(space, keys, np.empty_like(records)) == 0
            keys, records = keys[is_new], records[is_new]
            last = None if last is None else last[is_new]
        if keys.size:
            self.native.import_rows(space, keys, records, last)

    def begin_from(self, place: int, keys: U64, vectors: F32) -> None:
        """Begin rows from given vectors [n, dim], with fresh state and first-order weights of zero."""
        table = self.plan.tables[place]
        if vectors.shape != (keys.size, self.plan.dim):
            raise SchemaError(
                f"table '{table.name}' has dim {self.plan.dim} and the given vectors have shape {tuple(vectors.shape)}"
                f" for {keys.size} keys"
            )
        records = np.zeros((keys.size, self.native.record_floats), dtype=np.float32)
        records[:, : self.native.layout()["vector"][1]] = narrow(vectors, self.plan.dtype)
        for part, optimizer in (("vector_state", table.optimizer), ("linear_state", table.linear)):
            begin, length = self.native.layout()[part]
            records[:, begin : begin + length] = initial_accumulator(optimizer)
        self._drop()
        self.native.import_rows(2 * place, keys, records)

    def remove(self, place: int, keys: U64) -> int:
        """Forget keys of the table in this place; returns how many had a row."""
        self._drop()
        return self.native.remove_rows(2 * place, keys)

    def begin_snapshot(self, full: bool) -> None:
        """From now on the native group's snapshot is the rows as they are now; see Store.begin_snapshot."""
        self._lower()
        self.native.begin_snapshot(full)

    def take_snapshot(self, count: int) -> tuple[int, U64, U32, F32] | None:
        """The next rows of the snapshot; see spec.snapshot."""
        return self.native.take_snapshot(count)

    def take_tombstones(self) -> list[tuple[int, U64]]:
        """By space, keys removed since the snapshot before began."""
        return self.native.take_tombstones()

    def needs_base(self) -> bool:
        """See Store.needs_base; so the next five."""
        self._lower()
        return self.native.needs_base()

    def mark_sent(self) -> None:
        self._lower()
        self.native.mark_sent()

    def unsent(self, place: int, size: int) -> Iterator[RowBlock]:
        self._lower()
        for space in (2 * place, 2 * place + 1):
            start: int | None = 0
            while start is not None:
                keys, records, start = self.native.unsent_rows(space, start, size)
                if keys.size > 0:
                    yield self._split(keys, records, None, is_null=space % 2 == 1)

    def unsent_keys(self, place: int) -> Unsent:
        self._lower()
        keys, beside = (
            np.concatenate([*self._unsent_of(space), np.empty(0, np.uint64)]) for space in (2 * place, 2 * place + 1)
        )
        return Unsent(keys=keys, beside=beside, gone=self.unsent_gone(place))

    def unsent_gone(self, place: int) -> U64:
        self._lower()
        return self.native.unsent_gone(2 * place)

    def _unsent_of(self, space: int) -> Iterator[U64]:
        start: int | None = 0
        while start is not None:
            keys, _, start = self.native.unsent_rows(space, start, 1 << 16, with_records=False)
            yield keys

    def mark_unsent(self, place: int, unsent: Unsent) -> None:
        self.native.mark_unsent(2 * place, unsent.keys, unsent.gone)
        self.native.mark_unsent(2 * place + 1, unsent.beside, np.empty(0, np.uint64))

    def counters(self) -> Mapping[str, int]:
        """What has moved since the store was made; see the native core's GroupCounters."""
        return self.native.counters()

    def membership(self, place: int) -> dict[str, int]:
        """Counters of the table in this place, and how many keys have a row and how many wait for one."""
        counters = self.native.membership(place)
        waiting = counters.pop("waiting")
        return counters | {"live": self.native.num_rows(2 * place), "waiting": waiting}

    def waiting(self, place: int) -> Waiting:
        keys, counts, last = self.native.waiting(place)
        return Waiting(keys=keys, counts=counts, last=last)

    def clock(self) -> EventClock:
        steps, times = self.native.clock()
        return EventClock(steps=steps, times=times)

    def seconds_written_back(self) -> float:
        """For which evictions waited for the disk since the last call."""
        before, self._written_back_us = self._written_back_us, self.native.counters()["disk_write_wait_us"]
        return (self._written_back_us - before) * 1e-6

    def table_counters(self) -> dict[str, dict[str, int]]:
        """The same by table; see Store.table_counters."""
        row_bytes = 4 * self.native.record_floats
        return {
            table: counts | {f"bytes_{moved}": counts[moved] * row_bytes for moved in _MOVED}
            for table, counts in zip(self.tables, self.native.table_counters(), strict=True)
        }


def rows_of_block(row_bytes: int) -> int:
    """Rows that are moved at a time where all of a table's are: some 8 MB of them."""
    return max(64, min(65536, (8 << 20) // row_bytes))


def staging_bytes(ram_bytes: int, record_bytes: int) -> int:
    """Buffers of the disk, as a share of the RAM that rows may take: a sixty-fourth, between 64 KiB and 8 MiB, and as
    many as records of this size need at least."""
    return max(_native.least_staging_bytes(record_bytes), min(8 << 20, max(64 << 10, ram_bytes >> 6)))


def snapshot_bytes(ram_bytes: int) -> int:
    """Copies of rows that training changes before a snapshot took them: a sixty-fourth, between 1 MiB and 64 MiB."""
    return min(64 << 20, max(1 << 20, ram_bytes >> 6))


def _record_bytes(plan: GroupPlan) -> int:
    empty = _native.RowGroup(
        plan.dim, plan.linear_rule is not None, plan.vector_rule, plan.linear_rule, [], dtype=plan.dtype
    )
    return 4 * empty.record_floats

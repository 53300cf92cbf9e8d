"""The rows of this process, on a device, in RAM and on disk: a group for each kind of table, and dense tables beside.

A store knows no rank, no batch and no model. Its rows change in one place only, `commit`, which is one optimizer step;
everything else reads them or moves them. One thread may plan and fetch beside the one that does all else, or one may
plan and another one fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from sfctr import _native
from sfctr.spec.batch import F32, I64, U64
from sfctr.spec.errors import CapacityError, ConfigError, DiskError, SchemaError, nearest
from sfctr.spec.struct_tree import rebuilt
from sfctr.spec.tables import Table, Tiers
from sfctr.telemetry import current, notice

from .dense import DenseTable
from .device_cache import split_lines
from .group import Group, RowBlock, Unsent, rows_of_block
from .groups import plan_groups
from .membership import NO_CLOCK, U32, EventClock, Waiting
from .memory import default_ram_bytes
from .replica import Replica
from .spill import open_spill

COPIES_PART = 4
"""One in so many bytes of RAM is for copies of others' rows, where there are such."""


class Store:
    """Rows of all tables, in RAM and, where that is not enough, on disk; with tiers.device trained on the device.

    tables: what to hold. tiers: bounds, and where rows go that RAM has no room for.
    seed: of initial rows. device: where dense tables' parameters and features() live, and what tiers.device is of (a
    CPU simulates one: rows are copied to tensors of their own and trained there, as on an accelerator). threads: of
    sfctr's own kernels (changes no number; shared by the whole process). directory: of the run, for rows on disk unless
    tiers.disk names another; None: a temporary one. Raises ConfigError where rows could not be kept there.
    on_removed: called with a table's name and the keys (uint64) whose rows have gone since the last call, oldest first:
    by commit() and by remove(), for whoever keeps a copy of the rows. A key that comes back begins anew.
    Tables in bf16, and those with options of membership, are trained in RAM whatever tiers.device is.
    faults: for tests: what goes wrong in every group. sharers: processes whose stores share what the machine has left,
    where tiers.ram is not set. copies: of others' rows will be kept here, too: a quarter of the RAM is for them.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        tiers: Tiers = Tiers(),  # noqa: B008  frozen
        seed: int = 0,
        device: str | torch.device = "cpu",
        threads: int = 1,
        directory: str | Path | None = None,
        on_removed: Callable[[str, U64], None] | None = None,
        faults: _native.RowFaults | None = None,
        sharers: int = 1,
        copies: bool = False,
    ) -> None:
        tables = [rebuilt(table, f"tables.{table.name}") for table in tables]
        self.tables: Mapping[str, Table] = {table.name: table for table in tables}
        self.tiers = rebuilt(tiers, "tiers")
        self.device = torch.device(device)
        self.seed = seed
        self.steps = 0
        self._spill = open_spill(tiers, directory)
        ram = tiers.ram_bytes or default_ram_bytes(sharers)
        for_copies = ram // COPIES_PART if copies else 0
        self._budget = _native.Budget(ram - for_copies)
        self._budget_of_copies = _native.Budget(for_copies) if copies else None
        self.groups = tuple(
            Group(
                plan,
                seed,
                self._budget,
                disk=None if self._spill is None else str(self._spill.path / f"group-{number}"),
                policy=tiers.policy,
                faults=faults,
            )
            for number, plan in enumerate(plan_groups(tables))
        )
        self.dense_tables = {t.name: DenseTable(t, seed, self.device) for t in tables if t.dense}
        self._replicas: list[Replica] = []
        self._closed = False
        self._looks_ahead = False
        self._unread = {t.name: t.pretrained for t in tables if t.pretrained is not None}
        self._on_removed = on_removed
        for group in self.groups:
            group.native.list_gone(on_removed is not None)
        self._on_device = self._said_bound = self._said_scratch = False
        _native.set_num_threads(threads)

    def replica(self, number: int) -> Replica:
        """A place for copies of rows of group `number` that others hold, within this store's RAM.

        Whatever changes rows otherwise than by a step (load_rows, load_records, set_vectors, remove) forgets all copies
        here; whoever keeps copies of this store's rows must do so, too, at the same point between two steps.
        """
        if self._budget_of_copies is None:
            raise ConfigError("a store that is to keep copies of others' rows is made with copies=True")
        plan = self.groups[number].plan
        self._replicas.append(Replica(plan, self.seed, self._budget_of_copies, policy=self.tiers.policy))
        return self._replicas[-1]

    def use_threads(self, threads: int) -> None:
        """Have sfctr's kernels use so many threads from now on, in the whole process; changes no number. May be called
        beside batches in preparation."""
        _native.set_num_threads(threads)

    def _forget_copies(self) -> None:
        for replica in self._replicas:
            replica.clear()

    @property
    def has_device_tier(self) -> bool:
        return self.tiers.device_bytes is not None

    @contextmanager
    def looking_ahead(self) -> Iterator[None]:
        """Batches are prepared inside. Raises RuntimeError where that is so already: each could wait for the other."""
        if self._looks_ahead:
            raise RuntimeError(
                "another Lookahead over this store is at work; close its iterator, or take both loaders' batches in"
                " turn in one iterable"
            )
        self._looks_ahead = True
        try:
            yield
        finally:
            self._looks_ahead = False

    def require_pretrained(self) -> None:
        """Raise ConfigError for a table that begins from a file and was given no rows."""
        for table, path in self._unread.items():
            raise ConfigError(
                f"table '{table}' begins from {path}, which sfctr.fit and sfctr train read; in a loop of your own give"
                f" its rows first, by store.set_vectors('{table}', keys, vectors)"
            )

    def announce(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """The batch will be planned after those announced before it: its rows are spared, once rows leave RAM."""
        for group, working_set in zip(self.groups, working_sets, strict=True):
            group.native.announce(working_set)

    def plan(self, working_sets: Sequence[_native.WorkingSet], number: int = 0) -> bool:
        """Give the rows of group `number` of a batch their places in RAM, until commit() or discard().

        False, with nothing changed, where batches in flight hold the room: try again when one of them has ended.
        Raises CapacityError and DiskError, with every row as it was.
        """
        group = self.groups[number]
        self._keep_on_device(working_sets)
        with self._named_errors():
            was_spilling = group.native.is_spilling
            planned = group.native.plan(working_sets[number])
        if was_spilling:
            current().add("write_back", group.seconds_written_back())
        if not was_spilling and group.native.is_spilling:
            notice(
                f"rows fill the {self._budget.limit:,} bytes of tiers.ram after {self.steps:,} steps: from now on some"
                f" are kept in {self._spill}"
            )
        return planned

    @property
    def is_spilling(self) -> bool:
        """Whether rows of any group have begun to leave RAM; it stays so."""
        return any(group.native.is_spilling for group in self.groups)

    def is_shrinking(self, number: int) -> bool:
        """Whether group `number` put its last plan off only until rows could leave RAM for a growing index."""
        return self.groups[number].native.is_shrinking

    def fetch(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """Read what the plan needs from disk, in the order of plans; batches after it may be planned meanwhile.

        Raises DiskError; the batch can then only be discarded.
        """
        with self._named_errors():
            for group, working_set in zip(self.groups, working_sets, strict=True):
                group.native.fetch(working_set)

    def settle(self, working_sets: Sequence[_native.WorkingSet], time: int | None = None) -> None:
        """Decide which keys of a fetched batch have a row, are given one or are refused; then it can be trained.

        time: the batch's greatest event time, ns since 1970. Call it in the order of training, after the batch before
        has ended. Does nothing for tables without options of membership.
        """
        for group, working_set in zip(self.groups, working_sets, strict=True):
            group.native.settle(working_set, time)

    def _keep_on_device(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """Divide the device among the groups that may be there, in proportion to what the first batch needs of each."""
        if self._on_device or self.tiers.device_bytes is None:
            return
        self._on_device = True
        in_ram = [group for group in self.groups if not group.plan.may_be_on_device]
        if in_ram:
            notice(
                f"rows of table '{in_ram[0].plan.tables[0].name}' and its like are trained in RAM: tiers.device is for"
                " tables in fp32 without options of membership (no number changes)"
            )
        taking_part = [
            (group, working_set)
            for group, working_set in zip(self.groups, working_sets, strict=True)
            if group.plan.may_be_on_device
        ]
        wanted = [working_set.num_unique for _, working_set in taking_part]
        lines = split_lines(self.tiers.device_bytes, [group.row_bytes for group, _ in taking_part], wanted)
        for (group, _), num_lines in zip(taking_part, lines, strict=True):
            group.keep_on_device(self.device, num_lines)

    def lift(self, working_sets: Sequence[_native.WorkingSet], number: int = 0) -> bool:
        """Have the fetched rows of group `number` of a batch on the device, until commit() or discard().

        False, with nothing changed, where batches in flight hold the room there: try again when one of them has ended.
        True, with nothing done, where there is no device tier, or the group's rows are trained in RAM.
        """
        group = self.groups[number]
        lifted = group.lift(working_sets[number])
        if self._on_device:
            self._say_what_is_short(group)
        return lifted

    def _say_what_is_short(self, group: Group) -> None:
        num_lines, bound = group.num_lines
        if bound < num_lines and not self._said_bound:
            self._said_bound = True
            notice(
                f"tiers.device has room for {num_lines:,} rows of table '{group.plan.tables[0].name}' and its like, and"
                f" {bound:,} are kept there: they keep their places in RAM, of which half stay free for others"
            )
        if not self._said_scratch and group.counters()["device_scratch"]:
            self._said_scratch = True
            notice(
                f"a batch needs more rows of table '{group.plan.tables[0].name}' and its like than the {bound:,} that"
                " tiers.device holds: it is trained beside them, one batch at a time (no number changes)"
            )

    def view(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """Find the rows of a batch for reading alone; nothing is added, moved or counted. Raises DiskError."""
        if self._closed:
            raise RuntimeError("the store is closed")
        with self._named_errors():
            for group, working_set in zip(self.groups, working_sets, strict=True):
                group.view(working_set)

    def commit(self, working_sets: Sequence[_native.WorkingSet], *, lr_factor: float = 1.0, scale: float = 1.0) -> None:
        """One optimizer step: `working_sets[g]` holds the gradients of group g, to be multiplied by `scale`."""
        assert not self._closed, "the store is closed"
        for group, working_set in zip(self.groups, working_sets, strict=True):
            group.update(working_set, self.steps + 1, lr_factor=lr_factor, scale=scale)
        self.steps += 1
        self._tell_removed()

    def discard(self, working_sets: Sequence[_native.WorkingSet]) -> None:
        """End the use of a batch that was announced or planned, without training it."""
        for group, working_set in zip(self.groups, working_sets, strict=False):
            group.discard(working_set)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """What the native core raises, as errors of the user's."""
        try:
            yield
        except (_native.RamFull, _native.IndexOutgrown, _native.LocationsExhausted) as error:
            stored = [name for name, table in self.tables.items() if not table.dense]
            largest = max(stored, key=self.num_rows)
            disk = "" if self._spill is not None else ", or let rows go to disk (tiers.disk)"
            raise CapacityError(
                f"tiers.ram is {self._budget.limit:,} bytes and {error} at step {self.steps + 1:,}; raise tiers.ram"
                f"{disk}, or give table '{largest}' ({self.num_rows(largest):,} rows) a capacity or buckets"
            ) from None
        except (_native.DiskError, _native.ChecksumError) as error:
            raise DiskError(f"{error}; every row trained so far is still in RAM or in {self._spill}") from None

    def dense_parameters(self) -> list[nn.Parameter]:
        """Parameters of the dense tables, for the dense part's optimizer."""
        return [parameter for table in self.dense_tables.values() for parameter in table.parameters()]

    def dense_state(self) -> dict[str, Tensor]:
        """What dense tables hold: "TABLE.weight" [R + 1, D] and "TABLE.linear" [R + 1, 1] -> float32, not a copy."""
        return {
            f"{name}.{part}": value
            for name, table in self.dense_tables.items()
            for part, value in table.state_dict().items()
        }

    @torch.no_grad()
    def load_dense_state(self, state: Mapping[str, Tensor]) -> None:
        """Set what dense tables hold. Raises SchemaError where names or shapes differ."""
        own = self.dense_state()
        if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in state.items()}:
            raise SchemaError(f"dense tables are {sorted(own)} here and {sorted(state)} there, or their shapes differ")
        for name, value in own.items():
            value.copy_(state[name])

    def group_of(self, table: str) -> tuple[Group, int]:
        """The group that holds a table that is not dense, and the table's place in it."""
        if self._closed:
            raise RuntimeError("the store is closed")
        if table in self.dense_tables:
            raise SchemaError(f"table '{table}' is dense: its rows are parameters, always there; give another table")
        for group in self.groups:
            if table in group.tables:
                return group, group.tables[table]
        raise SchemaError(f"the store has no table '{table}'{nearest(table, self.tables)}")

    def num_rows(self, table: str) -> int:
        """Rows held for a table, those of a missing value and of rare keys included; a dense table has all of them."""
        if table in self.tables and self.tables[table].dense:
            return self.tables[table].rows_of_dense + 1
        group, place = self.group_of(table)
        return group.num_rows(place)

    def remove(self, table: str, keys: U64 | I64) -> int:
        """Forget keys (integers [n]) of a table: their rows, and counts that wait. Returns how many had a row.

        Each begins anew if it is trained again. Raises SchemaError for a table that is dense or not there, and
        RuntimeError while a Ready is open; for a table without options of membership, while a Lookahead is at work.
        """
        group, place = self.group_of(table)
        self._forget_copies()
        count = group.remove(place, _as_keys(keys))
        self._tell_removed()
        return count

    def _tell_removed(self) -> None:
        if self._on_removed is None:
            return
        for group in self.groups:
            for place, keys in group.native.take_gone():
                self._on_removed(group.plan.tables[place].name, keys)

    def membership(self) -> dict[str, dict[str, int]]:
        """Of each table with options of membership, counts of keys since training began:

        admitted (got a row, those that came back included), refused (trained by a step without having a row; once a
        step), expired, removed (for capacity), withdrawn (by remove()), forgotten (while they waited, because too many
        did); and live (have a row) and waiting (for one) now.
        """
        found = {}
        for name, table in self.tables.items():
            if table.has_membership:
                group, place = self.group_of(name)
                found[name] = group.membership(place)
        return found

    def waiting(self, table: str) -> Waiting:
        """The keys of a table that wait for a row."""
        group, place = self.group_of(table)
        return group.waiting(place)

    def clock(self) -> EventClock:
        """Event time over the steps, as far back as a row of any table may live."""
        return max((group.clock() for group in self.groups), key=lambda clock: clock.steps.size, default=NO_CLOCK)

    def restore_clock(self, steps: int, clock: EventClock) -> None:
        """Set how many steps are committed, and event time over them; before load_rows()."""
        self.steps = steps
        for group in self.groups:
            group.native.restore_clock(steps, clock.steps, clock.times)

    def restore_membership(self, table: str, counters: Mapping[str, int], waiting: Waiting) -> None:
        """Go on counting from these, with these keys waiting."""
        group, place = self.group_of(table)
        group.native.restore_membership(place, dict(counters), waiting.keys, waiting.counts, waiting.last)

    @property
    def needs_full(self) -> bool:
        """Whether the next snapshot must hold all rows: none was kept yet, or the last was not."""
        return any(group.native.needs_full for group in self.groups)

    def begin_snapshot(self, full: bool) -> None:
        """From now on the snapshot of each group (`Group.native`) is its rows as they are now.

        Between two steps; batches may be planned ahead. full: all rows; else those trained, loaded or new since the
        snapshot before began. Another thread takes them with take_snapshot(), beside training, which waits where it
        has changed more rows than there is room to keep as they were. Dense tables are no part of it. Raises
        RuntimeError while one is under way or a Ready is open, and where it is not full and needs_full.
        """
        begun: list[Group] = []
        try:
            for group in self.groups:
                group.begin_snapshot(full)
                begun.append(group)
        except BaseException:
            for group in begun:
                group.native.end_snapshot(False)
            raise

    def end_snapshot(self, kept: bool) -> None:
        """kept: all rows were taken, and lie where they will be found again; if not, the next must be full.

        Raises RuntimeError where none is under way, or one is kept of which not all was taken.
        """
        for group in self.groups:
            group.native.end_snapshot(kept)

    def mark_saved(self) -> None:
        """After rows were loaded from a snapshot: none counts as changed, and the next need not be full."""
        for group in self.groups:
            group.native.mark_saved()

    def needs_base(self) -> bool:
        """Whether one who follows the rows by deltas must be given all: mark_sent() was not called yet, or more keys
        lost their rows since than are worth being listed.

        This and the next five: between two steps; batches may be planned ahead. They know nothing of snapshots.
        """
        return any(group.needs_base() for group in self.groups)

    def mark_sent(self) -> None:
        """The follower has all rows as they are now. Changes are noted from now on: a few bits a row."""
        for group in self.groups:
            group.mark_sent()

    def unsent(self, table: str) -> Iterator[RowBlock]:
        """As rows(), those of a table that were trained, loaded or new since then (of a dense table all), without the
        steps that trained them last. Nothing counts as sent by that. Raises RuntimeError where a base is needed."""
        if table in self.tables and self.tables[table].dense:
            yield self._dense_block(table)
            return
        group, place = self.group_of(table)
        with self._named_errors():
            yield from group.unsent(place, rows_of_block(group.row_bytes))

    def unsent_keys(self, table: str) -> Unsent:
        """Their keys, of a table that is not dense, and unsent_gone()."""
        group, place = self.group_of(table)
        return group.unsent_keys(place)

    def unsent_gone(self, table: str) -> U64:
        """Keys of a table that is not dense, sorted, that lost their rows since then and have none now."""
        group, place = self.group_of(table)
        return group.unsent_gone(place)

    def mark_unsent(self, table: str, unsent: Unsent) -> None:
        """What unsent_keys() gave before is so again, of rows that were loaded; after mark_sent()."""
        group, place = self.group_of(table)
        group.mark_unsent(place, unsent)

    def memory_bytes(self) -> int:
        """Bytes of RAM that rows, copies of others', indexes and the disk's buffers take, without dense tables."""
        copies = sum(replica.memory_bytes() for replica in self._replicas)
        return copies + sum(group.native.memory_bytes() for group in self.groups)

    def held(self) -> dict[str, dict[str, int]]:
        """What is held now. By table that is not dense: rows, and row_bytes, the size of their records. By tier: bytes
        that are taken, and bounds, the most that they may be, of tiers that have one; a tier that is not in use is
        left out."""
        stored = {name: self.group_of(name)[0] for name, table in self.tables.items() if not table.dense}
        rows = {name: self.num_rows(name) for name in stored}
        found = {"ram": self.memory_bytes()}
        bounds = {"ram": self._budget.limit + (self._budget_of_copies.limit if self._budget_of_copies else 0)}
        if disk := self.counters().get("disk_bytes", 0):
            found["disk"] = disk
        if self.tiers.device_bytes is not None:
            found["device"] = sum(group.device_bytes for group in self.groups)
            bounds["device"] = self.tiers.device_bytes
        sizes = {name: rows[name] * group.row_bytes for name, group in stored.items()}
        return {"rows": rows, "row_bytes": sizes, "bytes": found, "bounds": bounds}

    def counters(self) -> dict[str, int]:
        """What has moved since the store was made, over all groups; see the native core's GroupCounters."""
        total: dict[str, int] = {}
        for group in self.groups:
            for name, count in group.counters().items():
                total[name] = total.get(name, 0) + count
        return total

    def table_counters(self) -> dict[str, dict[str, int]]:
        """What has moved of each table that is not dense, since the store was made.

        requested: positions of planned batches. unique: their unique keys. hits: of those, in RAM already. fresh: that
        begin a row. fetched, evicted: rows read from disk and written there. device_hits: unique keys that were on the
        device already; lifted, lowered: rows copied there from RAM and back; device_scratch: keys that found no room
        there. bytes_fetched, bytes_evicted, bytes_lifted, bytes_lowered: the size of these rows.
        """
        return {table: counts for group in self.groups for table, counts in group.table_counters().items()}

    def rows(self, table: str, block: int | None = None) -> Iterator[RowBlock]:
        """All rows of a table in blocks of at most `block`, in an order that follows from their keys alone.

        None: as many as come to some 8 MB.
        """
        if table in self.tables and self.tables[table].dense:
            yield self._dense_block(table)
            return
        group, place = self.group_of(table)
        with self._named_errors():
            yield from group.blocks(place, block or rows_of_block(group.row_bytes))

    def _dense_block(self, name: str) -> RowBlock:
        table = self.dense_tables[name]
        count = table.table.rows_of_dense + 1
        nulls = np.zeros(count, dtype=np.bool_)
        nulls[-1] = True
        keys = np.arange(count, dtype=np.uint64)
        keys[-1] = 0
        empty = np.empty((count, 0), dtype=np.float32)
        vectors = empty if table.weight is None else table.weight.detach().cpu().numpy().copy()
        linear = None if table.linear is None else table.linear.detach().cpu().numpy()[:, 0].copy()
        return RowBlock(keys=keys, nulls=nulls, vectors=vectors, linear=linear, state=empty)

    def reserve(self, table: str, num_rows: int) -> None:
        """Make room in the index for so many rows of a table in all.

        Before rows are loaded in the order of their keys' hashes: they would crowd at one end of an index that grows
        with them, and each would be looked for among all of these.
        """
        group, place = self.group_of(table)
        group.native.reserve(2 * place, num_rows)

    def load_rows(self, table: str, block: RowBlock) -> None:
        """Insert or overwrite rows of a table that is not dense, with their state. No batch may be in flight.

        A table in bf16 takes the vectors rounded to nearest even; those of another such table stay as they are.
        """
        group, place = self.group_of(table)
        self._forget_copies()
        with self._named_errors():
            group.load(place, block)
        self._unread.pop(table, None)

    def load_records(
        self, table: str, keys: U64, records: F32, last: U32 | None, *, is_null: bool, only_new: bool = False
    ) -> None:
        """The same with records float32 [n, R] of keys [n] exactly as the native core has them.

        last: uint32 [n], the step that trained each row last, or None: the last one committed. is_null: they are rows
        beside the keys (see RowBlock). only_new: a key that has a row keeps it.
        """
        group, place = self.group_of(table)
        self._forget_copies()
        with self._named_errors():
            group.load_records(2 * place + is_null, keys, records, last, only_new=only_new)
        self._unread.pop(table, None)

    def set_vectors(self, table: str, keys: U64 | I64, vectors: F32) -> None:
        """Begin rows from given vectors (pre-trained ones; [n, D]) with fresh state and zero first-order weights.

        keys: integers [n]. A table in bf16 takes the vectors rounded to nearest even.
        """
        group, place = self.group_of(table)
        self._forget_copies()
        with self._named_errors():
            group.begin_from(place, _as_keys(keys), np.asarray(vectors, dtype=np.float32))
        self._unread.pop(table, None)

    def close(self) -> None:
        """Free the rows, and take away what lies on disk. Calling it again does nothing."""
        self._closed = True
        for group in self.groups:
            group.close()
        self.groups = ()
        self._replicas.clear()
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_keys(keys: U64 | I64) -> U64:
    """uint64 [n]; signed keys by their two's complement."""
    array = np.asarray(keys)
    if array.dtype.kind not in "iu" and array.size:
        raise SchemaError(f"keys are {array.dtype} and must be integers")
    wide = array.reshape(-1).astype(np.int64 if array.dtype.kind == "i" else np.uint64)
    return np.ascontiguousarray(wide).view(np.uint64)

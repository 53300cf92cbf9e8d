"""The processes that train a run together, for those who work in it: what each has for the others, and of the rows.

Where there is one process alone, nothing of this does anything.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sfctr.data import Source, lanes_of
from sfctr.parallel.dense import DenseParallel, parallelise
from sfctr.parallel.exchange import GroupSide, RowExchange
from sfctr.parallel.owners import GroupOwners, owners_of, placed
from sfctr.parallel.shapes import RowShape
from sfctr.parallel.world import END, World
from sfctr.spec.batch import U64, Bools
from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.errors import ConfigError
from sfctr.spec.exchange import Exchange
from sfctr.spec.peers import ALONE as NOBODY
from sfctr.spec.peers import Peers
from sfctr.spec.runfile import Parallel, RunFile
from sfctr.spec.tables import Table
from sfctr.store import Group, Replica, Store
from sfctr.telemetry import notice

from .parts import Part

SAVING_S = 3600.0
"""How long ranks wait for one that reads, writes or checks files; one that has died is known at once all the same."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Peers for each thread that speaks with others: the loop's own, of its rows in a step and in evaluation, of its
    reader, of the writer of checkpoints. on_machine: how many of them share this machine."""

    world: World | None = None
    loop: Peers = NOBODY
    rows: Peers = NOBODY
    viewing: Peers = NOBODY
    reading: Peers = NOBODY
    saving: Peers = NOBODY
    on_machine: int = 1

    @classmethod
    def of(cls, world: World | None) -> Ranks:
        """Collective."""
        if world is None or world.size == 1:
            return cls()
        patience_s = max(world.timeout_s, SAVING_S)
        loop = world.peers("loop", timeout_s=patience_s)
        world.peers(END, timeout_s=patience_s)
        world.peers("dense")  # now, while all are equally far
        names = loop.gather("begin", np.frombuffer(platform.node().encode(), np.uint8).copy())
        return cls(
            world=world,
            loop=loop,
            rows=world.peers("rows"),
            viewing=world.peers("viewing", timeout_s=patience_s),
            reading=world.peers("reading", timeout_s=patience_s),
            saving=world.peers("saving", timeout_s=patience_s),
            on_machine=sum(name.tobytes() == names[world.rank].tobytes() for name in names),
        )

    @property
    def rank(self) -> int:
        return self.loop.rank

    @property
    def size(self) -> int:
        return self.loop.size

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes what is written once."""
        return self.rank == 0

    def keep_copies(self, run: RunFile) -> bool:
        """Whether ranks keep copies of one another's rows."""
        tables = [table for table in run.tables if not (table.dense or table.has_membership)]
        every = run.parallel.sync == "allreduce"
        return self.size > 1 and any(every or placed(t, 4 * t.dim).placement == "replicated" for t in tables)

    def lanes(self, options: Parallel) -> range | None:
        """Those of this rank; None: all."""
        return None if self.size == 1 else lanes_of(self.rank, self.size, options.shares)

    def require_same_data(self, *sources: Source | None) -> None:
        """Raise ConfigError where what a rank reads has another number of rows, or other types or means, than what rank
        0 reads. Collective."""
        words = json.dumps([None if s is None else [s.num_rows, str(s.schema)] for s in sources])
        every = [part.tobytes() for part in self.loop.gather("begin", np.frombuffer(words.encode(), np.uint8).copy())]
        for rank, theirs in enumerate(every):
            if theirs != every[0]:
                counts = [[None if s is None else s[0] for s in json.loads(part)] for part in (every[0], theirs)]
                raise ConfigError(
                    f"rank 0 and rank {rank} do not read the same data: rows for training and for validation are"
                    f" {counts[0]} and {counts[1]}, or types and means of columns differ; have the same files on all"
                    " machines"
                )

    def own_path(self, path: str | Path | None) -> str | Path | None:
        """The path by which a rank keeps a file that each has."""
        return path if path is None or self.is_first else f"{path}.rank-{self.rank}"

    def wire(self, exchange: Exchange | None) -> dict[str, int]:
        """Bytes that ranks have sent to one another, by kind, and what rows, with their keys and gradients, came to:
        with virtual ids, as they travel, and position by position. Collective, for the loop's thread."""
        if self.world is None or not isinstance(exchange, RowExchange):
            return {}
        own = {kind: sent for kind, (sent, _) in self.world.bytes.items()}
        traffic = exchange.traffic
        own |= {"virtual_ids": traffic.bytes_unique, "positions": traffic.bytes_positions}
        return self.summed({"wire": own})["wire"]

    def failed(self, error: BaseException) -> None:
        """Tell the others what ends this rank."""
        if self.world is not None:
            self.world.fail(error)

    @property
    def part(self) -> tuple[int, int] | None:
        """Of what is read in order, by whoever evaluates; None: all."""
        return None if self.size == 1 else (self.rank, self.size)

    def owns(self, store: Store) -> RankOwns | None:
        """Which rows are this rank's; None: all. The store is told to expect them: so ask before rows are loaded."""
        if self.size == 1:
            return None
        expect_own(store, self.rank, self.size)
        return RankOwns(store, self.rank, self.size)

    def summed(self, counters: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Counters by table, of all ranks together. Collective, for the loop's thread."""
        total: dict[str, dict[str, int]] = {}
        words = np.frombuffer(bytearray(json.dumps(counters).encode()), np.uint8)
        for part in self.loop.gather("counters", words):
            for table, counts in json.loads(part.tobytes()).items():
                own = total.setdefault(table, {})
                for name, count in counts.items():
                    own[name] = own.get(name, 0) + count
        return total

    def exchange(self, store: Store, options: Parallel) -> Exchange | None:
        return None if self.size == 1 else make_exchange(store, options, self.reading, self.rows, self.viewing)

    def dense(self, model: nn.Module, store: Store, options: Parallel) -> DenseRanks | None:
        """The model on all ranks, and the dense tables; changes the module in place."""
        if self.world is None:
            return None
        self.loop.gather("begin", np.zeros(0, np.uint8))  # whoever has read for longer is waited for here
        return DenseRanks(parallelise(model, options, self.world, store.dense_tables))


class DenseRanks:
    """See parts.Dense."""

    def __init__(self, dense: DenseParallel) -> None:
        self.parallel = dense
        self.needs_every_rank = dense.needs_every_rank
        self.sum_gradients = dense.reduce
        self.square_norm = dense.square_norm

    @property
    def parts(self) -> DenseParts | None:
        """What this rank has of the dense part, where that is not all of it."""
        return self.parallel if self.parallel.shares else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer updates, in the order of the model's and the tables' parameters."""
        return list(self.parallel.parameters.values())

    def rows(self, part: Part) -> AbstractContextManager[None]:
        return self.parallel.rows(part.whole_size, torch.from_numpy(part.places))


class RankOwns:
    """See spec.owned.Owns."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._rank = rank
        self._owners = {
            table: (owners, place)
            for group in store.groups
            for owners in [group_owners(store, group, size)]
            for table, place in group.tables.items()
        }

    def __call__(self, table: str, keys: U64, *, is_null: bool = False) -> Bools:
        owners, place = self._owners[table]
        return owners.owns(self._rank, place, keys)


def make_exchange(
    store: Store, options: Parallel, reading: Peers, training: Peers, viewing: Peers | None = None
) -> RowExchange:
    """See RowExchange."""
    expect_own(store, training.rank, training.size)
    sides = [_side(store, number, options, training) for number in range(len(store.groups))]
    _say_placements(store, options, training)
    return RowExchange(reading, training, sides, viewing=viewing, timeout_s=options.timeout_s)


def group_owners(store: Store, group: Group, size: int) -> GroupOwners:
    """Who owns the rows of a group's tables, among `size` ranks."""
    names = [name for name, table in store.tables.items() if not table.dense]
    return GroupOwners(
        [
            owners_of(
                placed(table, group.row_bytes).placement,
                size,
                parts=group.shares(place),
                number=names.index(table.name),
            )
            for place, table in enumerate(group.plan.tables)
        ]
    )


def expect_own(store: Store, rank: int, size: int) -> None:
    """Tell a store that the rows it will hold are those of one rank of `size`; before they come."""
    for group in store.groups:
        owners = group_owners(store, group, size)
        for place in range(len(group.plan.tables)):
            group.expect(place, owners.shards(rank, place))


def _side(store: Store, number: int, options: Parallel, peers: Peers) -> GroupSide:
    group = store.groups[number]
    plan = group.plan
    owners = group_owners(store, group, peers.size)
    is_replicated = [_is_replicated(table, group, options) for table in plan.tables]
    return GroupSide(
        owners=owners,
        shape=RowShape(
            dim=plan.dim,
            has_linear=plan.linear_rule is not None,
            words=group.wire_words,
            is_float=plan.dtype == "fp32",
            is_narrow=options.wire == "bf16",
        ),
        is_replicated=np.repeat(np.array(is_replicated, dtype=np.bool_), 2),
        has_membership=plan.has_membership,
        record_words=group.native.record_floats,
        replica=_replica(store, number, owners, peers.rank) if any(is_replicated) else None,
    )


def _replica(store: Store, number: int, owners: GroupOwners, rank: int) -> Replica:
    """For copies of what others own."""
    replica = store.replica(number)
    for place in range(len(replica.plan.tables)):
        replica.expect(place, ~owners.shards(rank, place))
    return replica


def _is_replicated(table: Table, group: Group, options: Parallel) -> bool:
    """Whether every rank keeps copies of the table's rows."""
    if table.has_membership:
        return False
    return options.sync == "allreduce" or placed(table, group.row_bytes).placement == "replicated"


def _say_placements(store: Store, options: Parallel, peers: Peers) -> None:
    """Where rows are, in a line, by the first rank."""
    if peers.rank:
        return
    where: dict[str, list[str]] = {}
    for group in store.groups:
        for table in group.plan.tables:
            placement: str = placed(table, group.row_bytes).placement
            if placement == "sharded" and _is_replicated(table, group, options):
                placement = "sharded, with copies on each of what batches use"
            where.setdefault(placement, []).append(table.name)
    text = "; ".join(f"{placement}: {', '.join(names)}" for placement, names in where.items())
    notice(f"{peers.size} processes have the tables between them ({text})")
    members = [table.name for table in store.tables.values() if table.has_membership]
    if options.sync == "allreduce" and members:
        notice(f"table '{members[0]}' has options of membership: its rows have no copies, and travel at each step")


ALONE = Ranks()

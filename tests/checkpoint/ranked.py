"""A run whose rows are held by several ranks: stores that follow one that is trained alone, each with its own rows."""

from __future__ import annotations

import threading

import numpy as np
from small_run import SmallRun

import sfctr
from sfctr.checkpoint import TrainingState
from sfctr.spec.batch import U64, Bools
from sfctr.spec.peers import Peers
from sfctr.store import RowBlock, Store, Waiting

SHARDS = 256
_ONE_AT_A_TIME = threading.Lock()


def mix(keys: U64) -> U64:
    """The finalizer of splitmix64."""
    z = keys ^ (keys >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def owners(keys: U64, size: int) -> np.ndarray:
    """The rank that holds each key, [n]: ranges of shards, as even as may be."""
    return (mix(keys) >> np.uint64(56)).astype(np.int64) * size // SHARDS


class Owned:
    """See spec.owned.Owns. asked: how many keys."""

    def __init__(self, peers: Peers) -> None:
        self.peers, self.asked = peers, 0

    def __call__(self, table: str, keys: U64, *, is_null: bool = False) -> Bools:
        self.asked += keys.size
        """Rows beside the keys are another rank's than keys of the same number: who forgets to ask is found out."""
        return (owners(keys, self.peers.size) - is_null) % self.peers.size == self.peers.rank


class RankOfRun:
    """One rank's part of `whole`: store, and the dense part, which all have."""

    def __init__(self, whole: SmallRun, peers: Peers, *, store: Store | None = None) -> None:
        self.whole, self.peers, self.owns = whole, peers, Owned(peers)
        self.store = store or sfctr.Store(whole.run.tables, seed=5)

    def follow(self) -> None:
        """Have what `whole` has now of this rank's rows, by as few changes as may be."""
        with _ONE_AT_A_TIME:
            self._follow()

    def _follow(self) -> None:
        store, whole = self.store, self.whole.store
        store.restore_clock(whole.steps, whole.clock())
        store.load_dense_state(whole.dense_state())
        counters = whole.membership()
        store.membership()  # what has expired goes, before it could be counted here
        for name, table in store.tables.items():
            if not table.dense:
                self._follow_rows(name)
            if table.has_membership:
                waiting, first = whole.waiting(name), self.peers.rank == 0
                own = self.owns(name, waiting.keys)
                store.restore_membership(
                    name,
                    counters[name] if first else dict.fromkeys(counters[name], 0),
                    Waiting(keys=waiting.keys[own], counts=waiting.counts[own], last=waiting.last[own]),
                )

    def _follow_rows(self, name: str) -> None:
        had = rows_of(self.store, name)
        now = {row: bits for row, bits in rows_of(self.whole.store, name).items() if self._is_own(name, row)}
        self.store.remove(name, np.array([key for key, is_null in had.keys() - now.keys() if not is_null], np.uint64))
        for block in self.whole.store.rows(name):
            rows = list(zip(block.keys.tolist(), block.nulls.tolist(), strict=True))
            chosen = np.array([row in now and had.get(row) != now[row] for row in rows], np.bool_)
            if chosen.any():
                self.store.load_rows(name, only(block, chosen))

    def _is_own(self, name: str, row: tuple[int, bool]) -> bool:
        return bool(self.owns(name, np.array([row[0]], np.uint64), is_null=row[1])[0])

    def state(self, **more) -> TrainingState:
        """Without the optimizer, which trains the dense tables of `whole`."""
        return TrainingState(run=self.whole.run, store=self.store, model=self.whole.model, **more)


def rows_of(store: Store, name: str) -> dict[tuple[int, bool], bytes]:
    """Every number of a table's rows, by key and whether it is beside the keys."""
    found = {}
    for block in store.rows(name):
        columns = [each for each in (block.vectors, block.linear, block.state, block.last) if each is not None]
        for i, row in enumerate(zip(block.keys.tolist(), block.nulls.tolist(), strict=True)):
            found[row] = b"".join(np.ascontiguousarray(column[i]).tobytes() for column in columns)
    return found


def has_only_its_own(store: Store, owns: Owned) -> bool:
    """Whether every row of it, and every key that waits, is this rank's."""
    found = [
        owns(name, block.keys[block.nulls == is_null], is_null=is_null).all()
        for name, table in store.tables.items()
        for block in (() if table.dense else store.rows(name))
        for is_null in (False, True)
    ]
    waiting = [owns(name, store.waiting(name).keys).all() for name, t in store.tables.items() if t.has_membership]
    return len(found) > 2 and all(found + waiting)


def only(block: RowBlock, chosen: Bools) -> RowBlock:
    return RowBlock(
        keys=block.keys[chosen],
        nulls=block.nulls[chosen],
        vectors=block.vectors[chosen],
        linear=None if block.linear is None else block.linear[chosen],
        state=block.state[chosen],
        last=None if block.last is None else block.last[chosen],
    )


def contents(store: Store) -> dict:
    """All that a store holds: rows, who waits, what was counted, event time, dense tables."""
    found: dict = {("steps",): store.steps, ("clock",): [each.tolist() for each in as_arrays(store.clock())]}
    for name, table in store.tables.items():
        found |= {(name, *row): bits for row, bits in rows_of(store, name).items()}
        if table.has_membership:
            waiting = store.waiting(name)
            columns = (waiting.keys.tolist(), waiting.counts.tolist(), waiting.last.tolist())
            found |= {(name, "waits", key): rest for key, *rest in zip(*columns, strict=True)}
    return found


def as_arrays(clock) -> tuple:
    return clock.steps, clock.times


def union(parts: list[dict]) -> dict:
    """Of contents() of all ranks; each row is there once."""
    found: dict = {}
    for part in parts:
        for name, what in part.items():
            is_common = name in (("steps",), ("clock",)) or name[0] == "hour"
            assert name not in found or (is_common and found[name] == what), f"{name} is on two ranks"
            found[name] = what
    return found


def in_turn(peers, work) -> None:
    """By rank 0, while the others wait."""
    nothing = np.empty(0, np.uint8)
    peers.gather("test", nothing)
    if peers.rank == 0:
        work()
    peers.gather("test", nothing)

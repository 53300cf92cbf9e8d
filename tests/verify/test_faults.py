"""Faults that a cache of rows could have are each caught, and named by step, table, key and field.

What verify is given is a store that may or may not be faulty: nothing tells it which. The store here keeps all rows in
RAM, so each fault is made as it would show there: by what a step reads and leaves behind.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfctr import _native
from sfctr.spec.batch import U64, Batch, Bools
from sfctr.spec.faults import Faults
from sfctr.spec.optim import Adam
from sfctr.spec.runfile import Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Categorical, Schema, Sequence
from sfctr.spec.tables import Table
from sfctr.store import RowBlock, Store
from sfctr.train.assembly import loop_parts
from sfctr.train.trainer import Parts
from sfctr.verify import Finding, Makers, verify_run

STEPS = 7
FAULT_NAMES = [name for name in vars(Faults) if not name.startswith("_")]

# Fault at step 4: the step at which it must be found, and the fields that may show it first.
SHOWS = {
    "fetch_early": (4, {"vector", "linear"}),
    "drop_write_back": (4, {"vector"}),
    "apply_twice": (4, {"vector"}),
    "lose_state": (4, {"state m of the vector"}),
    "use_wrong_slot": (4, {"vector"}),
}


Row = tuple[str, int]


class NoFault:
    """Strikes nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda step, table, keys: np.zeros(keys.size, np.bool_)


class OneFault(NoFault):
    """The fault `name` at one step, on the first `count` keys that it is asked about in one table."""

    def __init__(self, name: str, *, step: int, table: str, count: int = 1) -> None:
        self.name, self.step, self.table, self.count = name, step, table, count
        self.struck: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return self._strike if name == self.name else super().__getattr__(name)

    def _strike(self, step: int, table: str, keys: U64) -> Bools:
        hit = np.zeros(keys.size, np.bool_)
        if (step, table) == (self.step, self.table):
            hit[: self.count] = True
            self.struck |= set(keys[hit].tolist())
        return hit


class FaultyStore(Store):
    """A store whose rows a `Faults` may strike when a step is committed."""

    def __init__(self, run: RunFile, faults: Faults) -> None:
        super().__init__(run.tables, seed=run.train.seed, threads=run.train.threads)
        self.faults = faults
        self.stale: dict[Row, RowBlock] = {}
        """Rows that the next step reads as they were before this one."""

    def commit(self, working_sets: Several[_native.WorkingSet], *, lr_factor: float = 1.0, scale: float = 1.0) -> None:
        step, looked_up = self.steps + 1, dict(self._looked_up(working_sets))
        before = {row: self._row(row) for table in looked_up for row in self._known(table, looked_up[table])}
        super().commit(working_sets, lr_factor=lr_factor, scale=scale)
        self.stale = {}
        for table, keys in looked_up.items():
            known = [row for row in self._known(table, keys) if row in before]
            mine = np.array([key for _, key in known], np.uint64)
            for row in self._struck(self.faults.drop_write_back(step, table, mine), known):
                self.load_rows(table, before[row])
            for row in self._struck(self.faults.apply_twice(step, table, mine), known):
                self.load_rows(table, moved_again(before[row], self._row(row)))
            for row in self._struck(self.faults.lose_state(step, table, mine), known):
                block = self._row(row)
                self.load_rows(table, replace(block, state=np.zeros_like(block.state)))
            self._shift(table, self._struck(self.faults.use_wrong_slot(step, table, mine), known))
            self.stale |= {
                row: before[row] for row in self._struck(self.faults.fetch_early(step + 1, table, mine), known)
            }

    def _looked_up(self, working_sets: Several[_native.WorkingSet]) -> Iterator[tuple[str, U64]]:
        for group, working_set in zip(self.groups, working_sets, strict=True):
            bounds = working_set.table_begin()
            for name, place in group.tables.items():
                yield name, working_set.keys()[bounds[2 * place] : bounds[2 * place + 1]].copy()

    def _known(self, table: str, keys: U64) -> list[Row]:
        have = {int(key) for block in self.rows(table) for key in block.keys[~block.nulls]}
        return [(table, key) for key in sorted(keys.tolist()) if key in have]

    def _row(self, row: Row) -> RowBlock:
        table, key = row
        for block in self.rows(table):
            at = np.flatnonzero((block.keys == key) & ~block.nulls)
            if at.size:
                linear = None if block.linear is None else block.linear[at].copy()
                parts = {"vectors": block.vectors[at].copy(), "state": block.state[at].copy(), "linear": linear}
                return RowBlock(keys=block.keys[at].copy(), nulls=block.nulls[at].copy(), **parts)
        raise KeyError(row)

    @staticmethod
    def _struck(hit: Bools, rows: list[Row]) -> list[Row]:
        return [row for row, struck in zip(rows, hit, strict=True) if struck]

    def _shift(self, table: str, rows: list[Row]) -> None:
        blocks = [self._row(row) for row in rows]
        for block, other in zip(blocks, blocks[1:] + blocks[:1], strict=True):
            self.load_rows(table, replace(other, keys=block.keys))


def moved_again(before: RowBlock, after: RowBlock) -> RowBlock:
    """A row that took the same way twice."""
    assert before.linear is not None and after.linear is not None
    return replace(
        after,
        vectors=2 * after.vectors - before.vectors,
        linear=2 * after.linear - before.linear,
        state=2 * after.state - before.state,
    )


def faulty_parts(run: RunFile, source: Any, store: FaultyStore, module: Any, **more: Any) -> Parts:
    """loop_parts, with a look-ahead that reads stale rows where the store's faults say so."""
    parts = loop_parts(run, source, store, module, **more)

    def lookahead(batches: Iterable[Batch]) -> Generator[Any, None, None]:
        ready: Any
        for ready in parts.lookahead(batches):
            for (table, _), block in store.stale.items():
                store.load_rows(table, block)
            for group, working_set in zip(store.groups, ready._working_sets, strict=True):
                group.native.locate(working_set, True)
            yield ready

    return replace(parts, lookahead=lookahead)


def makers(faults: Any, *, everywhere: bool) -> Makers:
    """A store with these faults in every form of the run, or in all but the plainest."""

    def store(run: RunFile) -> FaultyStore:
        is_plain = run.train.window == 0 and run.train.threads == 1
        return FaultyStore(run, NoFault() if is_plain and not everywhere else faults)

    return Makers(store=store, parts=faulty_parts)


def findings(run: RunFile, log: Any, faults: Any, *, everywhere: bool = False) -> dict[str, Finding]:
    found = verify_run(run, steps=STEPS, quick=True, data=log, makers=makers(faults, everywhere=everywhere))
    return {finding.variant: finding for finding in found}


@pytest.fixture
def run() -> RunFile:
    """Few tables, so that many runs take little time."""
    features = [Categorical("item"), Bag("words", pooling="mean"), Sequence("history", table="item", max_length=4)]
    return RunFile(
        data=Data(),
        schema=Schema(label="click", features=features),
        tables=tuple(Table(name, dim=4, optimizer=Adam(lr=0.02), linear=Adam(lr=0.02)) for name in ("item", "words")),
        model=Model(name="fm"),
        train=Train(batch_size=64, torch_threads=1, epochs=2),
    )


def test_every_fault_is_tried():
    assert set(FAULT_NAMES) == set(SHOWS)


def test_a_store_without_faults_passes(run, log):
    assert all(finding.holds for finding in findings(run, log, NoFault()).values())


@pytest.mark.parametrize("name", FAULT_NAMES)
def test_a_fault_is_caught_and_named(run, log, name):
    fault = OneFault(name, step=4, table="item", count=2 if name == "use_wrong_slot" else 1)
    found = findings(run, log, fault)
    assert found["plain, again"].holds and found["plain torch"].holds
    difference = found["the run as it is"].difference
    step, fields = SHOWS[name]
    assert difference is not None and difference.step == step
    assert difference.table == "item"
    assert difference.field in fields
    assert difference.key in {f"key {key if key < 2**63 else key - 2**64}" for key in fault.struck}
    assert str(difference).startswith(f"step {step}: table 'item', {difference.key}: ")


@pytest.mark.parametrize("name", FAULT_NAMES)
def test_a_fault_in_every_form_of_the_run_is_caught_by_the_reference(run, log, name):
    fault = OneFault(name, step=4, table="item", count=2 if name == "use_wrong_slot" else 1)
    found = findings(run, log, fault, everywhere=True)
    assert found["plain, again"].holds and found["the run as it is"].holds
    difference = found["plain torch"].difference
    assert difference is not None
    assert (difference.step, difference.table) == (4, "item")


def test_a_row_that_is_lost_is_missing(run, log):
    class Forgetful(FaultyStore):
        def rows(self, table: str, block: int = 65536) -> Any:
            for found in super().rows(table, block):
                keep = found.keys != 7
                linear = None if found.linear is None else found.linear[keep]
                parts = {"vectors": found.vectors[keep], "linear": linear, "state": found.state[keep]}
                yield type(found)(keys=found.keys[keep], nulls=found.nulls[keep], **parts)

    def store(run: RunFile) -> FaultyStore:
        return (FaultyStore if run.train.window == 0 else Forgetful)(run, NoFault())

    found = list(verify_run(run, steps=STEPS, quick=True, data=log, makers=Makers(store=store)))
    (odd,) = [finding for finding in found if not finding.holds]
    assert odd.difference is not None
    assert (odd.difference.table, odd.difference.key, odd.difference.field) == ("item", "key 7", "row")
    assert "is missing" in str(odd.difference)

"""Faults that a cache of rows can have are each caught, and named by step, table, key and field.

What verify is given is a store that may or may not be faulty: nothing tells it which.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import msgspec
import pytest

from sfctr import _native
from sfctr.spec.optim import Adam
from sfctr.spec.runfile import Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Categorical, Schema, Sequence
from sfctr.spec.tables import Table
from sfctr.store import Store
from sfctr.train.threads import first_threads
from sfctr.verify import Finding, Makers, verify_run
from sfctr.verify.difference import Difference

STEPS = 7
AS_IT_IS = "the run as it is"
ON_DISK = "disk under RAM, LRU, window 4"
KEYS = {"item": range(-5, 30), "words": range(25)}
"""Of the click log."""

Maker = Callable[[RunFile], Store]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault, which of its occasions it takes, the form of the run that has it, and what must be said of it there.

    Fields: those that may show it first.
    """

    skip: int = 0
    times: int | None = None
    form: str
    steps: range
    fields: set[str]


ANY_STEP = range(1, STEPS + 1)
WEIGHTS = {"vector", "linear"}
STATE = {f"state {moment} of the {part}" for moment in "mv" for part in WEIGHTS}
CASES = {
    # The first batch that can be read too early is the second.
    "fetch_early": Case(form=AS_IT_IS, steps=range(2, 3), fields={"vector"}),
    "drop_write_back": Case(form=ON_DISK, steps=ANY_STEP, fields=WEIGHTS),
    # One occasion a step.
    "apply_twice": Case(skip=3, times=1, form=AS_IT_IS, steps=range(4, 5), fields={"vector"}),
    "lose_state": Case(form=ON_DISK, steps=ANY_STEP, fields=STATE),
    # One occasion a batch and table, of which there are two.
    "use_wrong_slot": Case(skip=6, times=1, form=AS_IT_IS, steps=range(4, 5), fields={"vector"}),
}


class PlannedAhead(Store):
    """Its first step waits until the batch after it is planned too, as it is anyhow where the machine is not busy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_planned, self._is_ahead = 0, Event()

    def plan(self, working_sets: Any, number: int = 0) -> bool:
        planned = super().plan(working_sets, number)
        self._num_planned += planned
        if self._num_planned == 2:
            self._is_ahead.set()
        return planned

    def commit(self, working_sets: Any, **options: Any) -> None:
        if self.steps == 0:
            self._is_ahead.wait(timeout=2)  # in vain where one step is all that is asked for
        super().commit(working_sets, **options)


def opened(run: RunFile, faults: _native.RowFaults | None = None) -> Store:
    kind = Store if run.tiers.disk or run.train.window == 0 else PlannedAhead
    return kind(run.tables, tiers=run.tiers, seed=run.train.seed, threads=first_threads(run.train), faults=faults)


def faulty(name: str, *, everywhere: bool) -> Maker:
    """Makes stores with a fault in every form of the run, or in all but the plain one."""

    def store(run: RunFile) -> Store:
        is_plain = run.train.window == 0 and not run.tiers.disk
        faults = _native.RowFaults()
        if everywhere or not is_plain:
            faults.arm(name, skip=CASES[name].skip, times=CASES[name].times)
        return opened(run, faults)

    return store


def findings(run: RunFile, log: Any, store: Maker) -> dict[str, Finding]:
    found = verify_run(run, steps=STEPS, quick=True, data=log, makers=Makers(store=store))
    return {finding.variant: finding for finding in found}


def names_a_row(difference: Difference | None) -> bool:
    """Whether it is told by step, table and a key that the log has, or that of a missing value."""
    assert difference is not None
    match = re.match(r"step (\d+): table '(\w+)', (key (-?\d+)|the row of a missing value): ", str(difference))
    assert match, str(difference)
    assert (difference.step, difference.table, difference.key) == (int(match[1]), match[2], match[3])
    return match[4] is None or int(match[4]) in KEYS[match[2]]


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


def test_a_store_without_faults_passes(run, log):
    found = findings(run, log, opened)
    assert {AS_IT_IS, ON_DISK} <= set(found)
    assert all(finding.holds for finding in found.values())


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_caught_and_named(run, log, name):
    found = findings(run, log, faulty(name, everywhere=False))
    assert found["plain, again"].holds and found["plain torch"].holds
    case, difference = CASES[name], found[CASES[name].form].difference
    assert names_a_row(difference)
    assert difference.step in case.steps
    assert difference.field in case.fields


@pytest.mark.parametrize("name", ["drop_write_back", "lose_state"])
def test_a_fault_of_writing_back_shows_only_where_rows_leave_memory(run, log, name):
    assert findings(run, log, faulty(name, everywhere=False))[AS_IT_IS].holds


@pytest.mark.parametrize("name", ["apply_twice", "use_wrong_slot"])
def test_a_fault_in_every_form_of_the_run_is_caught_by_the_reference(run, log, name):
    found = findings(run, log, faulty(name, everywhere=True))
    assert found["plain, again"].holds and found[AS_IT_IS].holds
    difference = found["plain torch"].difference
    assert names_a_row(difference)
    assert difference.step == 4


@pytest.mark.parametrize("name", ["drop_write_back", "lose_state"])
def test_a_fault_of_the_disk_in_every_form_of_the_run_is_caught_by_the_reference(run, log, tmp_path, name):
    def store(run: RunFile) -> Store:
        tiers = msgspec.structs.replace(run.tiers, ram=4000, disk=str(tmp_path))
        return faulty(name, everywhere=True)(msgspec.structs.replace(run, tiers=tiers))

    found = findings(run, log, store)
    assert found["plain, again"].holds
    assert names_a_row(found["plain torch"].difference)


def test_a_row_that_is_lost_is_missing(run, log):
    class Forgetful(Store):
        def rows(self, table: str, block: int | None = None) -> Any:
            for found in super().rows(table, block):
                keep = found.keys != 7
                linear = None if found.linear is None else found.linear[keep]
                parts = {"vectors": found.vectors[keep], "linear": linear, "state": found.state[keep]}
                yield type(found)(keys=found.keys[keep], nulls=found.nulls[keep], **parts)

    def store(run: RunFile) -> Store:
        return (Store if run.train.window == 0 else Forgetful)(run.tables, tiers=run.tiers, seed=run.train.seed)

    found = findings(run, log, store)
    assert found["plain, again"].holds and found["plain torch"].holds
    difference = found[AS_IT_IS].difference
    assert difference is not None
    assert (difference.table, difference.key, difference.field) == ("item", "key 7", "row")
    assert "is missing" in str(difference)

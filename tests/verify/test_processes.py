"""verify over several processes: a sound run is found sound, and each fault is caught and named."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_ranks

from sfctr.parallel.dense import DenseParallel
from sfctr.spec.errors import PeerError
from sfctr.spec.runfile import Data
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.store import Group
from sfctr.train.ranks import RankOwns
from sfctr.train.trainer import Trainer
from sfctr.verify.parts import ranks_at_odds
from sfctr.verify.process_judge import ProcessJudge
from sfctr.verify.processes import rank_steps, train_in_processes
from sfctr.verify.variants import plain
from sfctr.verify.workbench import Makers, Workbench

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def steps_in_rank(world, text, steps, start, fault):
    if fault:
        FAULTS[fault](world)
    return rank_steps(world, decode_run_file(text, "run.toml"), steps, start)


def mean_of_local_means(world):
    Trainer._totals = lambda self, ready, weights: weights.sum(0) * world.size


def dense_gradients_lost(world):
    reduce = DenseParallel.reduce

    def losing(self, extras):
        if world.rank == 1:
            for parameter in self.parameters.values():
                parameter.grad = None if parameter.grad is None else parameter.grad * 0
        return reduce(self, extras)

    DenseParallel.reduce = losing


def row_gradients_lost(world):
    gradients = Group.gradients

    def losing(self, working_set):
        vectors, linear, reached = gradients(self, working_set)
        return (vectors * 0, linear * 0, reached) if world.rank == 1 else (vectors, linear, reached)

    Group.gradients = losing


def stale_row(world):
    """One row is sent as it was when it was first sent."""
    weights, first = Group.weights, {}

    def stale(self, working_set, out):
        weights(self, working_set, out)
        if self.plan.tables[0].name == "item" and working_set.num_unique:
            key = first.setdefault("key", int(working_set.keys()[0]))
            at = np.flatnonzero(working_set.keys() == key)
            if at.size:
                out[at[0]] = first.setdefault("row", out[at[0]].copy())

    if world.rank == 0:
        Group.weights = stale


def wrong_owner(world):
    """After re-sharding a rank takes the rows of another."""
    owns = RankOwns.__call__
    RankOwns.__call__ = lambda self, table, keys, *, is_null=False: owns(
        self, table, keys ^ np.uint64(1), is_null=is_null
    )


FAULTS = {
    f.__name__: f for f in (mean_of_local_means, dense_gradients_lost, row_gradients_lost, stale_row, wrong_owner)
}


def ranks(fault=""):
    def train(run, steps, size, start=None):
        return run_ranks(size, steps_in_rank, render_run_file(run), steps, start, fault, timeout_s=120)

    return train


STEPS = 6


@pytest.fixture
def of_files(run, log, tmp_path):
    pq.write_table(pa.Table.from_pandas(log, preserve_index=False), tmp_path / "log.parquet")
    return msgspec.structs.replace(run, data=Data(train=(str(tmp_path / "log.parquet"),)))


def judge_of(bench, fault="", size=2):
    expected = bench.train(plain(bench.run), STEPS)
    return ProcessJudge(bench, expected, size, ranks(fault), begins=lambda variant: None)


def test_a_sound_run_agrees_on_three_processes(of_files):
    with Workbench(of_files, Makers()) as bench:
        findings = {finding.variant: finding for finding in judge_of(bench, size=3).findings()}
    assert list(findings) == [
        *("3 processes, owners", "3 processes, allreduce", "3 processes, allreduce, and owners"),
        "1 process, then 3",
    ]
    assert [finding.difference for finding in findings.values()] == [None] * 4
    assert findings["3 processes, allreduce, and owners"].result == "same bits"
    assert all(finding.steps == STEPS for finding in findings.values())


CAUGHT = {
    "mean_of_local_means": "step 1: ",
    "dense_gradients_lost": "step 1: ",
    "row_gradients_lost": "step 1: table 'item', key 0: vector[0] became ",
    "stale_row": "step 2: table 'item', key ",
}


@pytest.mark.parametrize("fault", CAUGHT)
def test_a_fault_is_caught_and_named(of_files, fault):
    with Workbench(of_files, Makers()) as bench:
        found = next(judge_of(bench, fault).findings())
    assert found.variant == "2 processes, owners" and found.result == "differs"
    assert str(found.difference).startswith(CAUGHT[fault])


def test_rows_that_a_rank_takes_from_another_are_caught_and_named(of_files):
    with Workbench(of_files, Makers()) as bench:
        judge = judge_of(bench, "wrong_owner")
        found = judge.taken_over(judge.tolerance())
    assert found.variant == "1 process, then 2" and found.difference.table == "item" and found.difference.key


def test_processes_of_its_own_come_to_what_ranks_of_the_tests_come_to(of_files):
    ours, theirs = (train(of_files, 2, 2) for train in (train_in_processes, ranks()))
    for one, other in zip(ours, theirs, strict=True):
        assert len(one) == len(other) == 2
        assert ranks_at_odds([one[-1], other[-1]]) is None
        for table, rows in one[-1].outcome.rows.items():
            np.testing.assert_array_equal(rows.keys, other[-1].outcome.rows[table].keys)


def test_what_a_process_cannot_do_is_said_with_its_rank(of_files):
    missing = msgspec.structs.replace(of_files, data=Data(train=("nowhere.parquet",)))
    with pytest.raises(PeerError, match=r"rank \d: DataError: there is no file 'nowhere.parquet'"):
        train_in_processes(missing, 2, 2)

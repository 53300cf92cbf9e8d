"""Whatever of the loop has a state goes on from it as if it had not stopped."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from sfctr.spec.optim import Plateau
from sfctr.spec.runfile import Checkpoints
from sfctr.telemetry import Recorder, span
from sfctr.train.auc import ROW, ScoreRuns
from sfctr.train.due import Due
from sfctr.train.generators import generators_kept
from sfctr.train.log import Log, Stretch, read_log
from sfctr.train.metrics import Metrics
from sfctr.train.schedule import PlateauFactor
from sfctr.train.stages import Stages
from sfctr.train.state import State
from sfctr.train.watch import Watch


def through_files(state: State) -> State:
    """As it comes back from a checkpoint."""
    plain = json.loads(json.dumps(state.plain, allow_nan=False))
    return State(plain, {name: tensor.clone() for name, tensor in state.tensors.items()})


def moved(one, other):
    other.restore(through_files(one.state()))
    return other


def scores(seed: int, rows: int = 3000):
    rng = np.random.default_rng(seed)
    return rng.normal(size=rows).round(3), rng.integers(0, 2, rows).astype(float), rng.random(rows) / 3


def test_a_state_takes_itself_apart_again():
    state = State.joined({"a": State({"x": 1}), "a.b": State({}, {"c": torch.ones(2)}), "d": State()})
    assert state.part("a").plain == {"x": 1}
    assert list(state.part("a.b").tensors) == ["c"]
    assert state.part("d") == State({}, {}) == state.part("none")


@pytest.mark.parametrize("seen", [[], [0.5], [0.5, 0.4, None, 0.45], [0.1 + 0.2, 0.3, 0.3]])
def test_watching_goes_on(seen):
    watch = Watch("auc", stop_after=3, min_delta=1e-9)
    for value in seen:
        watch.observe(value)
    again = moved(watch, Watch("auc", stop_after=3, min_delta=1e-9))
    for value in (0.3, 0.44, 0.45, 0.6):
        assert again.observe(value) == watch.observe(value)
        assert (again.should_stop, again.best) == (watch.should_stop, watch.best)


def test_a_plateau_goes_on():
    options = Plateau(factor=0.3, patience=1)
    plateau = PlateauFactor(options)
    for improved in (True, False, False, False):
        plateau.observe(improved)
    again = moved(plateau, PlateauFactor(options))
    assert again.observe(False) is True is plateau.observe(False)
    assert again.factor == plateau.factor == 0.3 * 0.3


@pytest.mark.parametrize("steps", [0, 1, 5, 40])
def test_a_stretch_goes_on_and_forgets_the_same_rows(steps):
    stretch = Stretch()
    for step in range(steps):
        stretch.add(3000, 0.1 * step + 0.7, *scores(step))
    again = moved(stretch, Stretch())
    assert bool(again) == bool(stretch) == (steps > 0)
    for step in range(steps, steps + 30):
        for each in (stretch, again):
            each.add(3000, 0.3, *scores(step))
    assert again.line() == stretch.line()


@pytest.mark.parametrize("memory", [32 << 20, 64 << 10])
def test_scores_go_on_with_all_their_bits_in_memory_or_beyond(memory):
    def runs() -> ScoreRuns:
        return ScoreRuns(memory=memory)

    with runs() as whole, runs() as again:
        for seed in range(4):
            whole.add(*scores(seed, 5001))
        assert (whole.spilled_runs > 0) == (memory < 1 << 20)
        moved(whole, again)
        for seed in range(4, 7):
            for each in (whole, again):
                each.add(*scores(seed, 5001))
        assert again.spilled_runs == whole.spilled_runs
        found, expected = (np.concatenate([a.area for a in each.areas()]) for each in (again, whole))
        assert found.tobytes() == expected.tobytes()


def test_an_empty_collection_of_scores_goes_on():
    with ScoreRuns() as whole, ScoreRuns() as again:
        moved(whole, again).add(*scores(1))
        whole.add(*scores(1))
        assert next(again.areas()).auc == next(whole.areas()).auc
        assert whole.state().tensors["pending"].numel() == 3000 * ROW.itemsize


@pytest.mark.parametrize("soft", [False, True])
def test_metrics_of_several_labels_groups_and_slices_go_on(soft):
    def made() -> Metrics:
        return Metrics(("a", "b"), group_by="g", slices=("s", "t"))

    def batch(seed):
        rng = np.random.default_rng(seed)
        labels = rng.random((50, 2)) if soft and seed == 1 else rng.integers(0, 2, (50, 2))
        keep = {name: rng.integers(0, 3, 50).astype(np.uint64) for name in "gst"}
        weight = rng.random(50).astype(np.float32)
        return rng.normal(size=(50, 2)), labels.astype(np.float32), rng.random((50, 2)) < 0.9, weight, keep

    with made() as whole, made() as again:
        for seed in range(3):
            whole.update(*batch(seed))
        moved(whole, again)
        for each in (whole, again):
            each.update(*batch(3))
        assert again.result() == whole.result()


def test_stages_tell_what_was_moved_before_too():
    counters = {"item": {"fresh": 3}}

    def stages() -> Stages:
        return Stages(recorder, lambda: {table: dict(own) for table, own in counters.items()})

    with Recorder() as recorder:
        first = stages()
        counters["item"]["fresh"] += 4
        with span("read"):
            pass
        seconds = recorder.seconds()["read"]
        saved = through_files(first.state())
        assert first.line()["moved"] == {"item": {"fresh": 4}}
    with Recorder() as recorder:
        second = stages()
        second.restore(saved)
        counters["item"]["fresh"] += 2
        with span("read"):
            pass
        line = second.line()
        assert line["moved"] == {"item": {"fresh": 6}}
        assert line["stage_s"]["read"] == pytest.approx(seconds + recorder.seconds()["read"], abs=1e-6)
        assert second.line()["moved"] == {}


def test_a_log_keeps_the_lines_that_were_there(tmp_path, caplog):
    log = Log(tmp_path / "metrics.jsonl")
    empty = through_files(log.state())
    log.write({"step": 1})
    state = through_files(log.state())
    log.write({"step": 2})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    log.restore(state)
    assert read_log(tmp_path / "metrics.jsonl") == [{"step": 1}]
    log.restore(state)
    log.restore(empty)
    assert read_log(tmp_path / "metrics.jsonl") == []
    with Recorder():
        log.restore(state)
    assert "metrics.jsonl has lost lines since the checkpoint" in caplog.text
    (tmp_path / "metrics.jsonl").unlink()
    log.restore(state)


def test_what_is_drawn_in_an_evaluation_is_drawn_again():
    def drawn():
        return random.random(), random.gauss(0, 1), np.random.random(), np.random.normal(), torch.rand(1).item()

    with generators_kept():
        first = drawn()
    assert drawn() == first


def test_checkpoints_are_due_by_steps_and_by_minutes_and_never_twice_at_a_step():
    now = [0.0]
    due = Due(Checkpoints(every_steps=4, every_minutes=0), lambda: now[0])
    assert [step for step in range(1, 10) if due.at(step)] == [4, 8]
    due.saved(8)
    assert not due.at(8)
    now[0] = 1e9
    assert not due.at(9)
    due = Due(Checkpoints(every_minutes=1.5), lambda: now[0])
    now[0] += 89
    assert not due.at(1)
    now[0] += 1
    assert due.at(2)
    due.saved(2)
    assert not due.at(3)


def test_a_clock_that_jumps_neither_ends_checkpoints_nor_makes_one_due_at_every_step():
    now = [1000.0]
    due = Due(Checkpoints(every_minutes=1), lambda: now[0])
    now[0] += 1e6
    assert due.at(1)
    due.saved(1)
    assert not due.at(2)
    now[0] -= 1e6
    assert not due.at(3)
    now[0] += 59
    assert not due.at(4)
    now[0] += 1
    assert due.at(5)

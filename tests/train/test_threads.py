"""Threads chosen by a run's own steps: which, why, and that nothing but time follows from it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sfctr.spec.errors import ConfigError, ModelError
from sfctr.spec.optim import Adam
from sfctr.spec.runfile import Data, RunFile, Train
from sfctr.spec.runfile_text import decode_run_file
from sfctr.spec.schema import Categorical, Schema
from sfctr.spec.tables import Table
from sfctr.train import Run, fit, threads, torch_threads
from sfctr.train.assembly import settled
from sfctr.train.threads import BLOCK, ROUNDS, WARM, KernelThreads, candidates, first_threads, quickest

FAST = Adam(lr=0.05)
TABLES = [Table("item", dim=4, optimizer=FAST), Table("tags", dim=4, optimizer=FAST)]
QUICK = {"model": "dlrm", "batch_size": 64, "optimizer": FAST, "quiet": True}


class Machine:
    """Takes so many milliseconds a step with each number of threads, and one that is slow now and then."""

    def __init__(self, milliseconds: dict[int, float]) -> None:
        self.milliseconds, self.now, self.said = milliseconds, 0.0, list[str]()
        self.used = [next(iter(milliseconds))]
        self.steps: list[int] = []

    def train(self, steps: int) -> None:
        tuned = KernelThreads(tuple(self.milliseconds), self.used.append, self.said.append, lambda: self.now)
        for number in range(steps):
            self.steps.append(self.used[-1])
            self.now += self.milliseconds[self.used[-1]] / 1e3 * (100 if number % 7 == 3 else 1)
            tuned.step_ended()


TRIAL = WARM + 2 * BLOCK * ROUNDS


@pytest.mark.parametrize(("one", "two", "chosen"), [(10, 7, 2), (7, 10, 1), (10, 9.9, 1)])
def test_kernels_get_the_threads_with_which_steps_are_quickest_unless_little_is_gained(one, two, chosen):
    machine = Machine({1: one, 2: two})
    machine.train(TRIAL + 20)
    assert machine.steps[TRIAL:] == [chosen] * 20
    assert set(machine.steps[WARM:TRIAL]) == {1, 2}
    words = {1: f"{one:.1f} ms with 1", 2: f"{two:.1f} ms with 2"}
    assert machine.said == [
        f"threads: {chosen} for sfctr's kernels, because a step takes {words[chosen]}, {words[3 - chosen]}"
    ]


def test_each_number_has_as_many_turns_and_the_first_steps_are_the_first_ones():
    machine = Machine({2: 5, 1: 5, 4: 5})
    machine.train(WARM + 3 * BLOCK * ROUNDS)
    assert machine.steps == [2] * WARM + ([2] * BLOCK + [1] * BLOCK + [4] * BLOCK) * ROUNDS


def test_a_machine_without_a_choice_is_not_asked():
    machine = Machine({1: 5})
    machine.train(100)
    assert machine.used == [1]
    assert machine.said == []


def test_a_run_shorter_than_the_trial_says_nothing():
    machine = Machine({1: 5, 2: 1})
    machine.train(TRIAL - 1)
    assert machine.said == []


def test_threads_begin_with_the_cores_that_torch_leaves(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 8)
    assert first_threads(Train(threads=3)) == 3
    assert first_threads(Train(torch_threads=2)) == 6
    assert first_threads(Train(torch_threads=8)) == 1
    assert first_threads(Train(torch_threads=1), sharers=2) == 3
    assert first_threads(Train(torch_threads=1), sharers=16) == 1
    assert candidates(6, 8) == (6, 1, 4, 8)
    assert candidates(1, 1) == (1,)


def test_the_quickest_is_judged_by_medians():
    assert quickest({1: [3, 3, 3], 2: [1, 1, 99]}, 0.05) == 2
    assert quickest({1: [3, 3, 3], 2: [2.9, 2.9, 2.9]}, 0.05) == 1


@pytest.mark.parametrize("option", ["threads", "torch_threads"])
def test_no_threads_are_refused(option):
    with pytest.raises(ConfigError, match=f"train.{option} is 0 and must be at least 1"):
        Train(**{option: 0})


def test_a_settled_run_has_a_number_for_torch():
    run = RunFile(data=Data(), schema=Schema(label="y", features=[Categorical("a")]), train=Train(torch_threads="auto"))
    assert settled(run).train.torch_threads == torch.get_num_threads()


# ------------------------------------------------------------------------------------------------- threads of torch


@pytest.fixture
def two_cores(monkeypatch):
    """A machine of two cores, of which torch would take one, and no run too short to be measured."""
    monkeypatch.setattr(torch_threads, "cores", lambda: 2)
    monkeypatch.setattr(torch_threads, "SHORT_RUN", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recorded(run_dir) -> int | str | None:
    return decode_run_file((run_dir / "run.toml").read_text(), "run.toml").train.torch_threads


def test_a_new_run_takes_the_measured_threads_of_torch_and_resuming_keeps_them(
    planted, schema, tmp_path, monkeypatch, two_cores, caplog
):
    monkeypatch.setattr(torch_threads, "_measured", lambda *args: {1: [0.03, 0.03], 2: [0.02, 0.02]})
    options = {**QUICK, "torch_threads": "auto", "run_dir": tmp_path / "run"}
    fit(planted(200), schema, TABLES, **options).close()
    assert recorded(tmp_path / "run") == 2
    assert "train.torch_threads: 2, because a step takes 20.0 ms with 2, 30.0 ms with 1" in caplog.messages
    monkeypatch.setattr(torch_threads, "_measured", lambda *args: pytest.fail("measured again"))
    fit(planted(200), schema, TABLES, **options, epochs=2, resume=True).close()
    assert recorded(tmp_path / "run") == 2


def test_measuring_leaves_no_trace_in_what_is_learnt(planted, schema, tmp_path, monkeypatch, two_cores):
    monkeypatch.setattr(torch_threads, "quickest", lambda seconds, least_gain: _timed_all(seconds))
    runs = []
    for name, given in (("auto", "auto"), ("given", 1)):
        options = {**QUICK, "model_args": {"dropout": 0.2}, "run_dir": tmp_path / name}
        with fit(planted(700), schema, TABLES, torch_threads=given, **options) as run:
            runs.append((run.predict(planted(100, seed=3))["score"].to_pylist(), run.facts["step"]))
    assert runs[0] == runs[1]


class Noisy(nn.Module):
    """Draws from NumPy's and Python's generators, which no one seeds for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, features):
        noise = np.random.normal() + random.gauss(0, 1)
        return self.layer(features["item"] + noise).squeeze(1)


def test_measuring_draws_nothing_from_the_generators_of_a_models_own(planted, schema, tmp_path, monkeypatch, two_cores):
    monkeypatch.setattr(torch_threads, "quickest", lambda seconds, least_gain: _timed_all(seconds))
    weights = []
    for given in ("auto", 1):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        options = {**QUICK, "model": Noisy(), "run_dir": tmp_path / str(given)}
        with fit(planted(300), schema, TABLES, torch_threads=given, **options) as run:
            weights.append(run.model.layer.weight.detach().clone())
    assert torch.equal(*weights)


def _timed_all(seconds: dict[int, list[float]]) -> int:
    assert list(seconds) == [1, 2]
    assert all(took and min(took) > 0 for took in seconds.values())
    return 1


@pytest.mark.parametrize(
    ("short_run", "why"),
    [(200, "the run is short"), (1, "a copy of the run could not be timed (no copies)")],
)
def test_what_cannot_be_measured_is_as_torch_chooses(
    short_run, why, planted, schema, tmp_path, monkeypatch, two_cores, caplog
):
    def fails(*args):
        raise ModelError("no copies")

    monkeypatch.setattr(torch_threads, "SHORT_RUN", short_run)
    monkeypatch.setattr(torch_threads, "_measured", fails)
    run_dir = tmp_path / "run"
    fit(planted(100), schema, TABLES, run_dir=run_dir, torch_threads="auto", **QUICK).close()
    assert recorded(run_dir) == 1
    assert f"train.torch_threads: 1, because {why}" in caplog.messages


def test_a_saved_run_scores_with_the_threads_it_has(planted, schema, tmp_path):
    fit(planted(200), schema, TABLES, run_dir=tmp_path / "run", threads="auto", **QUICK).close()
    with Run.load(tmp_path / "run") as run:
        assert run.run.train.threads == "auto"
        assert len(run.predict(planted(10))) == 10

"""A run that was stopped and goes on ends with the bits of one that was not, whatever stopped it, and where."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from stopped_run import ROWS, STEPS, StopAt, differences, end_of, rows_on_disk, run_of, trained, write_data
from torch import nn

from sfctr.spec.errors import CheckpointError, ConfigError, DataError, Terminated
from sfctr.spec.optim import SGD, Schedule
from sfctr.spec.runfile import Checkpoints
from sfctr.spec.schema import Categorical, Dense, Schema
from sfctr.spec.tables import Tiers
from sfctr.telemetry import Recorder
from sfctr.train import Run, fit, train_run
from sfctr.train.scoring import Scorer
from sfctr.train.trainer import Trainer


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data():
    write_data()


def go_on(run, run_dir, **more) -> None:
    train_run(run, Path(run_dir), quiet=True, resume=True, **more).close()


def stopped(run, run_dir, monkeypatch, at, number=signal.SIGTERM, **more):
    """Stopped in that step, and not gone on with."""
    with monkeypatch.context() as patch:
        StopAt(patch, at, number=number)
        with pytest.raises((Terminated, KeyboardInterrupt)):
            train_run(run, Path(run_dir), quiet=True, **more)


@pytest.mark.parametrize(
    ("stops", "change"),
    [
        ((7, 15), {}),
        ((1,), {}),
        ((8, 16, 24), {}),  # the last steps of the epochs
        ((5, 10), {}),  # just before an evaluation
        ((7, 15), {"window": 0, "accumulate": 3, "clip": 0.5}),
        ((6, 9), {"evaluate_every": None, "max_steps": 20}),
    ],
)
@pytest.mark.usefixtures("data")
def test_a_run_that_was_stopped_by_sigterm_ends_as_if_it_had_not_been(monkeypatch, stops, change):
    run = run_of(**change)
    trained(run, "whole")
    assert rows_on_disk("whole") > 0
    stop = StopAt(monkeypatch, *stops)
    trained(run, "stopped")
    assert stop.steps == set()
    assert differences(end_of("stopped"), end_of("whole")) == []


@pytest.mark.usefixtures("data")
def test_every_row_is_trained_once_an_epoch_however_often_the_run_is_stopped(monkeypatch):
    learn, seen = Trainer.learn, {}

    def noting(trainer, ready):
        learn(trainer, ready)
        seen.setdefault(trainer.epoch, []).extend(ready.batch.rows.tolist())

    StopAt(monkeypatch, 3, 8, 9, 20)
    monkeypatch.setattr(Trainer, "learn", noting)
    trained(run_of(), "stopped")
    assert [sorted(rows) for rows in seen.values()] == [list(range(ROWS))] * 3


@pytest.mark.usefixtures("data")
def test_an_evaluation_that_was_cut_short_is_made_anew(monkeypatch):
    run = run_of(progressive=False)
    trained(run, "whole")
    logits, left = Scorer.logits, [2]

    def stopping(scorer, batch):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return logits(scorer, batch)

    monkeypatch.setattr(Scorer, "logits", stopping)
    trained(run, "stopped")
    assert left[0] < 0
    assert differences(end_of("stopped"), end_of("whole")) == []


@pytest.mark.usefixtures("data")
def test_a_run_goes_on_in_other_tiers_and_back_with_the_same_bits(monkeypatch):
    run = run_of()
    trained(run, "whole")
    tiers = [Tiers(), Tiers(ram=30_000, disk="rows", policy="lfu"), Tiers(ram="1GB", device="20KB"), Tiers(disk=False)]
    stopped(run, "moved", monkeypatch, 3)
    for step, each in zip((8, 13, 18), tiers, strict=False):
        moved = msgspec.structs.replace(run_of(window=step % 4, threads=2), tiers=each)
        stopped(moved, "moved", monkeypatch, step, resume=True)
    go_on(msgspec.structs.replace(run, tiers=tiers[-1]), "moved")
    assert differences(end_of("moved"), end_of("whole")) == []


@pytest.mark.usefixtures("data")
def test_ctrl_c_keeps_the_last_model_and_a_checkpoint(monkeypatch):
    run = msgspec.structs.replace(run_of(), checkpoint=Checkpoints(every_minutes=0))
    trained(run, "whole")
    stopped(run, "stopped", monkeypatch, 7, signal.SIGINT)
    with Run.load("stopped", "last") as last:
        assert last.facts["step"] == 7
    assert [path.name for path in Path("stopped/checkpoints").iterdir()] == ["step-000000000007"]
    go_on(run, "stopped")
    assert differences(end_of("stopped"), end_of("whole")) == []


def clicks(rows=900) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"item": rng.integers(0, 50, rows), "x": rng.normal(size=rows), "y": rng.integers(0, 2, rows)})


SMALL = Schema(label="y", features=[Categorical("item"), Dense("x", standardize=True)])
QUICK = {"quiet": True, "batch_size": 100, "torch_threads": 1, "model_args": {"hidden": [4]}}


def test_bad_data_are_put_right_and_the_run_goes_on():
    good = clicks(40_000)
    bad = good.assign(y=good.y.where(good.index != 39_000, 2))
    schema = Schema(label="y", features=[Categorical("item")])
    run = {**QUICK, "batch_size": 4000, "shuffle": False, "checkpoint": Checkpoints(every_minutes=0)}
    fit(good, schema, run_dir="whole", **run).close()
    with pytest.raises(DataError, match="row 39001"):
        fit(bad, schema, run_dir="stopped", **run)
    assert [path.name for path in Path("stopped/checkpoints").iterdir()] == ["step-000000000008"]
    fit(good, schema, run_dir="stopped", resume=True, **run).close()
    assert differences(end_of("stopped"), end_of("whole")) == []


def test_what_the_data_decided_stays_decided_and_a_decay_as_long(monkeypatch):
    """A standardised feature has the file surveyed, so its rows are counted: but only where nothing is known yet."""
    clicks().to_csv("rows.csv", index=False)
    options = {**QUICK, "schedule": Schedule(decay="linear"), "optimizer": SGD(lr=0.1), "epochs": 2}
    fit("rows.csv", SMALL, run_dir="whole", **options).close()
    with monkeypatch.context() as patch:
        StopAt(patch, 7)
        with pytest.raises(Terminated):
            fit("rows.csv", SMALL, run_dir="stopped", **options)
    monkeypatch.setattr("sfctr.data.sources.survey", None)
    fit("rows.csv", SMALL, run_dir="stopped", resume=True, **{**options, "torch_threads": None}).close()
    assert differences(end_of("stopped"), end_of("whole")) == []


class Drawing(nn.Module):
    """Draws from every generator, in training and in evaluation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, features):
        noise = np.random.normal() + torch.rand(1) + float(np.random.default_rng().random() * 0)
        return self.layer(features["item"] + noise).squeeze(1)


def test_a_model_that_draws_numbers_goes_on_drawing(monkeypatch):
    schema = Schema(label="y", features=[Categorical("item")])
    options = {name: value for name, value in QUICK.items() if name != "model_args"}

    def train(run_dir, **more):
        torch.manual_seed(0)
        model = Drawing()
        fit(
            clicks(), schema, model=model, run_dir=run_dir, valid=clicks(50), evaluate_every=3, **options, **more
        ).close()

    np.random.seed(7)
    train("whole")
    np.random.seed(7)
    with monkeypatch.context() as patch:
        StopAt(patch, 5)
        with pytest.raises(Terminated):
            train("stopped")
    np.random.seed(8)
    train("stopped", resume=True)
    files = [Path(run_dir, "last", "dense.safetensors").read_bytes() for run_dir in ("whole", "stopped")]
    assert files[0] == files[1]


@pytest.mark.usefixtures("data")
def test_a_run_that_has_ended_says_so_and_goes_on_for_more_epochs(caplog):
    schedule = Schedule(warmup_steps=3, decay="cosine", decay_steps=STEPS)
    run = run_of(epochs=1, evaluate_every=None, schedule=schedule)
    trained(run, "run")
    before = end_of("run")
    with Recorder():
        go_on(run, "run")
    assert "run: the run has ended, at step 8, and nothing is left to train" in caplog.text
    assert differences(end_of("run"), before) == []
    go_on(run_of(epochs=3, evaluate_every=None, schedule=schedule), "run")
    assert end_of("run")["trainer"]["loop"]["step"] == STEPS


@pytest.mark.usefixtures("data")
def test_a_length_that_the_learning_rates_follow_cannot_change():
    trained(run_of(epochs=1), "run")
    with pytest.raises(ConfigError, match=r"train.epochs is 3 and was 1 in the run that is to go on"):
        go_on(run_of(epochs=3), "run")


@pytest.mark.usefixtures("data")
def test_options_that_would_change_a_number_are_refused_by_name(monkeypatch):
    run = run_of()
    stopped(run, "run", monkeypatch, 2)
    for change, words in {
        "seed": "train.seed is 5 and was 0 in the run that is to go on, where it cannot change; set it back, or train",
        "batch_size": "train.batch_size is 5 and was 64",
        "torch_threads": "train.torch_threads is 5 and was 1",
        "clip": "train.clip is 5.0 and was not set",
    }.items():
        with pytest.raises(ConfigError, match=words):
            go_on(run_of(**{change: 5.0 if change == "clip" else 5}), "run")
    item, *others = run.tables
    data = msgspec.structs.replace(run.data, train=("valid.parquet",))
    features = (msgspec.structs.replace(run.schema.features[0], dtype="string"), *run.schema.features[1:])
    changed = {
        r'data.train is \["valid.parquet"\] and was \["train.parquet"\]': {"data": data},
        "tables.item.dim is 8 and was 4": {"tables": (msgspec.structs.replace(item, dim=8), *others)},
        'schema.features.item.dtype is "string" and was "int64"': {
            "schema": msgspec.structs.replace(run.schema, features=features)
        },
        "train.seed is 1 and was 0 in the run that is to go on, where it cannot change, nor can train.min_delta;": {
            "train": msgspec.structs.replace(run.train, seed=1, min_delta=0.5)
        },
    }
    for words, change in changed.items():
        with pytest.raises(ConfigError, match=words):
            go_on(msgspec.structs.replace(run, **change), "run")


@pytest.mark.usefixtures("data")
def test_other_data_of_the_same_name_are_refused(monkeypatch):
    stopped(run_of(), "run", monkeypatch, 2)
    pd.read_parquet("train.parquet").iloc[:-1].to_parquet("train.parquet")
    with pytest.raises(DataError, match="the training data have 501 rows, and had 502 in the run that is to go on"):
        go_on(run_of(), "run")


def test_without_a_checkpoint_the_run_begins_anew_and_says_so(caplog):
    with Recorder():
        fit(clicks(), SMALL, run_dir="run", resume=True, **QUICK).close()
    assert "run: there is no checkpoint to go on from; training begins anew" in caplog.text
    with pytest.raises(ConfigError, match="resume=True goes on with the run in run_dir=; give it"):
        fit(clicks(), SMALL, resume=True, **QUICK)


def test_a_run_killed_before_its_first_checkpoint_begins_anew_with_the_same_options(monkeypatch):
    def killed(trainer):
        raise SystemError("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", killed)
        patch.setattr("sfctr.train.run_dir._remove_what_failed", lambda run_dir: None)
        with pytest.raises(SystemError):
            fit(clicks(), SMALL, run_dir="run", **QUICK)
    Path("run/metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"train.seed is 3 and was 0"):
        fit(clicks(), SMALL, run_dir="run", resume=True, seed=3, **QUICK)
    with fit(clicks(), SMALL, run_dir="run", resume=True, **QUICK) as run:
        assert run.metrics[0]["kind"] == "train"


def test_the_newest_sound_checkpoint_is_taken_and_what_is_not_sound_is_said(monkeypatch, caplog):
    options = {**QUICK, "checkpoint": Checkpoints(every_steps=2, keep=9)}
    fit(clicks(), SMALL, run_dir="run", **options).close()
    whole = end_of("run")
    paths = sorted(Path("run/checkpoints").iterdir())
    assert [int(path.name[-3:]) for path in paths] == [2, 4, 6, 8, 9]
    for path in paths[3:]:
        with next(path.glob("dense.*")).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"?")
    with Recorder():
        fit(clicks(), SMALL, run_dir="run", resume=True, **options).close()
    assert "run: going on from step 6" in caplog.text
    assert "step-000000000008/dense.safetensors has other bytes" in caplog.text
    assert differences(end_of("run"), whole) == []
    for path in Path("run/checkpoints").iterdir():
        next(path.glob("dense.*")).unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint is sound: .*step-000000000002/dense.safetensors is miss"):
        fit(clicks(), SMALL, run_dir="run", resume=True, **options)
    assert len(list(Path("run/checkpoints").iterdir())) == 5


def test_a_run_that_fails_early_when_it_goes_on_keeps_its_checkpoints():
    fit(clicks(), SMALL, run_dir="run", **QUICK).close()
    before = sorted(str(path) for path in Path("run").rglob("*"))
    with pytest.raises(DataError):
        fit(clicks()[["item", "x"]], SMALL, run_dir="run", resume=True, **QUICK)
    assert sorted(str(path) for path in Path("run").rglob("*")) == before


def test_checkpoints_of_the_model_before_a_step_that_cannot_be_made_are_there(monkeypatch):
    """The step in which the loss is no number leaves no checkpoint of its own."""
    forward = Trainer.backward
    monkeypatch.setattr(
        Trainer, "backward", lambda t, r: (math.nan, forward(t, r)[1]) if t.step == 5 else forward(t, r)
    )
    with pytest.raises(Exception, match="the loss is nan at step 6"):
        fit(clicks(), SMALL, run_dir="run", checkpoint=Checkpoints(every_steps=2), **QUICK)
    assert sorted(path.name[-3:] for path in Path("run/checkpoints").iterdir()) == ["002", "004"]


def test_lines_of_later_steps_are_gone_when_a_run_goes_on(monkeypatch):
    options = {**QUICK, "evaluate_every": 2, "valid": clicks(50), "checkpoint": Checkpoints(every_steps=3, keep=9)}
    fit(clicks(), SMALL, run_dir="run", **options).close()
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    for step in (6, 9):
        next(Path("run/checkpoints").glob(f"*{step}")).rename(f"{step}")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "loop", lambda trainer: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(clicks(), SMALL, run_dir="run", resume=True, **options)
    kept = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert kept == [line for line in lines if line["step"] <= 3]


def test_a_run_that_was_shuffled_in_another_order_is_not_gone_on_with(monkeypatch):
    fit(clicks(), SMALL, run_dir="run", **QUICK).close()
    monkeypatch.setattr("sfctr.train.resume.ORDER", 3)
    with pytest.raises(ConfigError, match=r"in order 2 of shuffling, and this version of sfctr knows order 3 alone"):
        fit(clicks(), SMALL, run_dir="run", resume=True, **{**QUICK, "epochs": 9})

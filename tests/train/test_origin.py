"""A new run that begins from what fits of another run's checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from stopped_run import StopAt, differences, end_of

import sfctr
from sfctr.checkpoint import open_checkpoint
from sfctr.spec.errors import CheckpointError, Terminated
from sfctr.spec.optim import SGD, Adam, Schedule
from sfctr.spec.runfile import Checkpoints
from sfctr.train import fit
from sfctr.train.trainer import Trainer

SCHEMA = sfctr.Schema(
    label="y", features=[sfctr.Categorical("item", keep_strings=True), sfctr.Dense("x", standardize=True)]
)
WIDER = sfctr.Schema(label="y", features=[*SCHEMA.features, sfctr.Categorical("shop")])
TABLES = [sfctr.Table("item", dim=4, optimizer=Adam(lr=0.01), expire_after_steps=30)]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def clicks(seed: int, mean: float = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "item": [f"i{n}" for n in rng.integers(0, 50, 400)],
            "shop": rng.integers(0, 9, 400),
            "x": rng.normal(mean, size=400),
            "y": rng.integers(0, 2, 400),
        }
    )


def train(run_dir: str, data=None, schema=SCHEMA, **options):
    options = {"tables": TABLES, "model_args": {"hidden": [4]}, "optimizer": Adam(lr=0.01), **options}
    data = clicks(0) if data is None else data
    return fit(data, schema, run_dir=run_dir, batch_size=50, quiet=True, torch_threads=1, **options)


@pytest.fixture
def first():
    train("first", epochs=2).close()
    return Path("first/checkpoints/step-000000000016")


class Begun(Exception):
    pass


def begun(monkeypatch, *args, **options):
    """Rows by text, model, optimizer's state and loop of a run that has begun and trained nothing."""
    found = {}

    def run(trainer):
        store = trainer.parts.lookahead.keywords["store"]
        [block] = store.rows("item")
        found["rows"] = {
            int(key): (v.tobytes(), s.tobytes(), int(at))
            for key, v, s, at in zip(block.keys, block.vectors, block.state, block.last, strict=True)
        }
        found["model"] = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        found["moments"] = trainer.parts.optimizer.state_dict()["state"]
        found["steps"] = store.steps, trainer.step, trainer.epochs_done, trainer.lr_factor
        found["schema"] = trainer.parts.source.schema
        found["strings"] = dict(trainer.parts.source.strings("item"))
        raise Begun

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", run)
        with pytest.raises(Begun):
            train(*args, **options)
    return found


def test_rows_model_and_moments_are_those_of_the_checkpoint_and_the_loop_begins_anew(first, monkeypatch):
    saved = open_checkpoint(first)
    found = begun(monkeypatch, "second", clicks(1, mean=7), restore=first, schedule=Schedule(warmup_steps=10))
    with sfctr.Run.load("first", "last") as last:
        [block] = last.store.rows("item")
        rows = {
            int(key): (v.tobytes(), s.tobytes(), int(at))
            for key, v, s, at in zip(block.keys, block.vectors, block.state, block.last, strict=True)
        }
        model = last.model.state_dict()
    assert found["rows"] == rows and len(rows) == 50
    assert all(torch.equal(found["model"][name], value) for name, value in model.items())
    assert len(found["moments"]) == len(model) and found["moments"][0]["step"] == 16
    assert found["steps"] == (16, 0, 0, 0.1)
    assert found["schema"].features[1].mean == saved.run.schema.features[1].mean
    assert found["strings"].items() >= saved.strings()["item"].items()


def test_a_difference_is_refused_by_name_and_reported_once_allowed(first, monkeypatch, capsys):
    with pytest.raises(
        CheckpointError,
        match=r"tables.shop would be fresh \(the checkpoint has no such table\).*allow by name: tables.shop, ",
    ):
        train("second", schema=WIDER, restore=first)
    assert not Path("second").exists()
    options = {"schema": WIDER, "restore": first, "allow": ("tables.shop", "model.*", "train.optimizer")}
    found = begun(monkeypatch, "second", optimizer=SGD(lr=0.1), **options)
    assert len(found["rows"]) == 50 and found["moments"] == {}
    train("second", optimizer=SGD(lr=0.1), **options).close()
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        train("third", restore="nowhere")


def test_a_run_that_began_from_another_goes_on_as_any_run(first, monkeypatch):
    options = {
        "restore": first,
        "valid": clicks(2),
        "evaluate_every": 2,
        "min_delta": 1.0,  # the first evaluation is the best
        "epochs": 2,
        "schedule": Schedule(decay="linear"),
        "checkpoint": Checkpoints(every_steps=2, keep=1),
    }
    train("whole", clicks(1), **options).close()
    with monkeypatch.context() as patch:
        StopAt(patch, 5)
        with pytest.raises(Terminated):
            train("stopped", clicks(1), **options)
    assert max(path.name for path in Path("stopped/checkpoints").iterdir()) == "step-000000000021"
    train("stopped", clicks(1), resume=True, **options).close()
    assert differences(end_of("stopped"), end_of("whole")) == []
    assert sorted(path.name for path in Path("whole/checkpoints").iterdir()) == [
        "step-000000000018",
        "step-000000000032",
    ]


def test_a_run_stopped_before_its_first_checkpoint_begins_from_the_other_again(first, monkeypatch):
    begun(monkeypatch, "second", restore=first)
    found = begun(monkeypatch, "second", restore=first, resume=True)
    assert found["steps"][:2] == (16, 0)

"""What a run leaves that something ended: the last model, of whole steps alone, and a checkpoint where it stood between
two of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import sfctr
from sfctr.spec.errors import DiskError, ModelError
from sfctr.spec.runfile import Checkpoints
from sfctr.store import Store
from sfctr.train import fit
from sfctr.train.trainer import Trainer

SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical("item"), sfctr.Dense("x", indicator=False)])


@pytest.fixture(autouse=True)
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def clicks(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {"item": rng.integers(0, 20, 60), "x": rng.normal(size=60), "y": rng.integers(0, 2, 60)}
    return pd.DataFrame(columns).iloc[:rows]


class Failing(nn.Module):
    """In its `at`-th forward pass of training `fault` is called with the features' vectors and its own parameter."""

    def __init__(self, at: int, fault) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer = nn.BatchNorm1d(1), nn.Linear(17, 1)
        self.left, self.fault, self.modes = at, fault, []

    def forward(self, features):
        self.modes.append(self.training)
        vectors = features["item"].clone()
        weight = self.layer.weight.clone()
        x = self.norm(features["x"].reshape(-1, 1))
        if self.training:
            self.left -= 1
            if self.left == 0:
                self.fault(vectors, weight)
        return nn.functional.linear(torch.cat([vectors, x], 1), weight, self.layer.bias).squeeze(1)


def train(run_dir: str, model: nn.Module, rows: int = 60, **options):
    options = {"checkpoint": Checkpoints(every_minutes=0), "window": 2, **options}
    return fit(
        clicks(rows),
        SCHEMA,
        model=model,
        run_dir=run_dir,
        batch_size=10,
        shuffle=False,
        quiet=True,
        torch_threads=1,
        **options,
    )


def raising(error):
    def fault(*_tensors):
        raise error

    return fault


def last_model(run_dir: str) -> dict[str, bytes]:
    last = Path(run_dir, "last")
    return {
        str(p.relative_to(last)): p.read_bytes() for p in last.rglob("*") if p.suffix in (".parquet", ".safetensors")
    }


def checkpoints(run_dir: str) -> list[int]:
    return sorted(int(path.name[-12:]) for path in Path(run_dir, "checkpoints").glob("*"))


@pytest.mark.parametrize("which", ["rows", "parameter"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_are_named_and_their_step_is_not_applied(which, value):
    def fault(vectors, weight):
        (vectors if which == "rows" else weight).register_hook(lambda gradient: gradient * value)

    with pytest.raises(ModelError, match=r"the norm of the gradients is (inf|nan) at step 3, and nothing of that step"):
        train("failed", Failing(3, fault))
    train("good", Failing(9, None), rows=20).close()
    assert last_model("failed") == last_model("good")
    assert checkpoints("failed") == []


def test_gradients_whose_sum_alone_is_not_finite_are_applied():
    def fault(_vectors, weight):
        weight.register_hook(lambda gradient: torch.full_like(gradient, 3e38))

    train("run", Failing(3, fault)).close()
    assert json.loads(Path("run/last/manifest.json").read_text())["facts"]["step"] == 6


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), MemoryError(), KeyError("x")])
def test_an_error_in_a_model_keeps_the_last_model_as_it_was_before_that_step(error):
    with pytest.raises(type(error)):
        train("failed", Failing(3, raising(error)))
    train("good", Failing(9, None), rows=20).close()
    assert last_model("failed") == last_model("good")
    assert checkpoints("failed") == []


def test_an_error_between_two_steps_keeps_a_checkpoint_too(monkeypatch):
    def failing(trainer):
        if trainer.step == 4:
            raise RuntimeError("by the test")

    monkeypatch.setattr(Trainer, "evaluate_if_due", failing)
    with pytest.raises(RuntimeError, match="by the test"):
        train("failed", Failing(9, None))
    assert checkpoints("failed") == [4]


@pytest.mark.parametrize("error", [DiskError("by the test"), RuntimeError("by the test")])
def test_an_update_that_may_be_half_done_is_kept_nowhere(monkeypatch, error):
    commit, left = Store.commit, [3]

    def failing(store, *args, **more):
        left[0] -= 1
        if left[0] == 0:
            raise error
        commit(store, *args, **more)

    monkeypatch.setattr(Store, "commit", failing)
    with pytest.raises(type(error), match="by the test"):
        train("failed", Failing(9, None), checkpoint=Checkpoints(every_steps=2))
    assert not Path("failed/last").exists()
    assert checkpoints("failed") == [2]


def test_what_ended_the_run_is_raised_though_the_last_model_cannot_be_kept(caplog):
    def fault(*_tensors):
        Path("failed/last.new").write_text("in the way")
        raise RuntimeError("by the test")

    with sfctr.telemetry.Recorder(), pytest.raises(RuntimeError, match="by the test"):
        train("failed", Failing(3, fault))
    assert "the last model could not be kept at step 2: " in caplog.text


def test_every_step_is_in_training_mode_and_no_evaluation_is():
    model = Failing(99, None)
    train("run", model, valid=clicks(10), evaluate_every=2, progressive=True).close()
    one_step = [False, True]  # scored before it is learnt
    assert model.modes == 3 * [*one_step, *one_step, False]

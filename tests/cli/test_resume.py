"""`sfctr train --resume`, and how the command ends when it is asked to."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfctr.train.trainer import Trainer

QUICK = ("--set", "train.torch_threads=1", "--set", "train.batch_size=50", "--set", "checkpoint.every_minutes=0")


@pytest.fixture
def run_file(sfctr, tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"item": rng.integers(0, 50, 400), "x": rng.normal(size=400), "y": rng.integers(0, 2, 400)})
    rows.to_parquet(tmp_path / "rows.parquet")
    Path("run.toml").write_text(sfctr("init", "rows.parquet", "--label", "y").out)


def losses(run):
    return [json.loads(line).get("loss") for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def train(sfctr, run, *more):
    return sfctr("train", "run.toml", "--run", run, *QUICK, *more)


@pytest.fixture
def stopped(sfctr, run_file, monkeypatch):
    """A run that SIGTERM ended in its third step, and how."""
    backward = Trainer.backward

    def stopping(trainer, ready):
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return backward(trainer, ready)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "backward", stopping)
        return train(sfctr, "run")


def test_sigterm_leaves_a_checkpoint_and_exit_code_143(stopped):
    assert stopped.code == 143
    assert stopped.err.splitlines()[-1] == (
        "sfctr: terminated; what was learnt until then is in run/last/; --resume goes on with it"
    )
    assert os.listdir("run/checkpoints") == ["step-000000000003"]


@pytest.mark.usefixtures("stopped")
def test_a_run_goes_on_with_resume_and_ends_as_one_that_was_not_stopped(sfctr):
    assert train(sfctr, "whole").code == 0
    refused = train(sfctr, "run", "--resume", "--set", "train.seed=1")
    assert refused.code == 2
    assert "train.seed is 1 and was 0 in the run that is to go on" in refused.err
    done = train(sfctr, "run", "--resume")
    assert done.code == 0
    assert "sfctr: run: going on from step 3" in done.err.splitlines()
    assert Path("run/last/dense.safetensors").read_bytes() == Path("whole/last/dense.safetensors").read_bytes()
    assert losses("run") == losses("whole")
    again = train(sfctr, "run", "--resume")
    assert again.code == 0 and "the run has ended, at step 40, and nothing is left to train" in again.err


@pytest.mark.usefixtures("stopped")
def test_a_run_is_neither_resumed_nor_replaced_unasked_nor_both_at_once(sfctr):
    assert "already holds a run; add --resume to go on with it or --overwrite to replace" in train(sfctr, "run").err
    both = train(sfctr, "run", "--resume", "--overwrite")
    assert (both.code, both.err.count("\n")) == (2, 1)
    assert "--resume goes on with the run that --overwrite replaces" in both.err
    assert train(sfctr, "run", "--overwrite").code == 0
    assert os.listdir("run/checkpoints") == ["step-000000000040"]


@pytest.mark.usefixtures("stopped")
def test_inspect_shows_a_checkpoint_and_finds_what_is_damaged(sfctr):
    train(sfctr, "run", "--resume", "--set", "checkpoint.every_steps=10", "--set", "checkpoint.keep=9")
    directory = Path("run/checkpoints/step-000000000020")
    done = sfctr("inspect", directory)
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert ["step", "20"] in lines
    assert "rows   all at step 3, those changed until 10, 20" in done.out.splitlines()
    assert ["item", "50"] in lines
    assert ["state.json", "sound"] in [[line[0], line[-1]] for line in lines if line]
    assert "auc" in [line[0] for line in lines if line]
    with (directory / "rows" / "000-001.rows").open("r+b") as file:
        file.seek(90)
        file.write(b"?")
    done = sfctr("inspect", directory)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "000-001.rows has other bytes" in done.err
    assert [line.split()[-1] for line in done.out.splitlines() if "000-001" in line] == ["damaged"]


@pytest.mark.usefixtures("stopped")
def test_a_new_run_begins_from_what_fits_of_a_checkpoint(sfctr):
    checkpoint = "run/checkpoints/step-000000000003"
    begun = train(sfctr, "new", "--restore", checkpoint)
    assert begun.code == 0 and "restored: 1 tables, " in begun.err
    refused = train(sfctr, "other", "--restore", checkpoint, "--set", "model.args.hidden=[3]")
    assert refused.code == 2 and "or allow by name: model." in refused.err
    assert not Path("other").exists()
    allowed = train(sfctr, "other", "--restore", checkpoint, "--set", "model.args.hidden=[3]", "--allow", "model.*")
    assert allowed.code == 0 and "fresh: model." in allowed.err
    refused = train(sfctr, "third", "--allow", "model.*")
    assert refused.code == 2 and "--allow names what may differ" in refused.err

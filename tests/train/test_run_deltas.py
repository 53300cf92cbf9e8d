"""Deltas of a run that trains: when they are written, and that they go on with a run that goes on."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from stopped_run import STEPS, StopAt, run_of, trained, write_data

from sfctr.export import apply_deltas, deltas, read_delta
from sfctr.spec.errors import ConfigError, Terminated
from sfctr.spec.optim import Schedule
from sfctr.spec.runfile import Checkpoints, Export, RunFile
from sfctr.train import Run, train_run
from sfctr.train.trainer import Trainer


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data()


def followed(every: int | None = 5, **more) -> RunFile:
    return msgspec.structs.replace(run_of(evaluate_every=None), export=Export(delta_every=every), **more)


def numbered(run_dir: str) -> list[Path]:
    return sorted(path for path in Path(run_dir, "deltas").iterdir() if path.name != "base")


def contents(run_dir: str) -> dict[str, bytes]:
    """All but what the random id of the base is part of."""
    folder = Path(run_dir, "deltas")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".json"
    }


def is_all_of(run_dir: str) -> bool:
    """Whether base and deltas are what the run came to."""
    apply_deltas(Path(run_dir, "deltas", "base"), numbered(run_dir), Path("applied"))
    with Run.load(run_dir, "last") as run:
        run.export("full")
    return all((Path("applied") / path.name).read_bytes() == path.read_bytes() for path in tables_of("full"))


def tables_of(folder: str) -> list[Path]:
    return [path for path in Path(folder).iterdir() if path.name != "export.json"]


def test_a_run_writes_a_base_when_the_first_is_due_and_the_last_delta_at_its_end():
    trained(followed(), "run")
    deltas = [read_delta(path) for path in numbered("run")]
    assert [delta.step for delta in deltas] == [10, 15, 20, STEPS]
    assert sum(delta.removed["item"] for delta in deltas) > 20
    assert is_all_of("run")


@pytest.mark.parametrize("stop", [4, 7, 10, 13, STEPS])
def test_a_run_that_was_stopped_writes_the_deltas_of_one_that_was_not(monkeypatch, stop):
    trained(followed(), "whole")
    StopAt(monkeypatch, stop)
    trained(followed(), "stopped")
    assert contents("stopped") == contents("whole")
    assert is_all_of("stopped")


def test_deltas_that_came_after_the_checkpoint_are_written_again_and_are_the_same(monkeypatch):
    run = followed(2, checkpoint=Checkpoints(every_steps=9, every_minutes=0, at_end=False))
    kill_at(monkeypatch, run, "run", 17)
    before = {path.name: read_delta(path) for path in numbered("run")}
    assert list(before)[-1] == "000007" and before["000007"].step == 16
    train_run(run, Path("run"), quiet=True, resume=True).close()
    after = {path.name: read_delta(path) for path in numbered("run")}
    assert after.items() >= before.items()  # ids and all: who has applied one of them goes on
    assert is_all_of("run")


def kill_at(monkeypatch, run, run_dir, step):
    """Stopped in that step without a checkpoint, as a killed process leaves it."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_keep_what_was_learnt", lambda trainer: trainer.checkpoint_written())
        StopAt(patch, step)
        with pytest.raises(Terminated):
            train_run(run, Path(run_dir), quiet=True)


def test_a_run_whose_deltas_were_taken_away_begins_them_anew(monkeypatch, caplog):
    kill_at(monkeypatch, followed(), "run", 13)
    shutil.rmtree("run/deltas")
    train_run(followed(), Path("run"), quiet=True, resume=True).close()
    assert "they begin anew, with a new base" in caplog.text
    assert [read_delta(path).step for path in numbered("run")] == [20, STEPS]
    assert is_all_of("run")


def test_a_run_may_go_on_with_deltas_and_without(monkeypatch):
    options = {"evaluate_every": None, "schedule": Schedule(warmup_steps=3, decay="cosine", decay_steps=STEPS)}
    whole, first = run_of(**options).train, run_of(max_steps=16, **options).train
    kill_at(monkeypatch, followed(train=whole), "run", 13)
    train_run(followed(None, train=first), Path("run"), resume=True).close()
    assert [path.name for path in numbered("run")] == ["000001"]
    train_run(followed(4, train=whole), Path("run"), quiet=True, resume=True).close()
    assert [read_delta(path).step for path in numbered("run")] == [20, STEPS]  # the base is of step 16
    assert is_all_of("run")


def test_a_run_without_the_option_writes_none():
    trained(followed(None), "run")
    assert not Path("run/deltas").exists()


def test_the_option_is_checked():
    with pytest.raises(ConfigError, match="delta_every is 0 and must be at least 1"):
        Export(delta_every=0)


@pytest.mark.parametrize("moment", ["sync_all", "put_in_place", "write_delta"])
def test_a_run_that_is_stopped_while_it_writes_a_delta_loses_nothing(monkeypatch, moment):
    trained(followed(), "whole")
    calls = []

    def stopping(*given):
        calls.append(moment)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*given)

    original = getattr(deltas, moment)
    monkeypatch.setattr(deltas, moment, stopping)
    trained(followed(), "stopped")
    assert contents("stopped") == contents("whole")
    assert is_all_of("stopped")

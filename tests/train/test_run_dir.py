"""Whose a run's directory is, and what is in it after whatever ended the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sfctr.spec.errors import ConfigError
from sfctr.spec.tables import Table
from sfctr.store import Store
from sfctr.telemetry import Recorder
from sfctr.train.run_dir import claimed, next_run_dir

HOLDING = """
import sys, time
from pathlib import Path
from sfctr.train.run_dir import claimed

with claimed(Path(sys.argv[1])):
    Path(sys.argv[1], "run.toml").write_text("its own")
    print("claimed", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
    """A directory in which another process trains, and that process."""
    command = [sys.executable, "-c", HOLDING, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "claimed\n"
        yield tmp_path / "run", process
        process.kill()


@pytest.mark.processes
@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_directory_in_which_a_process_trains_is_refused_until_it_is_dead(held, options):
    run_dir, process = held
    words = f"process {process.pid} trains in .*run; wait until it has ended, or choose"
    with pytest.raises(ConfigError, match=words), claimed(run_dir, **options):
        pass
    assert sorted(os.listdir(run_dir)) == ["lock", "run.toml"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (run_dir / "lock").exists()
    with claimed(run_dir, **(options or {"resume": True})):
        assert (run_dir / "lock").read_text() == str(os.getpid())
    assert not (run_dir / "lock").exists()


def test_two_runs_of_one_process_do_not_share_a_directory(tmp_path):
    with claimed(tmp_path), pytest.raises(ConfigError, match=f"process {os.getpid()} trains in"), claimed(tmp_path):
        pass


def test_a_place_that_knows_no_locks_is_used_and_that_is_said(tmp_path, monkeypatch, caplog):
    def refuse(file, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with Recorder(), claimed(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert "cannot be locked (Operation not supported): see to it that no other run writes there" in caplog.text


def test_a_run_that_is_there_is_refused_or_gone_on_with(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    words = r"already holds a run; choose another directory .*, go on with it \(--resume, or resume=True\)"
    with pytest.raises(ConfigError, match=words), claimed(tmp_path):
        pass
    with claimed(tmp_path, resume=True):
        assert (tmp_path / "checkpoints").exists()


def fails(run_dir, *made, **options):
    with pytest.raises(RuntimeError), claimed(run_dir, **options):
        for name in made:
            (run_dir / name).mkdir() if "." not in name else (run_dir / name).write_text("new")
        raise RuntimeError


def test_of_a_run_that_failed_before_it_kept_anything_nothing_stays(tmp_path):
    fails(tmp_path / "a", "run.toml", "metrics.jsonl", "checkpoints")
    assert os.listdir(tmp_path) == []
    fails(tmp_path / "b", "run.toml", "metrics.jsonl", "checkpoints", "checkpoints/step-1")
    assert sorted(os.listdir(tmp_path / "b")) == ["checkpoints", "metrics.jsonl", "run.toml"]
    fails(tmp_path / "b", resume=True)
    assert sorted(os.listdir(tmp_path / "b")) == ["checkpoints", "metrics.jsonl", "run.toml"]


def test_a_run_that_was_to_be_replaced_is_back_where_the_new_one_never_began(tmp_path):
    (tmp_path / "run.toml").write_text("old")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    fails(tmp_path, "run.toml", overwrite=True)
    assert (tmp_path / "run.toml").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "notes.txt", "run.toml"]
    with claimed(tmp_path, overwrite=True):
        assert sorted(os.listdir(tmp_path)) == [".replaced", "lock", "notes.txt"]
        (tmp_path / "run.toml").write_text("new")
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "run.toml"]


def test_a_run_that_was_being_replaced_when_the_process_was_killed_is_back(tmp_path):
    (tmp_path / ".replaced" / "checkpoints").mkdir(parents=True)
    (tmp_path / ".replaced" / "run.toml").write_text("old")
    with claimed(tmp_path, resume=True):
        assert (tmp_path / "run.toml").read_text() == "old"
        assert (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("moved", [["run.toml"], ["run.toml", "metrics.jsonl", "best"]])
def test_one_that_was_half_moved_is_whole_again(tmp_path, moved):
    for name in ("run.toml", "metrics.jsonl", "best", "last", "checkpoints"):
        home = tmp_path / ".replaced" if name in moved else tmp_path
        home.mkdir(exist_ok=True)
        (home / name).write_text(name)
    with claimed(tmp_path, resume=True):
        assert sorted(os.listdir(tmp_path)) == ["best", "checkpoints", "last", "lock", "metrics.jsonl", "run.toml"]


def test_rows_of_a_store_that_is_open_stay_and_those_of_a_killed_one_go(tmp_path):
    (tmp_path / "sfctr-rows-0123" / "group-0").mkdir(parents=True)
    with Store([Table("item")], directory=tmp_path):
        [rows] = tmp_path.glob("sfctr-rows-*")
        with claimed(tmp_path):
            assert rows.exists() and rows.name != "sfctr-rows-0123"


def test_the_names_of_directories_that_are_made_are_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("sfctr.train.run_dir.sync", synced.append)
    with claimed(tmp_path / "runs" / "a"):
        assert synced == [tmp_path / "runs", tmp_path]


def test_rows_of_another_store_that_is_in_use_there_stay(tmp_path):
    """Such as that of who evaluates the run while it goes on."""
    with Store([Table("item", dim=1)], directory=tmp_path) as store, claimed(tmp_path):
        [rows] = tmp_path.glob("sfctr-rows-*")
        assert rows.exists() and store.num_rows("item") == 0


def test_new_runs_are_numbered(tmp_path):
    assert next_run_dir("x", tmp_path) == tmp_path / "x"
    (tmp_path / "x").mkdir()
    (tmp_path / "x-2").mkdir()
    assert next_run_dir("x", tmp_path) == tmp_path / "x-3"

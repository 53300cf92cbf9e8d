"""`sfctr launch` starts `sfctr train` in many processes; what they are told they read from the environment."""

from __future__ import annotations

import os

import pytest
import typer

from sfctr.cli.world import MISTAKE, Place, _warn_of_shared_store, joined, note_mistake, place_of
from sfctr.spec.errors import ConfigError, DataError, PeerError
from sfctr.telemetry import Recorder
from sfctr.train.run_dir import began_here

RUN = '[data]\ntrain = ["a.csv"]\n[schema]\nlabel = "y"\n[[schema.features]]\nkind = "dense"\nname = "x"\n'
TOLD = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2940"}


@pytest.fixture
def started(monkeypatch):
    """What the launcher was asked for, in place of starting it."""
    calls: list[tuple[list[str], dict]] = []
    monkeypatch.setattr(
        "sfctr.parallel.launcher.launch", lambda program, **options: calls.append((program, options)) or 7
    )
    for name in (
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
        "LOGLEVEL",
        "SFCTR_LAUNCHER",
        MISTAKE,
        "TORCH_CPP_LOG_LEVEL",
    ):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
        monkeypatch.delenv(name)
    return calls


def test_options_that_are_not_its_own_are_those_of_train(sfctr, started, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    done = sfctr("launch", "run.toml", "--processes", 3, "--set", "train.seed=2", "--run", "there", "--resume")
    assert (done.code, done.err) == (7, "")
    program = ["-m", "sfctr", "train", "run.toml", "--set", "train.seed=2", "--run", "there", "--resume"]
    assert started == [(program, {"processes": 3, "restarts": 3, "nodes": 1, "node_rank": None, "rendezvous": None})]
    assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1" and os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert int(os.environ["OMP_NUM_THREADS"]) == max(os.cpu_count() // 3, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "train.sed=2"], "did you mean 'seed'?"),
        (["--nodes", 2], "add --rendezvous HOST:PORT"),
        (["--nodes", 2, "--rendezvous", "10.0.0.1"], "must be HOST:PORT, such as 10.0.0.1:29400"),
        (["--nodes", 2, "--rendezvous", "10.0.0.1:99999"], "must be HOST:PORT, such as 10.0.0.1:29400"),
        (
            ["--nodes", 2, "--rendezvous", "10.0.0.1:29400", "--node-rank", 2],
            "--node-rank is 2 and must be below --nodes, 2",
        ),
        (["--set", "parallel.tensor=3"], "parallel.tensor is 3 and 2 processes train"),
        (["--set", "parallel.shares=[16]"], "parallel.shares"),
        (["--overwrit"], "No such option"),
        (["--run", "taken"], "taken already holds a run"),
    ],
)
def test_a_mistake_is_said_before_anything_starts(sfctr, started, tmp_path, options, words):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.toml").write_text(RUN)
    done = sfctr("launch", "run.toml", "--processes", 2, *options)
    assert done.code == 2 and words in done.err and not started


def test_a_process_that_no_launcher_has_started_is_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert place_of({}) is None
    with joined(timeout_s=1.0) as job:
        assert job is None


def test_a_process_knows_its_place_by_its_environment():
    assert place_of(TOLD) == Place(rank=3, size=4, local_rank=1, address="10.0.0.1", port=2940)
    more = {
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "x",
    }
    place = place_of(TOLD | more)
    assert place is not None
    assert (place.restarts, place.max_restarts, place.shared_store, place.job) == (2, 3, True, "x")


@pytest.mark.parametrize(("name", "value"), [("MASTER_PORT", None), ("WORLD_SIZE", "many")])
def test_half_of_what_a_launcher_says_is_refused(name, value):
    told = {key: text for key, text in TOLD.items() if key != name} | ({name: value} if value else {})
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; start with 'sfctr launch' or torchrun"):
        place_of(told)


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "0"}, False),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_MAX_RESTARTS": "3"}, False),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "1"}, False),
    ],
)
def test_restarts_in_a_shared_store_are_warned_of_once(caplog, more, warned):
    with Recorder():
        place = place_of(TOLD | {"RANK": "0"} | more)
        assert place is not None
        _warn_of_shared_store(place)
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in caplog.text) is warned


def test_after_a_mistake_of_the_users_no_attempt_begins(monkeypatch, tmp_path):
    monkeypatch.setenv(MISTAKE, str(tmp_path / "mistake"))
    for error in (PeerError("rank 1 has ended"), ValueError("a bug")):
        note_mistake(error)
        assert not (tmp_path / "mistake").exists()
    note_mistake(DataError("label 2", file="a.csv"))
    assert (tmp_path / "mistake").read_text() == "a.csv: label 2"
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(typer.Exit) as left, joined(timeout_s=1.0):
        pass
    assert left.value.exit_code == 2


def test_a_run_is_known_as_begun_by_one_of_the_launchers_of_a_job(tmp_path):
    assert not began_here(tmp_path, "sfctr a 7 11")
    (tmp_path / "job").write_text("sfctr a 7 11\nsfctr b 9 12")
    assert began_here(tmp_path, "sfctr b 9 12\nsfctr c 3 40")
    assert not began_here(tmp_path, "sfctr b 9 13\nsfctr c 3 40")
    assert not began_here(tmp_path, "")

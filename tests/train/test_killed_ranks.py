"""Processes that train a run together are killed, and the job goes on by itself to the end it would have come to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stopped_run import differences, end_of, run_of, write_data

from sfctr.spec.runfile_text import render_run_file

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(400)]


def launch(run_dir: str) -> subprocess.Popen:
    arguments = ["launch", "run.toml", "--processes", "2", "--restarts", "3", "--run", run_dir]
    arguments += ["--set", "checkpoint.every_steps=1", "--set", "parallel.timeout_s=20"]
    with open(f"{run_dir}.txt", "w") as words:
        return subprocess.Popen([sys.executable, "-m", "sfctr", *arguments], stderr=words, stdout=words)


def workers(launcher: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
            command = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == launcher and b"sfctr" in command and b"train" in command:
            found.append(int(path.parent.name))
    return sorted(found)


def kill_after(launcher: subprocess.Popen, step: int, run_dir: str, which: int) -> None:
    """Kill a worker once the checkpoint of a step is there."""
    until = time.monotonic() + 120
    while not any((Path(run_dir) / "checkpoints").glob(f"step-*{step:03}")):
        assert time.monotonic() < until and launcher.poll() is None, f"no checkpoint of step {step}"
        time.sleep(0.01)
    os.kill(workers(launcher.pid)[which], signal.SIGKILL)


def test_two_kills_in_an_epoch_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data()
    Path("run.toml").write_text(render_run_file(run_of()))
    whole = launch("whole")
    assert whole.wait(120) == 0, Path("whole.txt").read_text()
    killed = launch("killed")
    kill_after(killed, 2, "killed", 1)
    kill_after(killed, 5, "killed", 0)
    killed.wait(150)
    words = Path("killed.txt").read_text()
    assert killed.returncode == 0, words
    assert words.count("going on from step") == 2, words
    assert differences(end_of("killed"), end_of("whole")) == []

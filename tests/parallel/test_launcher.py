"""Jobs of two processes under torch's launcher: what fails is started anew, or named, and nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(120)]

DRIVER = """
import os, sys
from sfctr.cli.launch import _prepare
from sfctr.parallel.launcher import launch
from sfctr.spec.errors import SfctrError

_prepare(os.environ, 2)
try:
    sys.exit(launch(["worker.py", sys.argv[1]], processes=2, restarts=int(sys.argv[2])))
except SfctrError as error:
    print(f"sfctr: error: {error}", file=sys.stderr)
    sys.exit(2)
"""

WORKER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from sfctr.cli.world import joined
from sfctr.spec.errors import SfctrError

how = {
    "killed once": lambda: job.restarted or os.kill(os.getpid(), signal.SIGKILL),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hangs": lambda: time.sleep(60),
    "trains on": lambda: time.sleep(0.1),
}[sys.argv[1]]
try:
    with joined(timeout_s=4 if sys.argv[1] == "hangs" else 60) as job:
        rank, peers = job.world.rank, job.world.peers("x")
        Path(f"pid-{rank}").write_text(str(os.getpid()))
        print(f"rank {rank} restarted={job.restarted}", flush=True)
        for turn in range(2000 if sys.argv[1] == "trains on" else 5):
            peers.gather("x", np.zeros(1, np.uint8))
            if rank == 1 and turn == 3 or sys.argv[1] == "trains on":
                how()
except SfctrError as error:
    print(f"sfctr: error: {error}", file=sys.stderr, flush=True)
    sys.exit(2)
"""


def start(directory: Path, how: str, restarts: int) -> subprocess.Popen[str]:
    (directory / "worker.py").write_text(WORKER)
    environment = {name: value for name, value in os.environ.items() if name != "LOGLEVEL"}
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, how, str(restarts)],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(directory: Path, how: str, restarts: int = 0) -> tuple[int, str, str]:
    job = start(directory, how, restarts)
    try:
        out, err = job.communicate(timeout=100)
    finally:
        job.kill()
    return job.returncode, out, err


def test_a_job_whose_process_was_killed_starts_anew(tmp_path):
    code, out, err = run(tmp_path, "killed once", restarts=1)
    assert (code, out.splitlines()) == (0, ["rank 0 restarted=False", "rank 0 restarted=True"]), err


@pytest.mark.long
def test_a_job_without_restarts_says_which_process_was_killed(tmp_path):
    code, _, err = run(tmp_path, "killed")
    assert code == 2
    assert re.search(r"sfctr: error: rank 1 \(pid \d+\) was ended by SIGKILL, and 0 restarts were used up", err)


def test_a_process_that_hangs_is_named_and_ends_the_job(tmp_path):
    code, _, err = run(tmp_path, "hangs")
    assert code == 2
    assert re.search(r"^sfctr: error: rank 1 \([^,]+, pid \d+\) has not answered for 4 s", err, re.MULTILINE)
    assert "Traceback" not in err


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_no_process_trains_on_when_its_launcher_has_ended(tmp_path, number):
    job = start(tmp_path, "trains on", 0)
    files = [tmp_path / "pid-0", tmp_path / "pid-1"]
    until = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files) and time.monotonic() < until:
        time.sleep(0.1)
    pids = [int(file.read_text()) for file in files]
    try:
        assert not any(map(gone, pids))
        job.send_signal(number)
        job.communicate(timeout=60)
        until = time.monotonic() + 30
        while not all(map(gone, pids)) and time.monotonic() < until:
            time.sleep(0.1)
        assert all(map(gone, pids))
    finally:
        for pid in pids:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)

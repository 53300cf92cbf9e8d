"""A run over three machines, each a network namespace: cut one off and bring it back, or have it answer slowly."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from machines import machines, why_not
from ranks_run import assert_near, assert_same_run
from stopped_run import end_of, run_of, write_data

from sfctr.spec.runfile_text import render_run_file
from sfctr.train.fit import train_there

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(400)]

PLACE = "10.77.0.1:29478"


@pytest.fixture
def three(tmp_path, monkeypatch):
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    write_data()
    Path("run.toml").write_text(render_run_file(run_of()))
    train_there(run_of(), Path("alone"), quiet=True)
    with machines(3) as hosts:
        yield hosts


def start(host, number: int, run_dir: str):
    arguments = ["launch", "run.toml", "--processes", "1", "--nodes", "3", "--node-rank", str(number)]
    arguments += ["--rendezvous", PLACE, "--restarts", "5", "--run", run_dir]
    arguments += ["--set", "checkpoint.every_steps=1", "--set", "parallel.timeout_s=8"]
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    with Path(f"{run_dir}-{number}.txt").open("a") as words:
        return host.start([sys.executable, "-m", "sfctr", *arguments], Path.cwd(), environment, words)


def end(jobs, run_dir: str) -> list[int]:
    try:
        return [job.wait(180) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
        for path in sorted(Path().glob(f"{run_dir}-*.txt")):
            print(path, path.read_text()[-3000:])


def test_a_machine_that_was_cut_off_comes_back_and_the_run_ends_as_if_it_had_not(three):
    jobs = [start(host, number, "cut") for number, host in enumerate(three)]
    until = time.monotonic() + 120
    while not any(Path("cut/checkpoints").glob("step-*004")):
        assert time.monotonic() < until and all(job.poll() is None for job in jobs)
        time.sleep(0.01)
    three[2].unplug()
    time.sleep(10)
    os.killpg(jobs[2].pid, signal.SIGKILL)
    jobs[2].wait()
    three[2].plug_in()
    jobs[2] = start(three[2], 2, "cut")
    assert end(jobs, "cut") == [0, 0, 0]
    assert_same_run("cut", "alone")


def test_a_slow_line_changes_no_number_and_is_what_bounds_the_run(three):
    for host in three:
        host.slow_down("300kbit")
    jobs = [start(host, number, "slow") for number, host in enumerate(three)]
    assert end(jobs, "slow") == [0, 0, 0]
    assert_same_run("slow", "alone")
    assert_near(end_of("slow")["membership"], end_of("alone")["membership"])
    lines = [json.loads(line) for line in Path("slow/metrics.jsonl").read_text().splitlines()]
    names = ("bring", "send", "sum", "share", "step")
    spent = {name: sum(line.get("stage_s", {}).get(name, 0) for line in lines) for name in names}
    # Rows, gradients and the dense part stand in the way of a step; keys travel while others train.
    assert spent["bring"] + spent["send"] + spent["sum"] > 0.5 * (spent["step"] + spent["bring"]), spent
    assert spent["share"] > 0, spent

"""A job over three machines, each a network namespace with an address of its own."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest
from machines import machines, why_not

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(150)]

DRIVER = """
import os, sys
from sfctr.cli.launch import _prepare
from sfctr.parallel.launcher import launch
from sfctr.spec.errors import SfctrError

_prepare(os.environ, 1)
try:
    sys.exit(launch(["worker.py"], processes=1, restarts=0, nodes=3, node_rank=int(sys.argv[1]),
                    rendezvous="10.77.0.1:29477"))
except SfctrError as error:
    sys.exit(f"sfctr: error: {error}")
"""

WORKER = """
import os, sys, time
import numpy as np
from pathlib import Path
from sfctr.cli.world import joined
from sfctr.spec.errors import SfctrError

try:
    with joined(timeout_s=5.0) as job:
        rank, peers = job.world.rank, job.world.peers("x")
        parts = peers.gather("x", np.full(100_000 * (rank + 1), rank, np.uint8))
        assert [(part == q).all() and len(part) == 100_000 * (q + 1) for q, part in enumerate(parts)] == [True] * 3
        Path(f"met-{rank}").touch()
        while Path("go-on").exists():
            peers.gather("x", np.zeros(1, np.uint8))
            time.sleep(0.05)
        peers.gather("x", np.zeros(1, np.uint8))
except SfctrError as error:
    print(f"sfctr: error: {error}", file=sys.stderr, flush=True)
    sys.exit(2)
"""


@pytest.fixture
def three(tmp_path):
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with machines(3) as hosts:
        yield hosts


def start(hosts, directory):
    (directory / "worker.py").write_text(WORKER)
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    return [
        host.start([sys.executable, "-c", DRIVER, str(number)], directory, environment)
        for number, host in enumerate(hosts)
    ]


def end(jobs) -> None:
    for job in jobs:
        job.kill()
        print(job.communicate()[0])


def test_machines_meet_by_an_address_and_exchange_what_they_have(three, tmp_path):
    jobs = start(three, tmp_path)
    try:
        said = [job.communicate(timeout=60)[0] for job in jobs]
    finally:
        end(jobs)
    assert [job.returncode for job in jobs] == [0, 0, 0], "\n".join(said)
    assert sorted(path.name for path in tmp_path.glob("met-*")) == ["met-0", "met-1", "met-2"]


@pytest.mark.long
def test_a_machine_that_is_cut_off_ends_the_job_on_all_in_words(three, tmp_path):
    (tmp_path / "go-on").touch()
    jobs = start(three, tmp_path)
    try:
        while len(list(tmp_path.glob("met-*"))) < 3 and all(job.poll() is None for job in jobs):
            time.sleep(0.1)
        three[2].unplug()
        said = [job.communicate(timeout=60)[0] for job in jobs[:2]]  # torch's launcher waits long on the one cut off
    finally:
        end(jobs)
    assert all(job.returncode for job in jobs[:2])
    for words in said:
        assert re.search(r"sfctr: error: rank \d \([^,]+, pid \d+\) has", words), words

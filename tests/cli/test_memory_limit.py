"""A run that nobody told about tiers finds its memory limit by itself, and finishes far beyond it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
ROWS, DIM = 150_000, 256
"""Every row brings a key of its own: 150,000 rows of dim 256 with Adam are 460 MB."""

RUN = f"""
tables = [{{ name = "item", dim = {DIM}, linear = {{ kind = "sgd", lr = 0.1 }} }}]
[data]
train = ["rows.parquet"]
shuffle = false
[schema]
label = "y"
features = [{{ kind = "categorical", name = "item" }}]
[model]
name = "fm"
[train]
batch_size = 5000
window = 1
torch_threads = 1
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that this process may make and put another into."""
    path = Path("/sys/fs/cgroup") / f"sfctr-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "memory.max").write_text("max")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield path
    while "populated 1" in (path / "cgroup.events").read_text():  # a process that has ended stays a moment
        time.sleep(0.01)
    path.rmdir()


def bare_bytes(kind: str) -> int:
    """What the kernel says of a process that has imported what training needs."""
    code = "import torch, pyarrow.parquet, sfctr.train; print(open('/proc/self/status').read())"
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    [line] = [line for line in text.splitlines() if line.startswith(f"{kind}:")]
    return 1024 * int(line.split()[1])


def train(folder: Path, before: Callable[[], None]) -> str:
    pq.write_table(
        pa.table({"item": np.arange(ROWS, dtype=np.int64), "y": np.arange(ROWS, dtype=np.int8) % 2}),
        folder / "rows.parquet",
    )
    (folder / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "sfctr", "train", "run.toml"]
    found = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, preexec_fn=before)  # noqa: PLW1509
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout + found.stderr


def check(folder: Path, said: str) -> None:
    assert said.count("of tiers.ram after") == 1 and "from now on some are kept in" in said
    assert pq.read_metadata(folder / "runs" / "run" / "last" / "rows" / "000.parquet").num_rows == ROWS
    assert not list((folder / "runs" / "run").glob("sfctr-rows-*"))


def test_in_a_control_group_it_spills_says_when_and_finishes(tmp_path: Path, group: Path) -> None:
    limit = bare_bytes("RssAnon") + (300 << 20)
    (group / "memory.max").write_text(str(limit))
    said = train(tmp_path, lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    check(tmp_path, said)


def test_under_a_limit_of_its_own_it_spills_says_when_and_finishes(tmp_path: Path) -> None:
    limit = bare_bytes("VmData") + (600 << 20)  # what is reserved counts, too
    said = train(tmp_path, lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
    check(tmp_path, said)

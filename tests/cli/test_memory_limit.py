"""A run that nobody told about tiers finds its memory limit by itself, and finishes far beyond it."""

from __future__ import annotations

import os
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
ROWS, DIM = 110_000, 256
"""Every row brings a key of its own: 110,000 rows of dim 256 with Adam are 340 MB."""

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
batch_size = 1000
window = 1
torch_threads = 1
"""


class Group:
    """A control group that holds what is put into it to a bound of memory, of either version."""

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup")
        second = (root / "cgroup.controllers").exists()
        self.path = (root if second else root / "memory") / f"sfctr-test-{os.getpid()}"
        self.limit = "memory.max" if second else "memory.limit_in_bytes"

    def bound(self, num_bytes: int) -> None:
        (self.path / self.limit).write_text(str(num_bytes))

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group() -> Iterator[Group]:
    """Skips where none can be made."""
    made = Group()
    try:
        made.path.mkdir()
        if not (made.path / made.limit).exists():
            made.path.rmdir()
            pytest.skip("this machine has no control groups of memory")
        made.bound(1 << 40)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    while (made.path / "cgroup.procs").read_text():  # a process that has ended stays a moment
        time.sleep(0.01)
    made.path.rmdir()


def bare_bytes() -> int:
    """Anonymous memory of a process that has imported what training needs."""
    code = "import torch, pyarrow.parquet, sfctr.train; print(open('/proc/self/status').read())"
    text = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    [line] = [line for line in text.splitlines() if line.startswith("RssAnon:")]
    return 1024 * int(line.split()[1])


def train(folder: Path, before: Callable[[], None]) -> str:
    pq.write_table(
        pa.table({"item": np.arange(ROWS, dtype=np.int64), "y": np.arange(ROWS, dtype=np.int8) % 2}),
        folder / "rows.parquet",
    )
    (folder / "run.toml").write_text(RUN)
    command = [sys.executable, "-m", "sfctr", "train", "run.toml"]
    found = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, preexec_fn=before)
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout + found.stderr


def check(folder: Path, said: str) -> None:
    assert said.count("of tiers.ram after") == 1 and "from now on some are kept in" in said
    assert pq.read_metadata(folder / "runs" / "run" / "last" / "rows" / "000.parquet").num_rows == ROWS
    assert not list((folder / "runs" / "run").glob("sfctr-rows-*"))


def test_in_a_control_group_it_spills_says_when_and_finishes(tmp_path: Path, group: Group) -> None:
    group.bound(bare_bytes() + (300 << 20))
    check(tmp_path, train(tmp_path, group.enter))

"""Reading a file several times larger than the bound takes memory of the bound's order, streamed and shuffled."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

ROWS, COLUMNS = 2_500_000, 10
GROWTH_BYTES = 100 << 20
"""Beside the bound of 16 MB: pyarrow's buffers, batches read ahead, and one window of every lane (29 MB here)."""

PROGRAM = f"""
import sys
from sfctr.data import open_source
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Categorical, Schema

def peak():  # not ru_maxrss: it begins at what the parent process took
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

def rows(path, shuffle):
    schema = Schema(label="y", features=[Categorical(f"c{{i}}", dtype="int64") for i in range({COLUMNS})])
    with open_source(path, schema, shuffle=shuffle, options=Data(memory="16MB"), spool_dir=sys.argv[4]) as source:
        return sum(batch.size for batch in source)

small, large, shuffle = sys.argv[1], sys.argv[2], sys.argv[3] == "shuffle"
rows(small, shuffle)
before = peak()
print(rows(large, shuffle), peak() - before)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small and a large file of each format; the large ones hold 200 MB in Arrow, 270 MB as text."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    ids = rng.integers(10**9, 10**10, (COLUMNS, ROWS))
    table = pa.table({"y": rng.integers(0, 2, ROWS).astype(np.int8), **{f"c{i}": ids[i] for i in range(COLUMNS)}})
    for name, part in (("small", table.slice(0, 20_000)), ("large", table)):
        pq.write_table(part, folder / f"{name}.parquet", row_group_size=ROWS, compression="none", use_dictionary=False)
        pacsv.write_csv(part, folder / f"{name}.csv")
    assert table.nbytes > 2e8 and (folder / "large.csv").stat().st_size > 2.5e8
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("order", ["stream", "shuffle"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_memory_stays_bounded(files, kind, order, tmp_path):
    paths = [str(files / f"{size}.{kind}") for size in ("small", "large")]
    command = [sys.executable, "-c", PROGRAM, *paths, order, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    rows, growth = map(int, run.stdout.split())
    assert rows == ROWS
    assert growth < GROWTH_BYTES, f"grew by {growth >> 20} MiB"

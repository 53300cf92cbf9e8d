"""Deltas at the command line: written by a run, put together, and refused where they do not follow."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

RUN = """
[data]
train = ["clicks.parquet"]
shuffle = false

[schema]
label = "click"

[[schema.features]]
kind = "categorical"
name = "item"

[[tables]]
name = "item"
dim = 2
capacity = 5

[model]
name = "dcnv2"
args = { hidden = [4] }

[train]
batch_size = 4
torch_threads = 1
device = "cpu"

[export]
delta_every = 3
"""


@pytest.fixture
def run(sfctr) -> Path:
    pd.DataFrame({"click": [0, 1] * 20, "item": [n * n % 17 for n in range(40)]}).to_parquet("clicks.parquet")
    Path("run.toml").write_text(RUN)
    assert sfctr("train", "run.toml", "--run", "run").code == 0
    return Path("run")


def test_base_and_deltas_are_what_export_writes(sfctr, run):
    deltas = sorted(path for path in Path("run/deltas").iterdir() if path.name != "base")
    assert [path.name for path in deltas] == ["000001", "000002", "000003"]
    done = sfctr("apply", "run/deltas/base", *deltas, "--out", "applied")
    assert (done.code, done.err) == (0, "")
    assert done.out.split() == ["applied/item.parquet", "applied/model.pt2", "applied/export.json"]
    assert sfctr("export", run, "--out", "full").code == 0
    for name in ("item.parquet", "model.pt2"):
        assert Path("applied", name).read_bytes() == Path("full", name).read_bytes()


def test_a_delta_that_is_left_out_is_one_line_and_exit_code_2(sfctr, run):
    done = sfctr("apply", "run/deltas/base", "run/deltas/000002", "--out", "applied")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "sfctr: error: run/deltas/000002 is delta 000002 and what it is to be applied to is at 000000; give 000001"
        " before it\n"
    )


def test_inspect_shows_a_delta(sfctr, run):
    lines = [line.split() for line in sfctr("inspect", "run/deltas/000002").out.splitlines()]
    assert ["delta", "000002"] in lines and ["step", "9"] in lines
    table = lines[lines.index(["table", "changed", "removed"]) + 1]
    assert table[0] == "item" and int(table[1]) > 0 and int(table[2]) > 0
    Path("run/deltas/000002/item.parquet").write_bytes(b"")
    assert "000002/item.parquet: the file is damaged" in sfctr("inspect", "run/deltas/000002").err

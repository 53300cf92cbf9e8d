"""`sfctr verify`: a table, a verdict, an exit code, and nothing left behind."""

from __future__ import annotations

import io
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from sfctr.cli.verify import show, verdict
from sfctr.models.lr import LR
from sfctr.verify import Finding, reference
from sfctr.verify.difference import Difference

RUN = """
[data]
train = ["clicks.csv"]
valid_fraction = 0.2
[schema]
label = "click"
features = [{kind = "categorical", name = "item"}, {kind = "dense", name = "price"}]
[model]
name = "fm"
[train]
batch_size = 50
torch_threads = 1
"""


@pytest.fixture
def files(tmp_path) -> Path:
    draw = np.random.default_rng(0)
    columns = {"click": draw.integers(0, 2, 300), "item": draw.integers(0, 40, 300), "price": draw.normal(size=300)}
    pd.DataFrame(columns).to_csv(tmp_path / "clicks.csv", index=False)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def test_a_run_that_holds_ends_with_a_verdict_and_code_0(sfctr, files):
    before = sorted(files.rglob("*"))
    done = sfctr("verify", "run.toml", "--steps", "3")
    assert done.code == 0, done.out + done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["variant", "steps", "predictions", "rows", "result"]
    forms = [line for line in lines[1:] if line.endswith("same bits") or "drifts" in line]
    assert len(lines) == 1 + len(forms) + 2
    assert any(line.startswith("disk under RAM, LRU, window 4 ") for line in forms)
    assert lines[1].startswith("plain, again") and lines[1].split()[2:4] == ["3", "150"]
    assert lines[-1] == f"all {len(forms)} forms of this run agree"
    assert sorted(files.rglob("*")) == before


def test_quick_tries_fewer_forms(sfctr, files):
    done = sfctr("verify", "run.toml", "--quick", "--steps", "2", "--set", "model.name=lr")
    whole = sfctr("verify", "run.toml", "--steps", "2", "--set", "model.name=lr")
    assert (done.code, whole.code) == (0, 0)
    quick, every = (
        {line.split("  ")[0] for line in said.out.splitlines() if line.endswith("same bits")} for said in (done, whole)
    )
    assert {"plain, again", "the run as it is", "disk under RAM, LRU, window 4"} <= quick < every


def test_a_difference_is_named_and_gives_code_1(sfctr, files, monkeypatch):
    late = reference.schedule_factor
    monkeypatch.setattr(reference, "schedule_factor", lambda *args: late(*args) * 1.001)
    done = sfctr("verify", "run.toml", "--quick", "--steps", "2")
    assert done.code == 1
    lines = done.out.splitlines()
    assert any(line.startswith("plain torch: step 1: ") for line in lines)
    assert any("step by step: step 1: table 'item', key " in line for line in lines)
    forms = lines.index("") - 1
    assert lines[-1] == f"2 of {forms} forms of this run differ: plain torch; plain torch, step by step"


def test_a_run_that_does_not_repeat_itself_says_so_and_gives_code_1(sfctr, files, monkeypatch):
    module, draw = types.ModuleType("drawing_models"), np.random.default_rng(0)

    class Drawing(LR):
        def forward(self, features):
            return super().forward(features) + float(draw.normal())

    module.Drawing = Drawing
    monkeypatch.setitem(sys.modules, "drawing_models", module)
    done = sfctr("verify", "run.toml", "--steps", "2", "--set", "model.name=drawing_models:Drawing")
    assert done.code == 1
    last = done.out.splitlines()[-1]
    assert last.startswith("the numerics of this run are not repeatable, so its forms cannot be compared: ")
    assert "NumPy" in last


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["missing.toml"], "missing.toml: there is no such run file"),
        (["run.toml", "--steps", "0"], "--steps is 0 and must be at least 1"),
        (["run.toml", "--set", "train.windw=3"], "train.windw is not known (did you mean 'window'?)"),
        (["run.toml", "--set", "data.train=[]"], "no files are given"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(sfctr, files, argv, words):
    done = sfctr("verify", *argv)
    assert (done.code, done.out) == (2, "")
    assert words in done.err and done.err.count("\n") == 1


FINDING = Finding(variant="window 1", steps=3, predictions=1500, rows=40, result="same bits")
ODD = replace(FINDING, result="differs", difference=Difference(step=2, field="vector", what="table 'item', key 1: odd"))


def test_a_terminal_gets_a_drawn_table_with_the_same_words():
    out = io.StringIO()
    show([FINDING, ODD], Console(file=out, force_terminal=True, width=100))
    text = out.getvalue()
    assert "━" in text and "1,500" in text
    assert "window 1: step 2: table 'item', key 1: odd" in text
    assert text.rstrip().endswith("1 of 2 forms of this run differ: window 1")


def test_the_verdict_is_about_the_numerics_where_there_is_a_remedy():
    assert verdict([replace(ODD, remedy="do this")]).endswith("cannot be compared: do this")
    assert verdict([FINDING]) == "all 1 forms of this run agree"

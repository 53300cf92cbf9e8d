"""`sfctr report`: which files it writes, what it refuses; and the report that a training leaves."""

import itertools
import sys
from pathlib import Path

import pytest
from made_runs import make_run

from sfctr.spec.errors import ModelError
from sfctr.train.trainer import Trainer


def test_one_run_has_its_page_in_its_directory(sfctr):
    make_run(Path("run"))
    done = sfctr("report", "run")
    assert (done.code, done.out, done.err) == (0, "run/report.html\n", "")
    assert "Run run" in Path("run/report.html").read_text()


def test_several_runs_have_a_page_together(sfctr):
    for name in ("a", "b"):
        make_run(Path(name))
    done = sfctr("report", "a", "b")
    assert (done.code, done.out) == (0, "comparison.html\n")
    done = sfctr("report", "a", "b", "--out", "pages/both.html")
    assert (done.code, done.out) == (0, "pages/both.html\n")
    assert "2 runs compared" in Path("pages/both.html").read_text()
    assert not Path("a/report.html").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_event_files_go_where_asked_for(sfctr):
    make_run(Path("run"))
    done = sfctr("report", "run", "--tensorboard", "events")
    assert (done.code, done.out) == (0, "events/run\n")
    assert len(list(Path("events/run").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no"], "no is no directory; give the directory that sfctr train or fit wrote"),
        (["."], "holds no run"),
        (["run", "--out", "page.html"], "--out is of the page on several runs"),
        (["run", "--out", "page.html", "--tensorboard", "events"], "--tensorboard writes none"),
        (["run", "no"], "no is no directory"),
        ([], "missing argument"),
    ],
)
def test_what_cannot_be_shown_is_one_line(sfctr, arguments, words):
    make_run(Path("run"))
    done = sfctr("report", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert words in done.err.lower() or words in done.err


def test_without_tensorboard_the_command_that_installs_it_is_said(sfctr, monkeypatch):
    make_run(Path("run"))
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    done = sfctr("report", "run", "--tensorboard", "events")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "pip install tensorboard" in done.err


@pytest.fixture
def clicks(tmp_path):
    """A run file, and its data."""
    rows = "\n".join(f"{i % 3 % 2},{i % 7},{i % 5}" for i in range(400))
    (tmp_path / "clicks.csv").write_text(f"click,item,<b>user</b>\n{rows}\n")
    (tmp_path / "run.toml").write_text(
        'data = {train = ["clicks.csv"], valid_fraction = 0.2}\n'
        "train = {batch_size = 50, torch_threads = 1}\n"
        'model = {name = "lr"}\n'
        '[schema]\nlabel = "click"\n'
        'features = [{kind = "categorical", name = "item"}, {kind = "categorical", name = "<b>user</b>"}]\n'
    )


def test_training_leaves_a_report_and_says_where(sfctr, clicks):
    done = sfctr("train", "run.toml")
    assert done.code == 0, done.err
    assert "runs/run/report.html" in done.out.splitlines()[-1]
    page = Path("runs/run/report.html").read_text()
    assert "finished" in page and "What bound the run" in page
    assert "&lt;b&gt;user&lt;/b&gt;" in page and "<b>user" not in page


def test_a_run_that_is_interrupted_leaves_one_too(sfctr, clicks, monkeypatch):
    steps, learn = itertools.count(), Trainer.learn

    def interrupted(self, ready):
        if next(steps) == 3:
            raise KeyboardInterrupt
        learn(self, ready)

    monkeypatch.setattr(Trainer, "learn", interrupted)
    done = sfctr("train", "run.toml")
    assert done.code == 130
    assert "what was learnt until then is in runs/run/last/" in done.err.splitlines()[-1]
    assert "stopped by KeyboardInterrupt" in Path("runs/run/report.html").read_text()


def test_a_run_that_fails_leaves_one_too(sfctr, clicks, monkeypatch):
    steps, learn = itertools.count(), Trainer.learn

    def fails(self, ready):
        if next(steps) == 3:
            raise ModelError("the loss is nan")
        learn(self, ready)

    monkeypatch.setattr(Trainer, "learn", fails)
    assert sfctr("train", "run.toml").code == 2
    page = Path("runs/run/report.html")
    assert "stopped by ModelError: the loss is nan" in page.read_text()
    page.unlink()
    assert sfctr("train", "run.toml", "--resume", "--set", "model.name=din").code == 2  # refused before it trained
    assert not page.exists()


@pytest.mark.parametrize("error", [RuntimeError("no font"), KeyboardInterrupt(), ImportError("no matplotlib")])
def test_a_report_that_fails_is_said_and_the_training_is_whole(sfctr, clicks, monkeypatch, error):
    def fails(record):
        raise error

    monkeypatch.setattr("sfctr.report.writing.run_page", fails)
    done = sfctr("train", "run.toml")
    assert done.code == 0
    assert f"the report of runs/run could not be written: {type(error).__name__}" in done.err
    assert "sfctr report runs/run tries again" in done.err
    assert "report.html" not in done.out and "validation part" in done.out
    assert Path("runs/run/last").exists()


def test_a_training_that_is_refused_writes_no_report(sfctr, clicks):
    make_run(Path("runs/run"))
    assert sfctr("train", "run.toml").code == 2
    assert sfctr("train", "run.toml", "--run", "other", "--set", "model.name=din").code == 2
    assert not Path("runs/run/report.html").exists() and not Path("other").exists()

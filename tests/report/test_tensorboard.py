"""Event files hold the numbers of the lines over the rows trained, as TensorBoard itself reads them."""

import sys

import pytest
from made_runs import hard_run, make_run

from sfctr.report import write_tensorboard
from sfctr.report.record import read_record
from sfctr.report.tensorboard import scalars
from sfctr.spec.errors import ConfigError

NEEDS_IT = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@NEEDS_IT
def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run(tmp_path / "run")
    for _ in range(2):  # the second time replaces the first
        assert write_tensorboard([run], tmp_path / "events") == [tmp_path / "events" / "run"]
    events = EventAccumulator(str(tmp_path / "events" / "run")).Reload()

    def read(tag):
        return [(event.step, event.wall_time, pytest.approx(event.value)) for event in events.Scalars(tag)]

    assert read("valid/auc") == [(1000, 20.0, 0.75), (2000, 40.0, 0.74)]
    assert read("train/loss") == [(1000, 20.0, 0.6), (2000, 40.0, 0.5)]
    assert read("train/moved/item/fetched") == [(1000, 20.0, 200), (2000, 40.0, 200)]
    assert read("valid/unseen/user") == [(1000, 20.0, 0.5), (2000, 40.0, 0.5)]


@NEEDS_IT
def test_event_files_of_others_stay(tmp_path):
    pytest.importorskip("tensorboard")
    theirs = tmp_path / "events" / "run" / "events.out.tfevents.1.box.2.0"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    run = make_run(tmp_path / "run")
    for _ in range(2):
        write_tensorboard([run], tmp_path / "events")
    assert theirs.read_bytes() == b"theirs"
    assert len(list(theirs.parent.iterdir())) == 2


def test_what_is_no_number_and_what_is_a_place_are_no_scalars(tmp_path):
    found = list(scalars(read_record(hard_run(tmp_path / "run"))))
    names = {name for _, _, values in found for name in values}
    assert {"valid/labels/click/auc", "valid/progressive/auc", "train/stage_s/fetch"} <= names
    assert not names & {"valid/calibration", "valid/auc", "train/step", "train/rows", "valid/best", "valid/seconds"}


def test_without_the_package_the_command_that_installs_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ConfigError, match="tensorboard, which is not installed; pip install tensorboard"):
        write_tensorboard([make_run(tmp_path / "run")], tmp_path / "events")
    assert not (tmp_path / "events").exists()

"""A record is what a run's directory tells, and no more."""

import math

import pytest
from made_runs import BEGIN, END, LINES, hard_run, make_run, train_line, valid_line

from sfctr.report.record import number, read_record
from sfctr.spec.errors import ConfigError


def test_what_is_in_the_files_is_in_the_record(tmp_path):
    record = read_record(make_run(tmp_path / "run"))
    assert record.name == "run"
    assert record.run.train.batch_size == 100
    assert [line["step"] for line in record.train] == [line["step"] for line in record.valid] == [10, 20]
    assert record.stage_s["fetch"] == 18.0
    assert record.moved["item"]["hits"] == 1200
    assert record.held["rows"] == {"item": 400, "user": 200}
    assert (record.begun, record.ended) == (BEGIN, END)
    assert record.notices == ["rows fill the RAM"]
    assert record.beside_s["evaluate"] == 8.0


def test_an_evaluation_lies_where_training_had_come_to(tmp_path):
    """Its own "rows" are those it evaluated."""
    record = read_record(make_run(tmp_path / "run", (valid_line(0, 0.5, best=False), *LINES)))
    assert [record.rows_at(line) for line in record.lines] == [0, 1000, 1000, 2000, 2000]


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 3')
    assert read_record(run).lines == list(LINES)


def test_a_line_that_is_none_is_refused_by_its_place(tmp_path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("[1]\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 5, is no JSON object"):
        read_record(run)


def test_a_torn_line_of_its_history_is_left_out_and_said(tmp_path):
    run = make_run(tmp_path / "run")
    history = run / "history.jsonl"
    history.write_text('{"kind": "beg\n' + history.read_text())
    record = read_record(run)
    assert record.history == [BEGIN, END]
    assert record.notices[-1].startswith("history.jsonl: 1 line is not readable and left out")


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run; give the directory that sfctr train or fit wrote"):
        read_record(tmp_path)
    with pytest.raises(ConfigError, match="is no directory; give"):
        read_record(tmp_path / "no")


def test_a_run_file_of_another_version_is_shown_and_not_understood(tmp_path):
    record = read_record(make_run(tmp_path / "run", run_file="[unheard]\nof = 1\n"))
    assert (record.run, record.run_text) == (None, "[unheard]\nof = 1\n")


def test_what_an_old_run_did_not_keep_is_missing(tmp_path):
    old = {name: value for name, value in train_line(10).items() if name not in ("stage_s", "moved", "held")}
    record = read_record(make_run(tmp_path / "run", [old], run_file=None, history=()))
    assert (record.begun, record.ended, record.held, record.moved) == ({}, {}, {}, {})
    assert not record.stage_s and not record.notices


def test_a_run_that_goes_on_has_not_ended(tmp_path):
    record = read_record(make_run(tmp_path / "run", history=(BEGIN, END, {**BEGIN, "step": 20})))
    assert (record.ended, record.begun["step"]) == ({}, 20)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "1", True, [1]])
def test_what_is_no_number_is_none(value):
    assert number(value) is None


def test_lines_of_not_a_number_are_read(tmp_path):
    assert math.isnan(read_record(hard_run(tmp_path / "run")).valid[0]["calibration"])

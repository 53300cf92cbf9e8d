"""Several runs on one page: outcomes, curves, and how their run files differ."""

import pytest
from made_runs import EVIL, LINES, RUN_FILE, hard_run, make_run, train_line, valid_line
from test_run_page import Page

from sfctr.report import write_comparison
from sfctr.report.comparison_page import _pictures, comparison_page, differing, distinct_names, options_of
from sfctr.report.record import read_record
from sfctr.spec.errors import ConfigError
from sfctr.spec.runfile_text import decode_run_file


@pytest.fixture
def records(tmp_path):
    other = RUN_FILE.replace("dim = 16", "dim = 32").replace("batch_size = 100", "batch_size = 200")
    better = [*LINES, train_line(30), valid_line(30, 0.8, best=True)]
    return [read_record(make_run(tmp_path / "one")), read_record(make_run(tmp_path / "two", better, run_file=other))]


def test_what_came_out_of_each_is_beside_each_other(records, undrawn):
    text = Page(comparison_page(records)).text
    assert "one 0.75000 0.74000 0.60000 2.0 k 55.0 s 36 50" in text
    assert "two 0.80000 0.80000 0.60000 3.0 k" in text
    assert "one : finished; bound by fetch from disk: 45 % of the step; raise tiers.ram or train.window. " in text
    assert text.count("RAM of table item") == 2


def test_curves_are_over_rows_and_over_time_and_a_run_looks_the_same_in_all(records, tmp_path):
    bare = read_record(make_run(tmp_path / "bare", [train_line(10)]))
    runs = dict(zip(("bare", "one", "two"), [bare, *records], strict=True))
    found = {picture.title: picture for picture in _pictures(runs)}
    auc = {series.label: series for series in found["AUC, validation"].series}
    assert list(zip(auc["two"].xs, auc["two"].ys, strict=True)) == [(1000, 0.75), (2000, 0.74), (3000, 0.8)]
    assert "bare" not in auc  # it has no evaluation
    over_time = {series.label: series for series in found["AUC over time"].series}
    assert list(over_time["one"].xs) == [20.0, 40.0]
    styles = {(series.label, series.style) for picture in found.values() for series in picture.series}
    assert styles == {("bare", 0), ("one", 1), ("two", 2)}


def options(text: str) -> dict[str, str]:
    return options_of(decode_run_file(text, "run.toml"))


def test_options_that_differ_are_named_by_their_paths():
    other = RUN_FILE.replace("dim = 16", "dim = 32").replace("batch_size = 100", "batch_size = 200\nclip = 1.0")
    assert differing({"a": options(RUN_FILE), "b": options(other)}) == [
        ("tables.item.dim", "16", "32"),
        ("train.batch_size", "100", "200"),
        ("train.clip", "not set", "1.0"),
    ]


def test_a_table_that_one_run_has_is_one_difference():
    start = RUN_FILE.index('[[tables]]\nname = "hour"')
    without = RUN_FILE[:start] + RUN_FILE[RUN_FILE.index("[train]") :]
    assert differing({"a": options(RUN_FILE), "b": options(without)}) == [("tables.hour", "there", "not set")]
    larger = RUN_FILE.replace("dim = 4", "dim = 5")
    assert differing({"a": options(RUN_FILE), "b": options(without), "c": options(larger)}) == [
        ("tables.hour", "there", "not set", "there"),
        ("tables.hour.dim", "4", "not set", "5"),
    ]


def test_runs_that_do_not_differ_are_said_not_to(tmp_path, undrawn):
    records = [read_record(make_run(tmp_path / name)) for name in ("a", "b")]
    assert "They do not differ." in Page(comparison_page(records)).text


def test_runs_of_one_name_are_numbered(tmp_path):
    records = [read_record(make_run(tmp_path / folder / "run")) for folder in ("a", "b", "c")]
    assert distinct_names(records) == ["run", "run (2)", "run (3)"]


def test_hard_runs_and_old_ones_can_be_compared(tmp_path, records):
    old = make_run(
        tmp_path / EVIL.replace("/", ""), [{"kind": "train", "step": 1, "rows": 9}], run_file=None, history=()
    )
    page = comparison_page([*records, read_record(hard_run(tmp_path / "hard")), read_record(old)])
    assert "<script" not in page.lower()
    text = Page(page).text
    assert "Without a run file that can be read:" in text
    assert "how it ended was not kept; what bound it is not known" in text


def test_the_page_is_written_where_asked_for(tmp_path, undrawn):
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    out = write_comparison(runs, tmp_path / "deep" / "page.html")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(ConfigError, match="is no directory; give the directory"):
        write_comparison([*runs, tmp_path / "no"], tmp_path / "page.html")

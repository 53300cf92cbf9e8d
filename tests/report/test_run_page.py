"""The page of a run is one file that says what happened, and takes nothing that a user named for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_runs import BEGIN, EVIL, LINES, RUN_FILE, counts, hard_run, make_run, train_line, valid_line

from sfctr.report import write_report
from sfctr.report.record import read_record
from sfctr.report.run_page import run_page
from sfctr.spec.errors import ConfigError

VOID = {"meta", "path", "use", "rect"}


class Page(HTMLParser):
    """The text of a page, what it is made of, and what it refers to; every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.refers: set[str] = set()
        self.ids: dict[str, set[str]] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{name} in {tag}"
            if name in ("href", "src", "xlink:href", "srcset", "data", "action", "poster", "background"):
                self.refers.add(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def page_of(path, *args, **options) -> Page:
    return Page(run_page(read_record(make_run(path / "run", *args, **options))))


def test_a_stranger_finds_the_auc_the_bound_and_the_worst_tier(tmp_path, undrawn):
    text = page_of(tmp_path).text
    assert "AUC, best evaluation 0.75000 at step 10" in text
    assert "AUC, last evaluation 0.74000 at step 20" in text
    assert "Rows trained 2.0 k 2,000 in 20 steps, 1 epoch" in text
    assert "Wall time 55.0 s" in text and "Rows a second 36 50 while steps ran" in text
    assert (
        "What bound the run fetch from disk . Training waited 20 % of the time of its steps for the next batch, and of"
        " what makes batches ready this took longest, 45 %. To make it faster, raise tiers.ram or"
        " train.window. Of training's own work, the dense model (55 %) took longest."
    ) in text
    assert (
        "Worst tier RAM of table item : 75.0 % of the rows asked for were there, the lowest hit rate. Most rows moved"
        " there, too: 400 read from disk and 200 written there (57.6 kB)."
    ) in text
    assert "RAM 1.5 MB of 2.0 MB; disk 4.0 MB; the whole process at most 600 MB" in text
    assert (
        "Of 55.0 s in all, 15.0 s went into other things than steps: evaluating 8.0 s, saving models 2.0 s, pauses and"
        " waits for checkpoints 1.0 s."
    ) in text
    assert "most in feature user: 50.0 % of its keys" in text


def test_a_stage_that_worked_longer_than_the_steps_is_no_share_of_them(tmp_path, undrawn):
    lines = [train_line(10, stage_s={"step": 16.0, "wait": 4.0, "read": 33.4})]
    text = page_of(tmp_path, lines).text
    assert "of what makes batches ready this took longest, longer than the steps. To make it faster, raise" in text
    assert "167 %" not in text


def test_keys_are_told_to_be_unseen_where_any_were(tmp_path, undrawn):
    lines = [train_line(10), valid_line(10, 0.75, best=True, unseen={"item": 0.0, "user": 0.0})]
    assert "most in feature" not in page_of(tmp_path, lines).text


def test_all_of_its_parts_are_there(tmp_path, undrawn):
    text = page_of(tmp_path).text
    for heading in ("Quality", "Time", "Tiers", "Memory", "Tables", "Unseen keys", "Notices", "Run file", "Machine"):
        assert heading in text
    assert "rows fill the RAM" in text
    assert "batch_size = 100" in text
    assert "Abacus 9" in text and "2.13.0" in text
    assert "fetch from disk 18.0 s ◂ bound the run" in text


def test_it_has_no_script_and_refers_to_nothing_outside(tmp_path):
    for name in ("plain", "hard"):
        path = make_run(tmp_path / name) if name == "plain" else hard_run(tmp_path / name)
        page = run_page(read_record(path))
        found = Page(page)
        assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "image", "foreignObject"}
        assert all(target.startswith("#") for target in found.refers)
        assert not re.search(r"url\((?!#)|@import|https?:", page.replace("http://www.w3.org/", ""))


def test_what_a_user_named_is_text_and_never_markup(tmp_path, undrawn):
    page = run_page(read_record(hard_run(tmp_path / "run")))
    assert "<script" not in page.lower()
    text = Page(page).text
    assert text.count(EVIL) >= 10  # table, feature, label, notice, error, processor, run file
    assert f"stopped by ModelError: {EVIL}" in text


def test_a_hard_run_is_shown_whole(tmp_path, undrawn):
    text = Page(run_page(read_record(hard_run(tmp_path / "run")))).text
    assert "AUC, last evaluation undefined" in text
    assert "4 processes" in text
    assert "The other 68 tiers of tables" in text  # 40 tables on the device and in RAM, 12 of them above
    assert "Rows with keys and gradients took 4.0 GB by virtual ids; position by position it were 16.0 GB" in text
    assert f"auc is undefined: label '{EVIL}': all labels are 1" in text


def test_equal_ids_on_a_page_stand_for_equal_things(tmp_path):
    page = run_page(read_record(hard_run(tmp_path / "run")))
    found: dict[str, set[str]] = {}
    for tag, name, inner in re.findall(r'<(path|clipPath) id="([^"]+)"(.*?)(?:/>|</clipPath>)', page, re.DOTALL):
        found.setdefault(name, set()).add(tag + inner)
    assert found
    assert [name for name, kinds in found.items() if len(kinds) > 1] == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "nothing was held out"),
        ([train_line(10)], "nothing was held out"),
        ([train_line(10), valid_line(10, 0.75, best=True)], "AUC, best evaluation 0.75000 at step 10"),
        ([train_line(10), valid_line(10, None, best=False)], "AUC, last evaluation undefined at step 10"),
        ([train_line(10, moved={})], "Worst tier not known: the lines of this run do not say what moved"),
        ([train_line(10, moved={"a": counts(9, 4, 5)})], "Worst tier none: every row that a batch asked for again was"),
        ([train_line(10, stage_s={})], "What bound the run not known: its lines have no times of stages"),
        ([train_line(10, held={})], "What the tiers took is not known"),
        ([train_line(10, auc=None)], "Rows trained"),
    ],
)
def test_what_a_run_has_not_got_is_said(tmp_path, lines, words, undrawn):
    for number, options in enumerate(({}, {"run_file": None, "history": ()})):
        if lines or number == 0:
            assert words in page_of(tmp_path / str(number), lines, **options).text


def test_a_run_without_tables_and_one_of_an_older_version_are_shown(tmp_path, undrawn):
    plain = RUN_FILE[: RUN_FILE.index("[[tables]]")] + "[train]\nbatch_size = 9\n"
    old = {"kind": "train", "step": 10, "epoch": 1, "rows": 90, "loss": 0.6}
    text = page_of(tmp_path, [old], run_file=plain, history=()).text
    assert "How many rows the tables had is not known, or there are no tables." in text
    assert "Not kept by the version that trained this run." in text


def test_a_run_that_is_being_trained_is_shown_as_far_as_it_is(tmp_path, undrawn):
    text = page_of(tmp_path, LINES[:2], history=(BEGIN,)).text
    assert "has not ended: it is still training" in text
    assert "Wall time 20.0 s" in text


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(tmp_path, undrawn):
    run = make_run(tmp_path / "run")
    (run / "report.html").write_text("old")
    assert write_report(run) == run / "report.html"
    assert (run / "report.html").read_text(encoding="utf-8") == run_page(read_record(run))
    assert {path.name for path in run.iterdir()} == {"run.toml", "metrics.jsonl", "history.jsonl", "report.html"}


def test_a_report_that_cannot_be_written_is_said(tmp_path, undrawn):
    run = make_run(tmp_path / "run")
    (run / "report.html").mkdir()
    with pytest.raises(ConfigError, match=r"report.html cannot be written: is a directory; choose another place"):
        write_report(run)
    assert not list(run.glob("*.new"))


def test_two_processes_that_write_one_report_do_not_meet(tmp_path, undrawn, monkeypatch):
    run, written, replace = make_run(tmp_path / "run"), [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (written.append(self.name), replace(self, target))[1])
    for pid in (7, 8):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        write_report(run)
    assert written == ["report.html.7.new", "report.html.8.new"]

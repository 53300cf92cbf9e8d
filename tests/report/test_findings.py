"""What a run came to, by figures worked out by hand from the lines of made_runs."""

import pytest
from made_runs import BEGIN, END, RUN_FILE, counts, make_run, train_line

from sfctr.report import pictures
from sfctr.report.comparison_page import _pace
from sfctr.report.findings import (
    best_line,
    bound_of,
    busiest_use,
    holdings,
    rows_per_second,
    rows_per_second_of_steps,
    rows_trained,
    state_of,
    step_seconds,
    stretches_of,
    threads_of,
    unseen_of,
    uses_of,
    wall_seconds,
    worst_use,
)
from sfctr.report.record import read_record


@pytest.fixture
def record(tmp_path):
    return read_record(make_run(tmp_path / "run"))


def test_the_figures_of_a_run(record):
    assert (best_line(record)["auc"], rows_trained(record)) == (0.75, 2000)
    assert wall_seconds(record) == 55.0
    assert step_seconds(record) == 40.0
    assert rows_per_second(record) == 2000 / 55
    assert unseen_of(record) == {"user": 0.5, "item": 0.25}
    assert state_of(record) == "finished"


def test_what_bound_it_is_what_made_training_wait(record):
    found = bound_of(record)
    assert (found.part, found.share) == ("fetch", 18 / 40)


def test_a_pace_is_of_rows_and_seconds_up_to_the_same_point(tmp_path):
    """Five steps came after the last line; what they took of steps is not known."""
    stopped = {**END, "step": 25, "rows": 2500, "how": "KeyboardInterrupt"}
    record = read_record(make_run(tmp_path / "run", history=(BEGIN, stopped)))
    assert (rows_trained(record), rows_per_second(record)) == (2500, 2500 / 55)
    assert rows_per_second_of_steps(record) == 2000 / 40
    went_on = read_record(make_run(tmp_path / "on", history=(BEGIN, END, {**BEGIN, "step": 20}, stopped)))
    assert (rows_trained(went_on), rows_per_second(went_on)) == (2500, 2000 / 40)


def test_a_line_without_times_counts_neither_its_rows_nor_its_steps(tmp_path):
    record = read_record(make_run(tmp_path / "run", [train_line(10, stage_s={}), train_line(20)]))
    assert [(each.steps, each.rows, each.seconds) for each in stretches_of(record)] == [(10, 1000, 20.0)]
    assert rows_per_second_of_steps(record) == 50


def test_each_thread_has_its_parts(record):
    assert threads_of(record) == {
        "training": {"rows": 8.0, "model": 22.0, "other": 2.0, "wait": 8.0},
        "fetching ahead": {"fetch": 18.0},
    }


def test_fetching_is_a_thread_of_its_own_but_where_rows_are_moved_to_a_device(tmp_path):
    spent = {"step": 10.0, "wait": 3.0, "read": 12.0, "plan": 7.0, "fetch": 6.0}
    record = read_record(make_run(tmp_path / "run", [train_line(10, stage_s=spent)]))
    ahead = {"reading ahead": {"read": 12.0}, "placing ahead": {"plan": 7.0}, "fetching ahead": {"fetch": 6.0}}
    assert threads_of(record) == {"training": {"other": 10.0, "wait": 3.0}, **ahead}
    lifted = read_record(make_run(tmp_path / "lifted", [train_line(10, stage_s={**spent, "lift": 1.0})]))
    assert threads_of(lifted)["placing ahead"] == {"plan": 7.0, "fetch": 6.0, "lift": 1.0}


def test_without_a_window_one_thread_does_all(tmp_path):
    record = read_record(make_run(tmp_path / "run", run_file=RUN_FILE + "window = 0\n"))
    assert threads_of(record) == {"training": {"rows": 8.0, "model": 22.0, "other": 2.0, "fetch": 18.0}}
    assert step_seconds(record) == 50.0
    assert _pace(record) == [(1000, 1000 / 25), (2000, 1000 / 25)]
    (picture,) = (each for each in pictures.time(record) if each.title == "Rows a second")
    assert list(picture.series[0].ys) == [40.0, 40.0]


def test_hit_rates_are_of_keys_that_had_a_row(record):
    uses = {use.table: use for use in uses_of(record.moved)}
    assert {table: (use.tier, use.asked, use.hits, use.rate) for table, use in uses.items()} == {
        "item": ("ram", 1600, 1200, 0.75),
        "user": ("ram", 800, 780, 0.975),
    }
    assert (uses["item"].came, uses["item"].left, uses["item"].num_bytes) == (400, 200, 57_600)


def test_a_table_on_a_device_has_two_tiers(tmp_path):
    moved = {"item": counts(100, 20, 72, device_hits=40, lifted=60, lowered=30, bytes_lifted=600, bytes_lowered=300)}
    uses = uses_of(moved)
    assert [(use.tier, use.rate, use.came, use.left, use.num_bytes) for use in uses] == [
        ("device", 0.5, 60, 30, 900),
        ("ram", 0.9, 8, 0, 0),
    ]


def test_the_worst_tier_is_of_a_table_that_is_asked_for(tmp_path):
    moved = {"big": counts(99_500, 0, 90_000, evicted=7), "rare": counts(500, 0, 5), "small": counts(5_000, 0, 4_000)}
    worst, busiest = worst_use(uses_of(moved)), busiest_use(uses_of(moved))
    assert (worst.table, worst.rate) == ("small", 0.8)
    assert (busiest.table, busiest.moved) == ("big", 9_507)


def test_where_nothing_was_missed_no_tier_is_the_worst():
    uses = uses_of({"item": counts(100, 20, 80), "new": counts(10, 10, 0)})
    assert [use.table for use in uses] == ["item"]
    assert worst_use(uses) is None and busiest_use(uses) is None


def test_tables_are_listed_by_their_size_and_those_of_the_dense_part_too(record):
    assert [(held.table, held.rows, held.num_bytes) for held in holdings(record)] == [
        ("item", 400, 400 * 192),
        ("user", 200, 200 * 96),
        ("hour", 25, 4 * 25 * 4),  # a row for a missing value
    ]
    assert [held.what for held in holdings(record)][::2] == ["16 × fp32, Adam", "4 × fp32, of the dense part"]


def test_a_run_that_went_on_took_what_its_steps_took(tmp_path):
    went_on = {**BEGIN, "step": 10}
    record = read_record(make_run(tmp_path / "run", history=(BEGIN, END, went_on, END)))
    assert wall_seconds(record) == 40.0
    record = read_record(make_run(tmp_path / "late", history=(went_on, END)))  # what told of its beginning is lost
    assert wall_seconds(record) == 40.0


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ((), "how it ended was not kept"),
        ((BEGIN,), "has not ended: it is still training, or its process was killed"),
        ((BEGIN, {**END, "how": "KeyboardInterrupt"}), "stopped by KeyboardInterrupt"),
    ],
)
def test_how_it_ended_is_said_as_far_as_it_is_known(tmp_path, history, words):
    assert state_of(read_record(make_run(tmp_path / "run", history=history))) == words


def test_a_run_without_a_line_comes_to_nothing(tmp_path):
    record = read_record(make_run(tmp_path / "run", ()))
    assert (best_line(record), bound_of(record), threads_of(record), rows_trained(record)) == ({}, None, {}, 2000)

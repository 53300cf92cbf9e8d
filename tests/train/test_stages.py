"""What bound a run follows from the seconds of its stages, by a table worked out by hand; lines hold what was added."""

import pytest

from sfctr.telemetry import Recorder
from sfctr.train.stages import Stages, bound, parts_of_step, stage_seconds

STEP = {"step": 10.0, "features": 1.0, "forward": 3.0, "backward": 4.0, "update": 1.5}


@pytest.mark.parametrize(
    ("window", "spans", "expected"),
    [
        # nothing waits: the longest part of training's own thread, of 10 s
        (4, {}, "the dense model: 70 % of the step; raise train.torch_threads"),
        (4, {"read": 9, "fetch": 9, "wait": 1}, "the dense model: 64 % of the step"),
        (
            4,
            {"features": 3, "forward": 1, "backward": 1, "update": 4},
            "reading and updating rows: 70 % of the step; raise",
        ),
        (4, {"features": 1, "forward": 1, "backward": 1, "update": 1}, "metrics and the loop itself: 60 % of the step"),
        # training waits 10 of 20 s: the longest stage of the thread that worked longest
        (4, {"wait": 10, "read": 12, "unique": 2, "fetch": 8}, "reading: 60 % of the step; raise data.threads"),
        (4, {"wait": 10, "read": 7, "unique": 6, "fetch": 12.2}, "reading: 35 % of the step; raise data.threads"),
        (4, {"wait": 10, "read": 2, "unique": 12}, "finding unique ids: 60 % of the step; raise train.threads"),
        (
            4,
            {"wait": 10, "read": 9, "plan": 1, "fetch": 12.2},
            "fetch from disk: 61 % of the step; raise tiers.ram or train.window",
        ),
        (4, {"wait": 3, "read": 12, "plan": 7, "fetch": 6}, "reading: 92 % of the step; raise data.threads"),
        (4, {"wait": 3, "read": 12, "plan": 7, "fetch": 6, "lift": 0.1}, "planning where rows go: 54 % of the step"),
        (4, {"wait": 10, "plan": 14, "write_back": 12}, "writing rows back to disk: 60 % of the step; raise tiers.ram"),
        (4, {"wait": 10, "plan": 14, "write_back": 2}, "planning where rows go: 60 % of the step; raise"),
        (
            4,
            {"wait": 10, "read": 1, "fetch": 2, "lift": 8},
            "moving rows to the device: 40 % of the step; raise tiers.",
        ),
        # all in one thread
        (
            0,
            {"read": 10},
            "reading: 50 % of the step; set train.window, so that it is done ahead of training, or raise",
        ),
        (0, {"read": 2, "fetch": 2}, "the dense model: 50 % of the step"),
    ],
)
def test_the_stage_that_bound_a_run_is_named_with_its_share_and_a_remedy(window, spans, expected):
    assert str(bound(stage_seconds({**STEP, **spans}), window=window)).startswith(expected)


def test_a_stage_that_worked_while_no_step_ran_is_no_share_of_the_steps():
    found = bound({**STEP, "wait": 2, "read": 20}, window=4)
    assert (found.share, str(found)) == (20 / 12, "reading: longer than the steps took; raise data.threads")


def test_a_part_of_a_step_is_never_more_than_all_of_it():
    """A line is written before its last step has ended."""
    found = bound({"step": 1.0, "forward": 2.0, "backward": 2.0, "update": 1.0}, window=4)
    assert (found.part, found.share) == ("model", 0.8)


def test_a_bound_says_which_part_it_is():
    found = bound({**STEP, "wait": 10, "fetch": 8}, window=4)
    assert (found.part, found.share) == ("fetch", 0.4)


def test_the_parts_of_a_step_are_those_of_trainings_own_thread():
    spans = {**STEP, "bring": 2.0, "send": 0.25, "sum": 0.25, "wait": 3.0, "fetch": 7.0}  # step is 10 in all
    assert parts_of_step(spans) == {"rows": 2.5, "model": 7.0, "ranks": 2.5, "other": 0.0}
    assert parts_of_step({**STEP, "backward": 2.0})["other"] == 2.5
    assert parts_of_step({**STEP, "step": 7.0})["other"] == 0.0  # a line is written before its last step has ended


def test_a_run_without_steps_is_bound_by_nothing():
    assert bound(stage_seconds({"read": 1.0}), window=0) is None
    assert bound({}, window=4) is None


def test_write_back_is_no_part_of_planning_and_other_spans_are_no_stages():
    found = stage_seconds({"plan": 3.0, "write_back": 1.0, "evaluate": 5.0})
    assert found == {"plan": 2.0, "write_back": 1.0}


def test_a_line_holds_what_was_added_since_the_line_before():
    counts = {"item": {"hits": 3, "fetched": 0}, "tag": {"hits": 0}}
    recorder = Recorder()
    recorder.add("read", 1.0)
    stages = Stages(recorder, lambda: {table: dict(own) for table, own in counts.items()})
    recorder.add("read", 0.5)
    counts["item"]["hits"] = 8
    assert stages.line() == {"stage_s": {"read": 0.5}, "moved": {"item": {"hits": 5}}}
    assert stages.line() == {"stage_s": {}, "moved": {}}

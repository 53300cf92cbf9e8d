"""history.jsonl says when a run began and ended, with what, and how."""

import json
import os
from datetime import datetime

import pytest

from sfctr import __version__
from sfctr.spec.errors import CapacityError
from sfctr.telemetry import Recorder, notice, span
from sfctr.train.history import peak_bytes, told


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_was_trained_inside_is_told_with_what_was_said_meanwhile(tmp_path):
    path, place = tmp_path / "history.jsonl", {"step": 0, "rows": 0}
    with Recorder():
        notice("before")
        with told(path, lambda: dict(place), processes=3):
            notice("meanwhile")
            with span("save"):
                place |= {"step": 4, "rows": 40}
    begin, end = lines_of(path)
    assert (begin["kind"], begin["step"], begin["rows"], begin["processes"]) == ("begin", 0, 0, 3)
    assert begin["versions"]["sfctr"] == __version__
    assert begin["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert datetime.fromisoformat(begin["at"]) <= datetime.fromisoformat(end["at"])
    assert (end["kind"], end["step"], end["rows"], end["how"]) == ("end", 4, 40, "finished")
    assert end["notices"] == ["before", "meanwhile"]
    assert 0 < end["beside_s"]["save"] <= end["seconds"]


def test_checkpoints_cost_their_pauses_and_the_waits_for_them(tmp_path):
    path = tmp_path / "history.jsonl"
    with Recorder() as recorder, told(path, lambda: {"step": 1, "rows": 2}):
        for name, seconds in (("checkpoint", 1.5), ("checkpoint wait", 2.0), ("checkpoint write", 9.0), ("delta", 0.5)):
            recorder.add(name, seconds)
    assert lines_of(path)[-1]["beside_s"] == {"evaluate": 0.0, "save": 0.0, "checkpoint": 3.5, "delta": 0.5}


@pytest.mark.parametrize(
    ("error", "how"),
    [(CapacityError("no room\nat all"), "CapacityError: no room"), (KeyboardInterrupt(), "KeyboardInterrupt")],
)
def test_what_ended_it_is_told_and_raised_on(tmp_path, error, how):
    path = tmp_path / "history.jsonl"
    with pytest.raises(type(error)), told(path, lambda: {"step": 1, "rows": 2}):
        raise error
    assert [line.get("how") for line in lines_of(path)] == [None, how]


def test_a_run_that_goes_on_adds_to_what_is_told(tmp_path):
    path = tmp_path / "history.jsonl"
    for _ in range(2):
        with told(path, lambda: {"step": 1, "rows": 2}):
            pass
    assert [line["kind"] for line in lines_of(path)] == ["begin", "end", "begin", "end"]


def test_a_line_that_was_torn_takes_none_that_follows_with_it(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"kind": "begin", "st')
    with told(path, lambda: {"step": 1, "rows": 2}):
        pass
    torn, *whole = path.read_text().splitlines()
    assert torn == '{"kind": "begin", "st'
    assert [json.loads(line)["kind"] for line in whole] == ["begin", "end"]


def test_the_most_memory_is_this_programs_own(tmp_path):
    """ru_maxrss, which is used where there is no better, begins with what the process had that started it."""
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t 9999 kB\nVmHWM:\t  123 kB\nVmRSS:\t 100 kB\n")
    assert peak_bytes(status) == 123 * 1024
    assert peak_bytes() > 1e6 and peak_bytes(tmp_path / "none") > 1e6


def test_an_end_that_cannot_be_told_is_not_missed(tmp_path):
    path = tmp_path / "history.jsonl"
    with told(path, lambda: {"step": 1, "rows": 2}):
        path.unlink()
        path.mkdir()

"""A trace is valid JSON with a row for each thread and every span, and neither memory nor the run depends on it."""

import errno
import json
import threading
import tracemalloc
from contextvars import copy_context

import pytest

from sfctr.telemetry import ChromeTrace, Recorder, span


def events_of(path, phase="X"):
    return [event for event in json.loads(path.read_text()) if event["ph"] == phase]


def test_spans_nest_by_their_times_and_say_their_step(tmp_path):
    with ChromeTrace(tmp_path / "t.json") as trace, Recorder(trace) as recorder:
        for step in (1, 2):
            with span("step", step=step), span("update", step=step):
                pass
    events = events_of(tmp_path / "t.json")
    assert [(event["name"], event["args"]) for event in events] == [
        ("update", {"step": 1}),
        ("step", {"step": 1}),
        ("update", {"step": 2}),
        ("step", {"step": 2}),
    ]
    for inner, outer in (events[:2], events[2:]):
        assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.01
    assert recorder.counts() == {"step": 2, "update": 2}


def test_every_thread_has_a_row_with_its_name(tmp_path):
    def work():
        for _ in range(200):
            with span("read"):
                pass

    with ChromeTrace(tmp_path / "t.json") as trace, Recorder(trace):
        threads = [threading.Thread(target=copy_context().run, args=(work,), name=f"reader-{n}") for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with span("step"):
            pass
    rows = {event["tid"]: event["args"]["name"] for event in events_of(tmp_path / "t.json", "M")}
    assert sorted(rows.values()) == ["MainThread", "reader-0", "reader-1", "reader-2"]
    spans = events_of(tmp_path / "t.json")
    assert len(spans) == 601
    assert {event["tid"] for event in spans} == set(rows)


def test_a_trace_without_spans_is_valid_and_one_cut_off_needs_its_bracket_alone(tmp_path):
    with ChromeTrace(tmp_path / "empty.json"):
        pass
    assert json.loads((tmp_path / "empty.json").read_text()) == []
    trace = ChromeTrace(tmp_path / "t.json")
    with Recorder(trace), span("a"):
        pass
    trace.close()
    trace.close()
    whole = (tmp_path / "t.json").read_text()
    assert json.loads(whole.removesuffix("\n]\n") + "]") == json.loads(whole)


def test_memory_does_not_grow_with_the_trace(tmp_path):
    with ChromeTrace(tmp_path / "t.json") as trace, Recorder(trace):
        tracemalloc.start()
        for step in range(20_000):
            with span("step", step=step):
                pass
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert grown < 100_000 < (tmp_path / "t.json").stat().st_size


def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path, monkeypatch):
    trace = ChromeTrace(tmp_path / "t.json")
    with Recorder(trace) as recorder:
        with span("a"):
            pass

        def full(text):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(trace, "_file", type("Full", (), {"write": staticmethod(full), "closed": False})())
            for _ in range(2):
                with span("a"):
                    pass
    trace.close()
    assert len(events_of(tmp_path / "t.json")) == 1
    assert recorder.counts() == {"a": 3}
    assert trace.error.errno == errno.ENOSPC


def test_a_file_that_cannot_be_made_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        ChromeTrace(tmp_path / "no" / "t.json")

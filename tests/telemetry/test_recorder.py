"""Spans and counts add up by name in the recorder of their context, and a notice is said once."""

import contextvars
import subprocess
import sys
import threading

import pytest

from sfctr.telemetry import Recorder, current, notice, span


def test_spans_of_one_name_add_up():
    with Recorder() as recorder:
        for _ in range(3):
            with span("fetch"):
                pass
    assert recorder.counts() == {"fetch": 3}
    assert 0 < recorder.seconds()["fetch"] < 1


def test_an_open_span_is_not_counted_and_an_interrupted_one_is():
    def interrupted():
        with span("step"):
            assert current().counts() == {}
            raise KeyboardInterrupt

    with Recorder() as recorder, pytest.raises(KeyboardInterrupt):
        interrupted()
    assert recorder.counts() == {"step": 1}


def test_counts_add_up_beside_spans():
    with Recorder() as recorder:
        current().count("rows", 4096)
        current().count("rows", 4)
        current().count("batches")
    assert recorder.counts() == {"rows": 4100, "batches": 1}
    assert recorder.seconds() == {}


def test_an_inner_recorder_hides_the_outer_one_until_it_ends():
    with Recorder() as outer:
        with Recorder() as inner:
            current().count("a")
        current().count("b")
    assert (outer.counts(), inner.counts()) == ({"b": 1}, {"a": 1})
    assert current() not in (outer, inner)


def test_a_recorder_can_be_entered_again():
    recorder = Recorder()
    with recorder, recorder:
        current().count("a")
    with recorder:
        current().count("a")
    assert recorder.counts() == {"a": 2}


def test_what_was_read_out_does_not_change_any_more():
    with Recorder() as recorder:
        before = recorder.counts()
        current().count("a")
    assert before == {}


def test_a_thread_records_into_its_parents_recorder_when_started_in_its_context():
    def work():
        for _ in range(1000):
            with span("read"):
                current().count("rows")

    with Recorder() as recorder:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(4)]
        alone = threading.Thread(target=current().count, args=("alone",))
        for thread in [*threads, alone]:
            thread.start()
        for thread in [*threads, alone]:
            thread.join()
    assert recorder.counts() == {"read": 4000, "rows": 4000, "alone": 1}


def test_a_notice_is_said_once_for_each_recorder(caplog):
    for _ in range(2):
        with Recorder():
            notice("column 'x' is ignored")
            notice("column 'x' is ignored")
            notice("column 'y' is ignored; 100% of it")
    assert caplog.messages == ["column 'x' is ignored", "column 'y' is ignored; 100% of it"] * 2


def test_a_notice_is_seen_on_stderr_where_no_logging_is_set_up():
    code = "from sfctr.telemetry import notice; notice('seen'); notice('seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "seen\n")


def test_a_recorder_keeps_the_notices_in_their_order():
    with Recorder() as recorder:
        for text in ("second", "first", "second"):
            notice(text)
    assert recorder.said() == ["second", "first"]

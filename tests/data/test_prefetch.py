"""Work ahead of its consumer ends with it, or is left where it hangs."""

from __future__ import annotations

import threading

import pandas as pd

import sfctr
from sfctr.data import prefetch
from sfctr.data.prefetch import ahead
from sfctr.data.source import Source
from sfctr.telemetry import Recorder


def hanging(gate: threading.Event):
    yield 1
    gate.wait()
    yield 2


def test_a_thread_that_hangs_is_left_and_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(prefetch, "CLOSE_TIMEOUT_S", 0.1)
    gate = threading.Event()
    with Recorder():
        items = ahead(lambda: hanging(gate), 2)
        assert next(items) == 1
        items.close()
    assert "reading has not ended for 0.1 s since it was asked to: it is left where it hangs" in caplog.text
    gate.set()
    [thread.join() for thread in threading.enumerate() if thread.name == "sfctr-reader"]


def test_a_source_closes_while_another_thread_waits_for_its_next_batch(monkeypatch):
    gate, waits = threading.Event(), threading.Event()

    def work(source, epoch, start_row):
        waits.set()
        gate.wait()
        yield None

    monkeypatch.setattr(Source, "_streamed", work)
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])
    source = sfctr.open_source(pd.DataFrame({"item": [1, 2], "y": [0, 1]}), schema, batch_size=2, shuffle=False)
    thread = threading.Thread(target=lambda: list(source.batches()))
    thread.start()
    waits.wait()
    source.close()
    gate.set()
    thread.join()

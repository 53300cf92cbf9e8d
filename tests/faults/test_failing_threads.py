"""What goes wrong in a thread beside training: a reader that fails or hangs, a planner or a writer that raises, a clock
that jumps."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import threading
from functools import partial
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from stopped_run import differences, end_of, trained

from sfctr.checkpoint import writer
from sfctr.data.source import Source
from sfctr.lookahead import pipeline
from sfctr.spec.errors import DataError, Terminated
from sfctr.spec.runfile import Checkpoints
from sfctr.store import Store
from sfctr.telemetry import Recorder
from sfctr.train import Run, trainer
from sfctr.train.due import Due
from sfctr.train.trainer import Trainer


def test_an_io_error_from_the_reader(scene, monkeypatch):
    """Rows are streamed, so that reading goes on while the run trains."""
    streamed = msgspec.structs.replace(scene.run, data=msgspec.structs.replace(scene.run.data, shuffle=False))
    scene = type(scene)(scene.home, scene.whole, streamed)
    scene.train("whole")
    read, learn, fails = pq.ParquetFile.iter_batches, Trainer.learn, threading.Event()

    def failing(file, batch_size, **options):
        for batch in read(file, 100, **options):
            if fails.is_set() and file.metadata.num_rows != 100:  # the training rows
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            yield batch

    def learning(trainer, ready):
        learn(trainer, ready)
        if trainer.step == 11:
            fails.set()

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "iter_batches", failing)
        patch.setattr(Trainer, "learn", learning)
        with pytest.raises(DataError, match=r"train.parquet: it could not be read: Input/output error; go on"):
            scene.train()
    stopped_at = max(scene.checkpoints())
    assert 11 <= stopped_at <= 16
    with Run.load("run", "last") as last:
        assert last.facts["step"] == stopped_at
    scene.train(resume=True)
    assert differences(end_of("run"), end_of("whole")) == []


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_reader_that_hangs(scene, monkeypatch, caplog, window, number):
    monkeypatch.setattr(pipeline, "CLOSE_TIMEOUT_S", 0.2)
    gate, read, step = threading.Event(), Source.batches, [0]
    run = msgspec.structs.replace(scene.run, train=msgspec.structs.replace(scene.run.train, window=window))
    scene = type(scene)(scene.home, scene.whole, run)

    def hanging(source, epoch=0, *, start_row=0):
        for batch in read(source, epoch, start_row=start_row):
            if epoch == 1 and step[0] == 11:
                threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
                gate.wait()
            step[0] += source.num_rows != 100  # the validation rows
            yield batch

    with monkeypatch.context() as patch, Recorder():
        patch.setattr(Source, "batches", hanging)
        with pytest.raises((Terminated, KeyboardInterrupt)):
            scene.train()
    gate.set()
    assert ("it is left where it hangs" in caplog.text) == (window > 0)
    assert 8 <= max(scene.checkpoints()) <= 11
    assert scene.ends_as_if_undisturbed()


def raising_once(monkeypatch, owner, name: str, at: int, error: BaseException) -> None:
    """In the `at`-th call."""
    call, left = getattr(owner, name), [at]

    def failing(*args, **more):
        left[0] -= 1
        if left[0] == 0:
            raise error
        return call(*args, **more)

    monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("name", ["announce", "plan", "fetch"])
def test_an_exception_in_a_thread_of_look_ahead(scene, monkeypatch, name):
    raising_once(monkeypatch, Store, name, 20, MemoryError("by the test"))
    with pytest.raises(MemoryError, match="by the test"):
        scene.train()
    with Run.load("run", "last") as last:
        assert last.facts["step"] == max(scene.checkpoints()) > 4
    assert scene.ends_as_if_undisturbed()


@pytest.mark.parametrize("error", [RuntimeError("by the test"), MemoryError("by the test")])
def test_an_exception_in_the_writer_of_checkpoints(scene, monkeypatch, error):
    raising_once(monkeypatch, writer, "write_part", 3, error)
    with pytest.raises(type(error), match="by the test"):
        scene.train()
    assert scene.checkpoints() == [4, 8, 16]  # the next one, which raised it, is made when the run ends
    assert not list(Path("run/checkpoints").glob("*.new"))
    assert scene.ends_as_if_undisturbed()


class JumpingClock:
    """Seconds that pass one a call, but for jumps of ten years ahead and back."""

    def __init__(self) -> None:
        self.calls = itertools.count()
        self.now = 1e9

    def __call__(self) -> float:
        call = next(self.calls)
        self.now += {7: 3e8, 14: -6e8, 40: 3e8}.get(call, 1)
        return self.now


def test_a_clock_that_jumps(scene, monkeypatch):
    clock = JumpingClock()
    monkeypatch.setattr(trainer, "Due", partial(Due, now=clock))
    monkeypatch.setattr(trainer, "monotonic", JumpingClock())
    monkeypatch.setattr("time.time", JumpingClock())
    run = msgspec.structs.replace(scene.run, checkpoint=Checkpoints(every_minutes=0.1, keep=99))
    trained(run, "run")
    assert 3 <= len(scene.checkpoints()) <= 12
    assert max(later - earlier for earlier, later in itertools.pairwise([0, *scene.checkpoints()])) <= 8
    assert differences(end_of("run"), scene.whole) == []
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [5, 10, 15, 20, 24]

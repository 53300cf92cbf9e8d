"""How many threads torch takes where a new run says train.torch_threads = "auto": measured before its first step.

Copies of the run train on its first batch by one thread, by half and by all of the cores in turn: at least four steps
of each number, twice, and more of them where a fifth of a second has room for more. So it takes about a second where
steps are short, and as long as these steps where they are not. What was chosen is part of the run's numerics from then
on. A run of several processes is not measured. With one thread of torch on two cores look-ahead has a core for itself
and hides what it does; with both the model is as fast as they make it, and look-ahead takes its time from them. Which
is quicker depends on the model and the batch, so whole steps of the very loop are measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from torch import nn

from sfctr.data import Source
from sfctr.spec.batch import Batch
from sfctr.spec.errors import SfctrError
from sfctr.spec.runfile import Checkpoints, RunFile, Train
from sfctr.spec.schema import Schema
from sfctr.store import Store
from sfctr.telemetry import Recorder, notice

from .assembly import loop_parts, scorer_of
from .generators import generators_kept
from .parts import Step
from .progress import ProgressLine
from .threads import MOST_CORES, because, candidates, cores, quickest
from .trainer import Trainer

TURNS = 2
"""Of each number of threads."""
BUDGET_S = 0.2
"""Of one turn, from its first step on; at least LEAST_STEPS are taken."""
WARM, LEAST_STEPS, MOST_STEPS = 2, 4, 16
LEAST_GAIN = 0.05
"""Share of a step from which on another number than torch's own choice is taken."""
SHORT_RUN = 200
"""Steps of a run below which its threads are not worth a measurement."""


def with_torch_threads(run: RunFile, module: nn.Module, source: Source) -> RunFile:
    """A settled new run of one process with as many threads of torch as make its steps quickest, said aloud.

    Neither module nor source changes. What fails in a copy of the run is left to the run's own first step to say.
    """
    default = run.train.torch_threads
    assert isinstance(default, int), "a settled run has a number"
    numbers = candidates(default, min(cores(), MOST_CORES))
    if len(numbers) == 1 or run.train.device != "cpu" or _is_short(run.train, source.num_rows):
        why = "there is one core" if len(numbers) == 1 else "the model is not on the CPU"
        return _said(run, default, "the run is short" if run.train.device == "cpu" and len(numbers) > 1 else why)
    try:
        seconds = _measured(run, module, source, numbers)
    except (SfctrError, RuntimeError, TypeError) as error:
        return _said(run, default, f"a copy of the run could not be timed ({error})")
    if not all(seconds.values()):
        return _said(run, default, "the data have no batch to time")
    chosen = quickest(seconds, LEAST_GAIN)
    return _said(run, chosen, because(seconds, chosen))


def say_unmeasured(run: RunFile) -> None:
    """Of a new run of several processes that asked to be measured."""
    _said(run, run.train.torch_threads, "a run of several processes is not measured; to have another number, set it")


def _said(run: RunFile, threads: int | str | None, why: str) -> RunFile:
    notice(f"train.torch_threads: {threads}, because {why}")
    return _with_train(run, torch_threads=threads)


def _is_short(train: Train, num_rows: int | None) -> bool:
    steps = None if num_rows is None else train.epochs * (num_rows // train.batch_size)
    bounds = [bound for bound in (steps, train.max_steps) if bound is not None]
    return min(bounds, default=SHORT_RUN) < SHORT_RUN


def _measured(run: RunFile, module: nn.Module, source: Source, numbers: tuple[int, ...]) -> dict[int, list[float]]:
    """Seconds of steps by number of threads."""
    batch, seconds = source.sample(), {number: list[float]() for number in numbers}
    if batch is not None:
        with Recorder(), generators_kept():  # what is spent and drawn here is none of the run's steps
            for number in numbers * TURNS:
                seconds[number] += _turn(_short(run, number), copy.deepcopy(module), Repeated(batch, source.schema))
    return seconds


def _turn(run: RunFile, module: nn.Module, source: Repeated) -> list[float]:
    """Seconds of steps of a run with rows of its own."""
    times = _Times()
    with closing(_store(run)) as store:
        parts = loop_parts(
            run, source, store, module, scorer=scorer_of(run, store, module), progress=ProgressLine(None, quiet=True)
        )
        Trainer(replace(parts, lookahead=times.over(parts.lookahead)), run.train, Checkpoints(at_end=False)).run()
    return times.seconds


def _store(run: RunFile) -> Store:
    """Rows for a few steps, in RAM; tables that begin from a file begin from a row of zeros."""
    threads = run.train.threads if isinstance(run.train.threads, int) else min(cores(), MOST_CORES)
    store = Store(run.tables, seed=run.train.seed, threads=threads)
    for table in run.tables:
        if table.pretrained is not None:
            store.set_vectors(table.name, np.zeros(1, np.uint64), np.zeros((1, table.dim), np.float32))
    return store


def _short(run: RunFile, torch_threads: int) -> RunFile:
    """The run's first steps by so many threads, without what is done between steps, and uncompiled."""
    return _with_train(
        run,
        torch_threads=torch_threads,
        max_steps=MOST_STEPS,
        epochs=1,
        evaluate_every=None,
        progressive=False,
        stop_after=None,
        plateau=None,
        compile=False,
    )


def _with_train(run: RunFile, **changes: Any) -> RunFile:
    return msgspec.structs.replace(run, train=msgspec.structs.replace(run.train, **changes))


Loop = Callable[[Iterable[Batch]], Generator[Step, None, None]]


class Repeated:
    """One batch again and again, as a source gives batches."""

    log_odds_shift = 0.0

    def __init__(self, batch: Batch, schema: Schema) -> None:
        self._batch, self.schema = batch, schema
        self.num_rows: int | None = MOST_STEPS * batch.size

    def strings(self, column: str) -> dict[int, str]:
        return {}

    def batches(self, epoch: int = 0, *, start_row: int = 0) -> Generator[Batch, None, None]:
        for _ in range(MOST_STEPS):
            yield self._batch


class _Times:
    """Seconds of steps, but for the first ones, until there are enough of them or their time is up."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def over(self, lookahead: Callable[[Iterable[Batch]], Iterable[Step]]) -> Loop:
        """The same steps, timed from the end of one to the end of the next."""

        def steps(batches: Iterable[Batch]) -> Generator[Step, None, None]:
            began = before = perf_counter()
            ahead: Iterator[Step] = iter(lookahead(batches))
            for number, ready in enumerate(ahead, 1):
                yield ready
                now = perf_counter()
                if number > WARM:
                    self.seconds.append(now - before)
                before = now
                if number >= LEAST_STEPS and now - began > BUDGET_S:
                    break

        return steps

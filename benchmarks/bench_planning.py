"""Measures how much of the work ahead of a step look-ahead hides behind training, with torch on one thread.

Three forms of the same training take turns: `alone`, on batches whose rows were planned before the clock starts;
`ahead`, with window 4, whose threads read, find unique ids, plan and fetch beside training; and `inline`, with window
0, where training waits for all of that. Work ahead of a step is what its stages take in the inline form, and reading
by itself, and

    hidden = 1 - (ahead - alone) / work ahead

What training waited for a batch in the second form is shown beside it: what is neither waited for nor hidden, the
threads cost each other. Batches come from memory, or from a Parquet file, whose reading then is work ahead, too. The
model is the DLRM of bench_end_to_end.py in bfloat16, with all rows in RAM.

It would measure something else on one core (nothing can be hidden), beside other work (the second core is not free:
the difference of two steps is small, and any noise is larger), and with torch on as many threads as there are cores
(training then shares them with look-ahead).

    python benchmarks/bench_planning.py [--rows 10000000] [--rounds 8] [--steps 12] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import measures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from end_to_end_ours import IDS, NUMBERS, Ours
from end_to_end_parts import Batches, Case, write_batches
from measures import Measure
from origin import keep, origin

import sfctr
from sfctr import _native
from sfctr.data import open_source
from sfctr.spec.batch import Batch
from sfctr.telemetry import Recorder

WARM, WINDOW = 6, 4
AHEAD = ("read", "unique", "plan", "fetch")
REACH = 95.0
Source = Callable[[], Iterator[Batch]]


@dataclass(kw_only=True)
class Times:
    """Seconds of steps by form, of the work ahead of a step by stage, and of waiting for it."""

    steps: dict[str, list[float]] = field(default_factory=lambda: {"alone": [], "ahead": [], "inline": []})
    stages: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in AHEAD})
    waits: list[float] = field(default_factory=list)

    def step_ms(self, form: str) -> float:
        return statistics.median(self.steps[form]) * 1e3

    @property
    def stages_ms(self) -> dict[str, float]:
        return {name: statistics.median(seconds) * 1e3 for name, seconds in self.stages.items()}

    @property
    def work_ms(self) -> float:
        return sum(self.stages_ms.values())

    @property
    def hidden(self) -> float:
        """Percent."""
        return 100 * (1 - (self.step_ms("ahead") - self.step_ms("alone")) / self.work_ms)


class Trainings:
    """The three forms over one case's store and dense part."""

    def __init__(self, ours: Ours, count: int) -> None:
        self.ours, self.count = ours, count

    def alone(self, source: Source, times: Times) -> None:
        """All batches are read and planned, and their threads have ended, before the first step."""
        batches = list(islice(source(), WARM + self.count))
        seen = _Counted(batches)
        with closing(self._steps(seen, window=len(batches))) as steps:
            first = next(steps)  # from here on the threads work ahead
            while not seen.ended:
                time.sleep(0.01)
            time.sleep(0.2)  # the planner is one batch behind
            times.steps["alone"] += [first, *steps][WARM:]

    def ahead(self, source: Source, times: Times) -> None:
        with closing(source()) as batches, closing(self._steps(batches, window=WINDOW)) as steps:  # type: ignore[type-var]
            for seconds, spans in self._timed(steps):
                times.steps["ahead"].append(seconds)
                times.waits.append(spans["wait"])

    def inline(self, source: Source, times: Times) -> None:
        with closing(source()) as batches, closing(self._steps(batches, window=0)) as steps:  # type: ignore[type-var]
            for seconds, spans in self._timed(steps):
                times.steps["inline"].append(seconds)
                for name in AHEAD[1:]:
                    times.stages[name].append(spans[name])

    def read(self, source: Source, times: Times) -> None:
        """Reading by itself, of which a source does a part in a thread of its own; opening it is part of warming up."""
        with closing(source()) as batches:  # type: ignore[type-var]
            assert len(list(islice(batches, WARM))) == WARM
            began = time.perf_counter()
            assert len(list(islice(batches, self.count))) == self.count
            times.stages["read"].append((time.perf_counter() - began) / self.count)

    def _timed(self, steps: Iterator[float]) -> Generator[tuple[float, dict[str, float]], None, None]:
        """Seconds of each step and of its spans, but for the first steps."""
        for number in range(WARM + self.count):
            with Recorder() as recorder:
                seconds = next(steps)
            if number >= WARM:
                yield seconds, recorder.seconds()

    def _steps(self, batches: Iterable[Batch], window: int) -> Generator[float, None, None]:
        """Seconds of each step, from the end of the one before."""
        ours = self.ours
        ahead = sfctr.Lookahead(batches, ours.store, schema=ours.schema, window=window)
        began = time.perf_counter()
        with closing(iter(ahead)) as readies:
            for ready in readies:
                float(ours.train(ready))
                ended = time.perf_counter()
                yield ended - began
                began = time.perf_counter()


class _Counted:
    """Batches, and whether the last one was taken and another asked for."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches, self.ended = batches, False

    def __iter__(self) -> Generator[Batch, None, None]:
        yield from self._batches
        self.ended = True


def write_parquet(folder: Path, case: Case) -> Path:
    """The case's batches, one after the other, each in a group of rows of its own."""
    rows, columns = Batches(folder, case), dict[str, Any]()
    ids, numbers, labels = zip(*(rows[number] for number in range(rows.size)), strict=True)
    for at, name in enumerate(IDS):
        columns[name] = np.concatenate([own[at] for own in ids])
    for at, name in enumerate(NUMBERS):
        columns[name] = torch.cat(numbers)[:, at].numpy()
    columns["label"] = torch.cat(labels).numpy().astype(np.int8)
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=case.batch)
    return path


def measure(case: Case, folder: Path, count: int, rounds: int) -> dict[str, Times]:
    """By where batches come from."""
    ours = Ours(folder, case)
    trainings = Trainings(ours, count)

    sources: dict[str, Source] = {"memory": lambda: ours.stream(0)}
    if case.bag == 1:
        path = write_parquet(folder, case)

        def from_file() -> Iterator[Batch]:
            with open_source(str(path), ours.schema, batch_size=case.batch, shuffle=False) as source:
                yield from source.batches()

        sources["Parquet"] = from_file
    found = {name: Times() for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            for form in (trainings.read, trainings.alone, trainings.ahead, trainings.inline):
                form(source, found[name])
    return found


def page_of(results: dict[str, Times]) -> list[str]:
    lines = [
        "| case | alone, ms | ahead, ms | inline, ms | waited, ms | work ahead, ms | of it "
        + ", ".join(AHEAD)
        + " | hidden |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name, times in results.items():
        steps = " | ".join(f"{times.step_ms(form):.1f}" for form in times.steps)
        stages = ", ".join(f"{ms:.1f}" for ms in times.stages_ms.values())
        waited = statistics.fmean(times.waits) * 1e3
        lines.append(f"| {name} | {steps} | {waited:.2f} | {times.work_ms:.1f} | {stages} | {times.hidden:.0f} % |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables together")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12, help="that are timed, of a turn")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/planning.json and planning.md")
    measures.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    _native.set_num_threads(1)
    results: dict[str, Times] = {}
    for bag in (1, 5):
        case = Case(
            model="dlrm",
            rule="rowwise",
            bag=bag,
            bf16=True,
            rows=args.rows,
            batch=args.batch,
            num_batches=WARM + args.steps + WINDOW + 2,
        )
        with tempfile.TemporaryDirectory() as scratch:
            write_batches(Path(scratch), case)
            found = measure(case, Path(scratch), args.steps, args.rounds)
        results |= {f"{case}, from {source}": times for source, times in found.items()}
    facts = origin(rows=f"{args.rows:,}", batch=args.batch, rounds=args.rounds, steps=args.steps, torch_threads=1)
    head = ["# Work hidden behind training", "", ", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    page = "\n".join([*head, *page_of(results)]) + "\n"
    lines = [
        Measure(
            target="planning",
            case=name,
            ours=times.step_ms("ahead"),
            theirs=times.step_ms("alone"),
            rival="training alone",
            unit="ms a step",
            figure=times.hidden,
            figure_unit="%",
            reach=REACH,
        )
        for name, times in results.items()
    ]
    print(page)
    measures.write(args.measures, lines)
    if args.save:
        keep("planning", page, {**facts, "lines": [vars(line) for line in lines]})


if __name__ == "__main__":
    main()

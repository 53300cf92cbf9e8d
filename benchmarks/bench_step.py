"""Measures a step of embedding tables in RAM, ours against FBGEMM on the CPU and against nn.EmbeddingBag.

A step is all that becomes of ids: unique keys, look-up, pooled forward, gradients merged by key, update. 26 features
of a table each, batches of 8,192 rows, ids by Zipf's law with exponent 1.05, the frequent ones far apart. Gradients of
the pooled vectors are given, so there is no dense part. Ours runs through the public API with `window=0`: nothing is
read ahead or beside. All contenders begin from equal rows, every one of which exists before the clock starts, merge
the gradients of a key, have the same eps, and train the same batches in turn: 32 of them (12 where 5-hot), so that
most rows have left the nearer caches when they come again. After three steps, what they pool is compared: a contender
that computes something else is not measured. All ask for huge pages, and the page says how many they got.

Of what both have, FBGEMM does row-wise Adagrad by a slow path on the CPU and SGD by its fastest: both are shown. Its
OpenMP threads, and torch's, sleep while they wait. They spin by default, which on a machine with other work made two
threads a hundred times slower than one; GOMP_SPINCOUNT=300000 before the command measures that.

Rounds are taken in turn, each contender alone while the others sleep: a step to warm up, then at least four, and half a
second. A figure is the median of the rounds' median steps. The last columns are ratios of the shortest steps of all,
and of processor time (all threads), which other work on the machine disturbs less. It would measure something else with
fewer rows or batches (then: the processor's cache), with ids that lie together, without huge pages, or where threads
are more than free cores.

A case takes at most 6 GB for both contenders: rows are fewer than asked for where they would take more.

    python benchmarks/bench_step.py [--rows 10000000] [--rounds 3] [--rules sgd ...] [--dims 16 ...] [--large] [--save]

Needs to install FBGEMM into benchmarks/.rivals once.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import measures
import numpy as np
from measures import Measure
from origin import keep, origin
from rivals import HERE, NotInstalled, python_of
from step_data import STATE_FLOATS, Case, bytes_of_two
from team import Team, TeamFailed

OURS = "sfctr"
SCRIPTS = {
    OURS: HERE / "step_sfctr.py",
    "FBGEMM": HERE / "baselines" / "step_fbgemm.py",
    "nn.EmbeddingBag": HERE / "baselines" / "step_torch.py",
}
THREADS = (1, 2)
MOST_BYTES = 6e9
LEAST_STEPS, LEAST_S = 4, 0.5
TOLERANCE = 1e-3
"""Of what three steps changed: root mean square of the difference, to that of the change."""
RULE_NAMES = {"sgd": "SGD", "rowwise_adagrad": "row-wise Adagrad", "adagrad": "Adagrad", "adam": "SparseAdam"}
PARTS = ("unique", "plan", "features", "backward", "update")
BEGAN = time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Rivalry:
    """Ours against `rival` in a case. target: of measures.TARGETS."""

    target: str
    rival: str
    case: Case

    def reach(self, threads: int) -> float:
        if self.target == "step-torch":
            return {"adagrad": 7.0, "adam": 10.0}[self.case.rule]
        one, two = {"step-sgd": (1.8, 3.5), "step-rowwise": (5.0, 9.0) if self.case.dim <= 16 else (3.0, 6.0)}[
            self.target
        ]
        return one if threads == 1 else two


@dataclass
class Found:
    """of: (contender, threads) -> the steps of each round, in ms. processor: the same, of all threads. parts: threads
    -> of each round, what each part of our steps took, in ms. memory: of each contender. failed: why."""

    of: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)
    processor: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)
    parts: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: str = ""

    def median(self, who: str, threads: int) -> float:
        return median(self.of[who, threads])

    def least(self, who: str, threads: int) -> float:
        return min(min(steps) for steps in self.of[who, threads])


def median(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(statistics.median(steps) for steps in rounds)


def say(text: str) -> None:
    """How far it is, on stderr."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {text}", file=sys.stderr, flush=True)


def rivalries(rows: int, dims: Sequence[int], bags: Sequence[int]) -> Iterator[Rivalry]:
    for rule, target in (("rowwise_adagrad", "step-rowwise"), ("sgd", "step-sgd")):
        for dim in dims:
            for bag in bags:
                yield Rivalry(target=target, rival="FBGEMM", case=fitting(rule, dim, bag, rows))
    for rule in ("adagrad", "adam"):
        for dim in (dim for dim in dims if dim < 128):
            yield Rivalry(target="step-torch", rival="nn.EmbeddingBag", case=fitting(rule, dim, 1, rows))


def fitting(rule: str, dim: int, bag: int, rows: int) -> Case:
    """A case of so many rows, or of as many as MOST_BYTES allows."""
    one = bytes_of_two(Case(rule=rule, dim=dim, bag=bag, rows=1))
    step = 10 ** int(math.log10(MOST_BYTES / one))  # to a round number
    return Case(rule=rule, dim=dim, bag=bag, rows=min(rows, int(MOST_BYTES / one / step * 10) * step // 10))


def large() -> list[Rivalry]:
    return [
        Rivalry(target=target, rival="FBGEMM", case=Case(rule=rule, dim=16, bag=1, rows=rows))
        for rows in (20_000_000, 100_000_000)
        for rule, target in (("rowwise_adagrad", "step-rowwise"), ("sgd", "step-sgd"))
    ]


class Contenders:
    """A process for each, begun when it is first asked; whoever failed stays out."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._teams: dict[str, Team] = {}
        self._failed: dict[str, str] = {}

    def ask(self, who: str, job: Mapping[str, Any]) -> dict[str, Any]:
        """Raises TeamFailed."""
        if who in self._failed:
            raise TeamFailed(self._failed[who])
        try:
            if who not in self._teams:
                self._teams[who] = self._stack.enter_context(self._start(who))
            return self._teams[who].ask(dict(job), timeout_s=600)[0]
        except (TeamFailed, NotInstalled) as error:
            self._failed[who] = str(error)
            raise TeamFailed(str(error)) from None

    def _start(self, who: str) -> Team:
        python = {"python": python_of("torchrec")} if who == "FBGEMM" else {}
        return Team(SCRIPTS[who], 1, self._folder, threads=max(THREADS), **python)

    def sleep(self, names: Sequence[str]) -> None:
        """Give back the memory of these: they are begun anew when asked again."""
        for who in names:
            if who in self._teams:
                self._teams.pop(who).close()


def measure(rivalry: Rivalry, contenders: Contenders, rounds: int, folder: Path) -> Found:
    found, names = Found(), (OURS, rivalry.rival)
    try:
        with ThreadPoolExecutor(len(names)) as pool:
            memory = pool.map(lambda who: prepared(rivalry.case, who, contenders, folder), names)
            found.memory = dict(zip(names, memory, strict=True))
        found.failed = difference(folder, names)
        for _ in range(0 if found.failed else rounds):
            for threads in THREADS:
                job = {"do": "time", "threads": threads, "seconds": LEAST_S, "least": LEAST_STEPS}
                for who in names:
                    answer = contenders.ask(who, job)
                    if who == OURS:
                        own = {name: s * 1e3 for name, s in answer["parts_s"].items()}
                        found.parts.setdefault(threads, []).append(own)
                    for part, name in ((found.of, "step_s"), (found.processor, "processor_s")):
                        part.setdefault((who, threads), []).append([s * 1e3 for s in answer[name]])
    except TeamFailed as error:
        found.failed = str(error)
    return found


def prepared(case: Case, who: str, contenders: Contenders, folder: Path) -> dict[str, int]:
    memory = contenders.ask(who, {"do": "build", **asdict(case)})
    contenders.ask(who, {"do": "check", "file": str(folder / f"{who}.npz")})
    return memory


def difference(folder: Path, names: Sequence[str]) -> str:
    """Says where the contenders did not compute the same; empty where they did."""
    ours, theirs = (np.load(folder / f"{who}.npz") for who in names)
    if not np.allclose(ours["before"], theirs["before"], rtol=0, atol=1e-6):
        return "the contenders did not begin from the same rows"
    apart = rms(ours["change"] - theirs["change"]) / rms(ours["change"])
    return "" if apart < TOLERANCE else f"after three steps the contenders are {apart:.1e} of their change apart"


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def lines_of(rivalry: Rivalry, found: Found) -> list[Measure]:
    rule = RULE_NAMES[rivalry.case.rule]
    lines = []
    for threads in THREADS:
        case = f"{rule}, {rivalry.case}, {threads} {'thread' if threads == 1 else 'threads'}"
        line: dict[str, Any] = {"target": rivalry.target, "case": case, "rival": rivalry.rival}
        if found.failed:
            lines.append(Measure(**line, not_run=found.failed))
            continue
        ours, theirs = (found.median(who, threads) for who in (OURS, rivalry.rival))
        ratio, reach = theirs / ours, rivalry.reach(threads)
        lines.append(Measure(**line, ours=ours, theirs=theirs, unit="ms a step", figure=ratio, reach=reach))
    return lines


def page_of(results: Sequence[tuple[Rivalry, Found]], facts: Mapping[str, object]) -> str:
    lines = ["# A step of embedding tables in RAM", "", *(f"{name}: {value}  " for name, value in facts.items()), ""]
    lines += ["| step | rival | ours, ms | theirs, ms | ratio | to reach | of the shortest | of the processor |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|"]
    for rivalry, found in results:
        for threads, line in zip(THREADS, lines_of(rivalry, found), strict=True):
            if line.figure is None:
                lines.append(f"| {line.case} | {line.rival} | | | not run: {line.not_run} | | | |")
                continue
            best = found.least(rivalry.rival, threads) / found.least(OURS, threads)
            processor = median(found.processor[rivalry.rival, threads]) / median(found.processor[OURS, threads])
            times = f"{line.ours:.1f} | {line.theirs:.1f} | **{line.figure:.2f}**"
            lines.append(f"| {line.case} | {line.rival} | {times} | {line.reach} | {best:.2f} | {processor:.2f} |")
    shares = [m["huge_bytes"] / m["bytes"] for _, found in results for m in found.memory.values()]
    if shares:
        lines += ["", f"Of a contender's memory, {min(shares):.0%} to {max(shares):.0%} was in huge pages."]
    return "\n".join([*lines, "", *parts_of(results)]) + "\n"


def parts_of(results: Sequence[tuple[Rivalry, Found]]) -> list[str]:
    """Where our time goes: medians over rounds of each part's mean."""
    lines = ["Ours, part by part, in ms:", "", f"| step | {' | '.join(PARTS)} | the rest |"]
    lines.append("|---|" + "---:|" * (len(PARTS) + 1))
    for rivalry, found in results:
        for threads, line in zip(THREADS, lines_of(rivalry, found), strict=True):
            if line.ours is None:
                continue
            own = [statistics.median(parts.get(name, 0.0) for parts in found.parts[threads]) for name in PARTS]
            figures = " | ".join(f"{ms:.2f}" for ms in [*own, max(0.0, line.ours - sum(own))])
            lines.append(f"| {line.case} | {figures} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rules", nargs="+", choices=[*STATE_FLOATS], default=[*STATE_FLOATS])
    parser.add_argument("--dims", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--bags", nargs="+", type=int, default=[1, 5], help="ids a feature, against FBGEMM")
    parser.add_argument(
        "--large", action="store_true", help="20 M and 100 M rows of dim 16, too; up to 16 GB of memory"
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/step.json and step.md")
    measures.add_option(parser)
    args = parser.parse_args()
    planned = [*rivalries(args.rows, args.dims, args.bags), *(large() if args.large else ())]
    results = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        contenders = Contenders(stack, Path(scratch))
        for rivalry in planned:
            if rivalry.case.rule not in args.rules:
                continue
            contenders.sleep([who for who in SCRIPTS if who not in (OURS, rivalry.rival)])
            results.append((rivalry, measure(rivalry, contenders, args.rounds, Path(scratch))))
            for line in lines_of(*results[-1]):
                say(f"{line.case}, {line.rival}: {line.not_run or f'{line.ours:.1f} ms, ratio {line.figure:.2f}'}")
    lines = [line for result in results for line in lines_of(*result)]
    facts = origin(rounds=args.rounds, batch="8,192 rows of 26 features", took=f"{time.monotonic() - BEGAN:.0f} s")
    page = page_of(results, facts)
    print(page)
    measures.write(args.measures, lines)
    if args.save:
        keep("step", page, {**facts, "lines": [asdict(line) for line in lines]})


if __name__ == "__main__":
    main()

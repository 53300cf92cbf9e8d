"""Measures whole training steps: ids and numbers in memory to updated rows and weights, ours against TorchRec.

DLRM and DeepFM with a top MLP of 512-256 over 26 columns of ids (sizes in the proportions of Criteo's, Zipf 1.05) and
13 numbers; fp32, and bfloat16 by torch's autocast; one id a column, and five; rows by row-wise Adagrad, and by SGD,
which is FBGEMM's fast path. Contenders have the same first weights and rows, the same batches in the same order, the
same dense part and its optimizer (Adam, fused), huge pages, and denormals flushed; so they come to the same losses,
which are shown. The dense part alone, over ready tensors in the place of rows, is the ceiling for any of them.

  ours         finds unique ids, plans and fetches in two threads of look-ahead (window 4), beside training
  TorchRec     a fused EmbeddingBagCollection: FBGEMM updates rows in the backward pass
  dense        the dense part alone
  deepctr      deepctr-torch as its user has it, in one case of 1 M rows: its gradients are dense, it is no peer

Each contender is measured at several settings of its threads and counts at its best one, which is named. Contenders
take turns while the others sleep, and medians over all rounds are quoted.

It would measure something else with few rows (they would sit in the processor's cache), with the window's first
batches (they are left out), with batches that end (look-ahead would rest), and on a machine that does other work.

    python benchmarks/bench_end_to_end.py [--rows 10000000] [--rounds 3] [--steps 8] [--cases dlrm,bf16] [--save]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import measures
import torch
from end_to_end_parts import Case, write_batches
from measures import Measure
from origin import keep, origin
from rivals import NotInstalled, python_of
from team import Team, TeamFailed

from sfctr.train.threads import cores

HERE = Path(__file__).resolve().parent
WARM = 6
"""Steps of a turn that are not timed: they fill the window, and touch what others have driven out of the caches."""
DEEPCTR_ROWS = 1_000_000
REACH = {"one-hot fp32": 1.5, "one-hot bf16": 1.9, "bag": 3.2}
OF_CEILING = 80.0

Setting = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """settings: that are tried; `torch` is the number of torch's threads. rival: names its environment."""

    name: str
    script: Path
    settings: tuple[Setting, ...]
    rival: str | None = None


def contenders(num_cores: int) -> dict[str, Contender]:
    threads = sorted({1, num_cores})
    torch_alone = tuple({"torch": n} for n in threads)
    ours = [{"torch": t, "kernels": k, "window": 4} for t in threads for k in threads if k >= t]
    found = (
        Contender(name="ours", script=HERE / "end_to_end_ours.py", settings=tuple(ours)),
        Contender(
            name="TorchRec",
            script=HERE / "baselines/end_to_end_torchrec.py",
            settings=torch_alone,
            rival="torchrec",
        ),
        Contender(name="dense", script=HERE / "end_to_end_dense.py", settings=torch_alone),
        Contender(
            name="deepctr", script=HERE / "baselines/end_to_end_deepctr.py", settings=torch_alone, rival="deepctr"
        ),
    )
    return {contender.name: contender for contender in found}


def all_cases(rows: int, batch: int, num_batches: int) -> list[Case]:
    common: dict[str, Any] = {"rows": rows, "batch": batch, "num_batches": num_batches}
    one_hot = [
        Case(model=model, rule=rule, bag=1, bf16=bf16, **common)
        for model in ("dlrm", "deepfm")
        for bf16 in (False, True)
        for rule in ("rowwise", "sgd")
    ]
    return one_hot + [Case(model="dlrm", rule=rule, bag=5, bf16=True, **common) for rule in ("rowwise", "sgd")]


@dataclass(kw_only=True)
class Found:
    """What a contender took in one case. losses: of all its steps, in their order."""

    by_setting: dict[str, list[float]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    @property
    def best(self) -> str:
        return min(self.by_setting, key=lambda setting: statistics.median(self.by_setting[setting]))

    @property
    def step_s(self) -> float:
        return statistics.median(self.by_setting[self.best])


class Measured:
    """Contenders, and what each found in the cases until now: figures, or why there are none."""

    def __init__(self, stack: ExitStack, folder: Path, num_cores: int, rounds: int, steps: int) -> None:
        self._stack, self._folder, self._rounds, self._steps = stack, folder, rounds, steps
        self._contenders, self._teams = contenders(num_cores), dict[str, Team]()
        self._failed: dict[str, str] = {}
        self._written: set[str] = set()

    def case(self, case: Case, names: Iterable[str]) -> dict[str, Found | str]:
        """Of each contender: its figures, or why there are none."""
        if case.data not in self._written:
            write_batches(self._folder, case)
            self._written.add(case.data)
        found = {name: Found() for name in names}
        for name in found:
            self._ask(name, case.as_job())
        for number in range(self._rounds):
            for name, own in found.items():
                for setting in self._contenders[name].settings:
                    job = {"do": "steps", "setting": setting, "warm": WARM, "count": self._steps}
                    answer = self._ask(name, job)
                    if answer is not None:
                        own.by_setting.setdefault(_words(setting), []).extend(answer["step_s"])
                        own.losses += answer["losses"]
            _say(f"{case}: round {number + 1}")
        return {name: self._failed.get(name) or own for name, own in found.items()}

    def _ask(self, name: str, job: dict[str, Any]) -> dict[str, Any] | None:
        if name in self._failed:
            return None
        try:
            if name not in self._teams:
                self._teams[name] = self._stack.enter_context(self._team(name))
            return self._teams[name].ask(job)[0]
        except (NotInstalled, TeamFailed) as error:
            if name == "ours":
                raise
            self._failed[name] = str(error)
            _say(f"{name} is not measured: {error}")
            return None

    def _team(self, name: str) -> Team:
        contender = self._contenders[name]
        python = Path(sys.executable) if contender.rival is None else python_of(contender.rival)
        return Team(contender.script, 1, self._folder, python=python, threads=0)


def _words(setting: Setting) -> str:
    return ", ".join(f"{name} {count}" for name, count in setting.items() if name != "window")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------------ the page


def lines_of(case: Case, found: Mapping[str, Found | str]) -> list[Measure]:
    """The lines of the table that a case gives."""
    ours = found["ours"]
    assert isinstance(ours, Found)
    target = "end-to-end" if case.bag == 1 else "end-to-end-bag"
    kind = "bag" if case.bag > 1 else f"one-hot {'bf16' if case.bf16 else 'fp32'}"
    lines = []
    for name, theirs in found.items():
        if name == "ours":
            continue
        rival = {"dense": "the dense part alone", "deepctr": "deepctr-torch, 1 M rows"}.get(name, name)
        line = Measure(target=target, case=str(case), rival=rival, ours=ours.step_s * 1e3, unit="ms a step")
        if isinstance(theirs, str):
            lines.append(replace(line, not_run=theirs))
            continue
        ratio = theirs.step_s / ours.step_s
        line = replace(line, theirs=theirs.step_s * 1e3, figure=ratio)
        if name == "dense":
            line = replace(line, figure=100 * ratio, figure_unit="%", reach=OF_CEILING)
        elif name == "TorchRec" and case.rule == "rowwise":
            line = replace(line, reach=REACH[kind])
        lines.append(line)
    return lines


def page_of(results: Sequence[tuple[Case, Mapping[str, Found | str]]]) -> list[str]:
    lines = [
        "| case | who | threads | step, ms | rows/s | times ours | loss |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for case, found in results:
        ours = found["ours"]
        assert isinstance(ours, Found)
        common = min(len(own.losses) for own in found.values() if isinstance(own, Found) and own.losses)
        for name, own in found.items():
            if isinstance(own, str):
                lines.append(f"| {case} | {name} | not run: {own} | | | | |")
                continue
            pace = f"{own.step_s * 1e3:.1f} | {case.batch / own.step_s:,.0f} | {own.step_s / ours.step_s:.2f}"
            loss = "" if name == "dense" else f"{own.losses[common - 1]:.5f}"
            lines.append(f"| {case} | {name} | {own.best} | {pace} | {loss} |")
    return [
        *lines,
        "",
        "Times ours: its step, to ours. Losses are of the same step of all contenders of a case, before its update;",
        "deepctr-torch begins from other weights. Threads: the best of those tried.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables together")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=32, help="that differ; they come again and again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="that are timed, of a turn")
    parser.add_argument("--cases", default="", help="words of the cases to measure, by commas: dlrm,bf16,5-hot")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/end_to_end.json and .md")
    measures.add_option(parser)
    args = parser.parse_args()
    words = [word for word in args.cases.lower().split(",") if word]
    results: list[tuple[Case, Mapping[str, Found | str]]] = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        measured = Measured(stack, Path(scratch), cores(), args.rounds, args.steps)
        for case in all_cases(args.rows, args.batch, args.batches):
            if all(word in str(case).lower() for word in words):
                results.append((case, measured.case(case, ("ours", "TorchRec", "dense"))))
        small = Case(
            model="deepfm",
            rule="rowwise",
            bag=1,
            bf16=False,
            rows=min(args.rows, DEEPCTR_ROWS),
            batch=args.batch,
            num_batches=args.batches,
        )
        if not words or "deepctr" in words:
            results.append((small, measured.case(small, ("ours", "deepctr"))))
    facts = origin(
        rows=f"{args.rows:,}", batch=args.batch, rounds=args.rounds, steps=args.steps, torch=torch.__version__
    )
    head = ["# Training end to end", "", ", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    page = "\n".join([*head, *page_of(results)]) + "\n"
    lines = [line for case, found in results for line in lines_of(case, found)]
    print(page)
    measures.write(args.measures, lines)
    if args.save:
        keep("end_to_end", page, {**facts, "lines": [vars(line) for line in lines]})


if __name__ == "__main__":
    main()

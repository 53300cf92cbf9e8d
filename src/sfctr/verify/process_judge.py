"""Says of a run on several processes whether it comes to what one process comes to.

Both ways of synchronising rows are tried, and must agree in every bit; so must the dense parts of all ranks after every
step. Against one process sums are taken in another order: there the tolerance is ten times the drift of one unit in the
last place. Where all steps together are further apart, each step is judged alone, from where the ranks were before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec

from sfctr.spec.runfile import RunFile

from .compare import Rule, SameBits, WithinDrift
from .difference import Difference, any_difference, last_difference
from .finding import Finding, drifts
from .outcome import Outcome
from .parts import Part, joined, ranks_at_odds
from .steps import DRAWS, EachStep, without_reference
from .variants import plain, with_train
from .workbench import Workbench


class Train(Protocol):
    """See processes.train_in_processes."""

    def __call__(self, run: RunFile, steps: int, size: int, start: Path | None = None) -> Sequence[Sequence[Part]]: ...


SYNCS = ("owners", "allreduce")


class ProcessJudge:
    """expected: what one process came to. ranks: trains on several."""

    def __init__(
        self, bench: Workbench, expected: Outcome, size: int, ranks: Train, begins: Callable[[str], None]
    ) -> None:
        self.bench, self.expected, self.size, self.ranks, self.begins = bench, expected, size, ranks, begins
        self.steps = expected.steps

    def findings(self) -> Iterator[Finding]:
        rule, before = self.tolerance(), None
        for sync in SYNCS:
            name = f"{self.size} processes, {sync}"
            self.begins(name)
            parts = self.ranks(self._form(sync), self.steps, self.size)
            found = self._joined(parts)
            yield self._judged(name, parts, found, rule)
            if before is not None:
                yield self._same_bits(f"{name}, and {SYNCS[0]}", found[-1], before)
            before = found[-1]
        if self.steps > 1:
            yield self.taken_over(rule)

    def taken_over(self, rule: Rule) -> Finding:
        """One process trains half of the steps, and several go on from its checkpoint."""
        name = f"1 process, then {self.size}"
        self.begins(name)
        with TemporaryDirectory(prefix="sfctr-verify-") as directory:
            self.bench.train_kept(plain(self.bench.run), self.steps // 2, Path(directory), goes_on=False)
            self.ranks(self._form(SYNCS[0]), self.steps, self.size, Path(directory))
            found = self.bench.kept(Path(directory), self.expected)
        difference = any_difference(found, self.expected, rule, self.bench.run)
        return Finding.of(name, found, "differs" if difference else "within 10 drifts of one process", difference)

    def _form(self, sync: str) -> RunFile:
        """The run in its plain tiers, with its own window and dense part, on several ranks; nothing is rounded on its
        way, for that would be a difference that was asked for."""
        run = self.bench.run
        parallel = msgspec.structs.replace(run.parallel, sync=sync, wire="fp32", shares=())
        form = with_train(plain(run), window=max(run.train.window, 2))
        return msgspec.structs.replace(form, parallel=parallel)

    def _joined(self, parts: Sequence[Sequence[Part]]) -> list[Outcome]:
        """What all ranks came to after each step."""
        batches = islice(iter(self.bench.first_batches(self.steps)), self.steps)
        return [joined([of_rank[step] for of_rank in parts], batch) for step, batch in enumerate(batches)]

    def _judged(self, name: str, parts: Sequence[Sequence[Part]], found: Sequence[Outcome], rule: Rule) -> Finding:
        last = found[-1]
        odd = next(filter(None, (ranks_at_odds(each) for each in zip(*parts, strict=True))), None)
        if odd is not None:
            return Finding.of(name, last, "differs", odd)
        whole = any_difference(last, self.expected, rule, self.bench.run)
        if without_reference(self.bench.run):
            return self._by_steps(name, found, rule, whole)
        steps = EachStep(self.bench)
        for outcome in found:
            steps.take(outcome)
        if steps.difference is not None:
            return Finding.of(name, last, "differs", steps.difference)
        if whole is not None:
            return Finding.of(name, last, f"each step {drifts(steps.largest)}; all of them apart by rounding alone")
        return Finding.of(name, last, drifts(steps.largest))

    def _by_steps(self, name: str, found: Sequence[Outcome], rule: Rule, whole: Difference | None) -> Finding:
        """Where plain torch has no counterpart of a table: against one process after each step."""
        if whole is None:
            return Finding.of(name, found[-1], "within 10 drifts of one process")
        expected: list[Outcome] = []
        self.bench.train(plain(self.bench.run), self.steps, expected.append)
        pairs = zip(found, expected, strict=True)
        first = next(filter(None, (last_difference(one, other, rule, self.bench.run) for one, other in pairs)), whole)
        return Finding.of(name, found[-1], "differs", first)

    def _same_bits(self, name: str, one: Outcome, other: Outcome) -> Finding:
        difference = any_difference(one, other, SameBits(), self.bench.run)
        return Finding.of(name, one, "same bits" if difference is None else "differs", difference)

    def tolerance(self) -> WithinDrift:
        """The tolerance of all steps together."""
        self.begins("one process, nudged")
        if without_reference(self.bench.run):
            form = plain(self.bench.run)
            return WithinDrift(self.expected, (self.bench.train(form, self.steps, nudge=draw) for draw in DRAWS))
        batches = self.bench.first_batches(self.steps)
        return WithinDrift(self.bench.reference(batches), (self.bench.reference(batches, nudge=draw) for draw in DRAWS))

"""Trains a run's first steps in every form that must come to the same, and says of each whether it does.

First the plain form twice: where a run is not repeatable in itself, nothing more can be told. Then every variant
against it, bit for bit. Last the plain form against plain torch, within ten times the drift of one unit in the last
place. Where something differs, the steps are taken again, fewer each time, until the first step at odds is found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from sfctr.spec.errors import CapacityError, ConfigError
from sfctr.spec.runfile import RunFile

from .compare import Rule, SameBits, WithinDrift, first_step_at_odds
from .difference import Difference, any_difference, last_difference
from .finding import Finding, drifts
from .outcome import Outcome
from .process_judge import ProcessJudge, Train
from .processes import train_in_processes
from .steps import DRAWS, EachStep, without_reference
from .variants import Footprint, Variant, loop_variants, plain, tier_variants, with_train
from .workbench import Makers, Workbench

STEPS = 20
Pair = tuple[Outcome, Outcome, Rule]


def verify_run(
    run: RunFile,
    *,
    steps: int = STEPS,
    quick: bool = False,
    data: Any = None,
    valid: Any = None,
    processes: int = 1,
    makers: Makers = Makers(),  # noqa: B008  frozen
    ranks: Train = train_in_processes,
    begins: Callable[[str], None] = lambda variant: None,
) -> Generator[Finding, None, None]:
    """A finding for each form of the run, as it is made; `begins` is told of each form beforehand.

    steps: how many to train; fewer where the run is shorter. quick: only the most telling forms. data, valid: frames
    instead of run.data's files. processes: above 1, the run is also trained on so many processes of this machine, by
    `ranks`, and compared within the tolerance that rounding needs. Raises what training raises.
    """
    if steps < 1:
        raise ConfigError(f"--steps is {steps} and must be at least 1")
    if processes > 1 and not (data is None and valid is None):
        raise ConfigError("several processes read files, and cannot be given frames")
    with Workbench(run, makers, data=data, valid=valid) as bench:
        judge = _Judge(bench, steps, begins)
        yield from judge.findings(quick=quick, has_tiers=makers.has_tiers)
        if processes > 1:
            yield from ProcessJudge(bench, judge.plain, processes, ranks, begins).findings()


class _Judge:
    def __init__(self, bench: Workbench, steps: int, begins: Callable[[str], None]) -> None:
        self.bench, self.steps, self.begins = bench, steps, begins
        self.form = plain(bench.run)

    def findings(self, *, quick: bool, has_tiers: bool) -> Iterator[Finding]:
        self.begins("plain")
        self.plain = self.bench.train(self.form, self.steps)
        finding = self.repeated()
        yield finding
        if not finding.holds:
            return
        touched = Footprint.of(self.plain)
        variants = loop_variants(self.bench.run) + (tier_variants(self.bench.run, touched) if has_tiers else ())
        for variant in variants:
            if variant.quick or not quick:
                yield self.against_plain(variant)
        yield from self.against_torch(quick=quick)

    def repeated(self) -> Finding:
        """The plain form once more: where it differs from itself, why that may be."""
        self.begins("plain, again")
        again = self.bench.train(self.form, self.steps)
        found = any_difference(again, self.plain, SameBits(), self.bench.run)
        if found is None:
            return Finding.of("plain, again", again, "same bits")
        return Finding.of("plain, again", again, "not repeatable", found, self._why())

    def _why(self) -> str:
        """The likely cause of numbers that do not come again, and what to do."""
        if self.bench.run.train.torch_threads != 1:  # a settled run has a number
            self.begins("plain, twice with one thread of torch")
            one, two = (self.bench.train(with_train(self.form, torch_threads=1), self.steps) for _ in range(2))
            if first_step_at_odds(one, two, SameBits()) is None:
                return (
                    "with train.torch_threads = 1 they are: some operation of the model adds in the order in which"
                    " torch's threads finish (index_put_ with accumulate and the backward of x[:, i, j] do);"
                    " use index_select or index_add_ for it, or set train.torch_threads = 1"
                )
        return (
            "something in the model does not follow from its inputs and train.seed: numbers drawn from elsewhere than"
            " torch's own generator (Python's random, NumPy), state kept from run to run, or an operation without a"
            " fixed order; find it by training with parts of the model left out"
        )

    def against_plain(self, variant: Variant) -> Finding:
        """A form against the plain one, bit for bit."""
        self.begins(variant.name)
        form, rule = variant.of(self.bench.run), SameBits()
        try:
            found = self.bench.train(form, self.steps)
        except CapacityError as error:
            return self._not_run(variant.name, error)
        step = first_step_at_odds(found, self.plain, rule)
        if step is None:
            return Finding.of(variant.name, found, "same bits")

        def pair(steps: int) -> Pair:
            return self.bench.train(form, steps), self.bench.train(self.form, steps), rule

        return Finding.of(variant.name, found, "differs", self._earliest(pair, step, (found, self.plain, rule)))

    def against_torch(self, *, quick: bool) -> Iterator[Finding]:
        """The plain form against plain torch: all steps from one start, and each step from where the last one ended.

        Only the second can judge: where an activation tips over its kink, all steps together lie as far apart as they
        like. It is left out where time is short and the first finds nothing. Tables in bf16, and those whose keys come
        and go, have no counterpart in plain torch: a run with such is compared with its own forms alone.
        """
        alone = without_reference(self.bench.run)
        if alone:
            result = f"not compared: table '{alone[0]}' is in bf16, or its keys come and go"
            yield Finding(variant="plain torch", steps=0, predictions=0, rows=0, result=result)
            return
        whole = self._whole()
        if quick and whole.holds:
            yield whole
            return
        stepwise = self._stepwise()
        if not whole.holds and stepwise.holds:
            whole = replace(whole, difference=None, result="apart by rounding alone, see below")
        elif not whole.holds:
            whole = replace(whole, difference=stepwise.difference)
        yield whole
        yield stepwise

    def _whole(self) -> Finding:
        self.begins("plain torch")
        batches = self.bench.first_batches(self.steps)
        expected = self.bench.reference(batches)
        rule = WithinDrift(expected, (self.bench.reference(batches, nudge=draw) for draw in DRAWS))
        found = any_difference(self.plain, expected, rule, self.bench.run)
        if found is not None:
            return Finding.of("plain torch", self.plain, "differs", found)
        return Finding.of("plain torch", self.plain, drifts(rule.largest(self.plain, expected)))

    def _stepwise(self) -> Finding:
        name = "plain torch, step by step"
        self.begins(name)
        steps = EachStep(self.bench)
        found = self.bench.train(self.form, self.steps, steps.take)
        result = drifts(steps.largest) if steps.difference is None else "differs"
        return Finding.of(name, found, result, steps.difference)

    def _earliest(self, pair: Callable[[int], Pair], at_most: int, whole: Pair) -> Difference:
        """The difference in the first step at odds, which is at most `at_most`, by halves."""
        self.begins("the first step at odds")
        agrees, differs = 0, at_most
        while differs - agrees > 1:
            middle = (agrees + differs) // 2
            found, expected, rule = pair(middle)
            if first_step_at_odds(found, expected, rule) is None:
                agrees = middle
            else:
                differs = middle
        named = last_difference(*pair(differs), self.bench.run)
        return named or _fleeting(whole, self.bench.run)

    def _not_run(self, variant: str, error: CapacityError) -> Finding:
        refused = Difference(step=0, field="capacity", what=str(error))
        return Finding(variant=variant, steps=0, predictions=0, rows=0, result="not run", difference=refused)


def _fleeting(whole: Pair, run: RunFile) -> Difference:
    """A difference that the whole run had and that did not come again."""
    found = any_difference(*whole, run)
    assert found is not None
    what = f"{found.what}; it did not come again when these steps were repeated, so it depends on timing"
    return Difference(step=found.step, field=found.field, what=what, table=found.table, key=found.key)

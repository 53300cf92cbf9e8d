"""Judges each step of a run alone, against plain torch."""

from __future__ import annotations

from sfctr.spec.runfile import RunFile

from .compare import WithinDrift
from .difference import Difference, last_difference
from .outcome import Outcome
from .workbench import Workbench

DRAWS = (1, 2, 3)
"""Nudges of which the largest drift counts: with one alone, more is left to chance."""


def without_reference(run: RunFile) -> list[str]:
    """Tables that have no counterpart in plain torch: those in bf16, and those whose keys come and go."""
    return [table.name for table in run.tables if table.dtype == "bf16" or table.has_membership]


class EachStep:
    """Takes what a run came to after each step, and has plain torch take that step from where the one before ended."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.before: Outcome | None = None
        self.difference: Difference | None = None
        self.largest = 0.0

    def take(self, found: Outcome) -> None:
        """Note the first difference; after that nothing."""
        if self.difference is None:
            batches = [found.batch]
            expected = self.bench.reference(batches, start=self.before)
            nudged = (self.bench.reference(batches, start=self.before, nudge=draw) for draw in DRAWS)
            rule = WithinDrift(expected, nudged)
            self.difference = last_difference(found, expected, rule, self.bench.run)
            if self.difference is None:
                self.largest = max(self.largest, rule.largest(found, expected))
        self.before = found

"""What became of one form of a run, for a person."""

from __future__ import annotations

from dataclasses import dataclass

from .compare import DRIFTS
from .difference import Difference
from .outcome import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What became of one form of the run: how much was compared, how, and the first difference if there is one.

    remedy: what to do about a difference that is none of sfctr's.
    """

    variant: str
    steps: int
    predictions: int
    rows: int
    result: str
    difference: Difference | None = None
    remedy: str = ""

    @classmethod
    def of(
        cls, variant: str, found: Outcome, result: str, difference: Difference | None = None, remedy: str = ""
    ) -> Finding:
        return cls(
            variant=variant,
            steps=found.steps,
            predictions=found.num_predictions,
            rows=found.num_rows,
            result=result,
            difference=difference,
            remedy=remedy,
        )

    @property
    def holds(self) -> bool:
        return self.difference is None


def drifts(number: float) -> str:
    return f"within {number:.1f} of {DRIFTS:.0f} drifts"

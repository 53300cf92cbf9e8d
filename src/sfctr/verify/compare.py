"""Lays two outcomes side by side and says whether they differ: by bits, or beyond a tolerance. Pure.

`found` is the outcome that is judged, `expected` the one it is held against; both name the same tables, fields and
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from sfctr.spec.batch import Bools

from .outcome import Floats, Outcome, TableRows

DRIFTS = 10.0
"""How many times the drift of one unit in the last place two ways of computing the same may lie apart."""


class Place(NamedTuple):
    """Which numbers of an outcome: kind "logit" of a step, "input" of the last one, or "row" and "dense" after it."""

    kind: str
    name: str = ""
    field: str = ""
    step: int = 0


def numbers_of(outcome: Outcome) -> Iterator[tuple[Place, Floats]]:
    """All numbers of an outcome by their place."""
    for number, logits in enumerate(outcome.logits, 1):
        yield Place("logit", step=number), logits
    for table, rows in outcome.rows.items():
        for field, values in rows.fields.items():
            yield Place("row", table, field), values
    for name, values in outcome.dense.items():
        yield Place("dense", name), values
    for name, values in outcome.inputs.items():
        yield Place("input", name), values


class Rule(Protocol):
    """When two numbers differ."""

    def wrong(self, place: Place, found: Floats, expected: Floats) -> Bools:
        """True where they do; arrays of one shape."""
        ...


class SameBits:
    """Every bit counts: 0 is not -0, and a NaN equals itself."""

    def wrong(self, place: Place, found: Floats, expected: Floats) -> Bools:
        words = np.uint64 if found.dtype == np.float64 else np.uint32
        wrong: Bools = np.ascontiguousarray(found).view(words) != np.ascontiguousarray(expected).view(words)
        return wrong


class WithinDrift:
    """Numbers may lie apart by DRIFTS times what nudges of the initial weights made of their like.

    Their like are all logits; a field over all rows of its table; all weights of the dense part, or one part of its
    optimizer's state. The drift counts as at least one unit in the last place of the largest of them, which is all that
    a float can tell.
    """

    def __init__(self, plain: Outcome, nudged: Iterable[Outcome]) -> None:
        self._drift: dict[Place, float] = {}
        for place, one in numbers_of(plain):
            largest = np.abs(one).max(initial=0.0, where=np.isfinite(one))
            self._note(place, float(np.finfo(one.dtype).eps * largest))
        for outcome in nudged:
            others = dict(numbers_of(outcome))
            for place, one in numbers_of(plain):
                self._note(place, _distance(one, others[place]))

    def _note(self, place: Place, drift: float) -> None:
        self._drift[_like(place)] = max(drift, self._drift.get(_like(place), 0.0))

    def wrong(self, place: Place, found: Floats, expected: Floats) -> Bools:
        with np.errstate(invalid="ignore"):
            near = np.abs(found - expected) <= DRIFTS * self._drift[_like(place)]
        wrong: Bools = ~(near | (found == expected) | (np.isnan(found) & np.isnan(expected)))
        return wrong

    def largest(self, found: Outcome, expected: Outcome) -> float:
        """The largest distance of numbers that are within the tolerance, as a multiple of their drift."""
        theirs = dict(numbers_of(expected))
        distances = [(place, _distance(one, theirs[place])) for place, one in numbers_of(found)]
        return max((distance / self._drift[_like(place)] for place, distance in distances if distance), default=0.0)


def _like(place: Place) -> Place:
    """One place for all that share a tolerance."""
    if place.kind == "logit":
        return Place("logit")
    if place.kind == "dense":
        part, of, _ = place.name.partition(" of ")
        return Place("dense", part if of else "")
    return place


def _distance(one: Floats, other: Floats) -> float:
    """The largest of finite numbers; whether others are equal is seen one by one."""
    are_finite = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(np.where(are_finite, one, 0) - np.where(are_finite, other, 0)).max(initial=0.0))


def same_keys(found: TableRows, expected: TableRows) -> bool:
    return np.array_equal(found.keys, expected.keys) and np.array_equal(found.nulls, expected.nulls)


def first_step_at_odds(found: Outcome, expected: Outcome, rule: Rule) -> int | None:
    """The first step whose logits differ, or the last one where it is only rows, dense values or the number of steps
    that do; None where nothing differs."""
    for step, (one, other) in enumerate(zip(found.logits, expected.logits, strict=False), 1):
        if rule.wrong(Place("logit", step=step), one, other).any():
            return step
    last = min(found.steps, expected.steps)
    if found.steps != expected.steps or not all(same_keys(found.rows[t], rows) for t, rows in expected.rows.items()):
        return last
    theirs = dict(numbers_of(expected))
    after = ((place, one) for place, one in numbers_of(found) if place.kind in ("row", "dense"))
    return last if any(rule.wrong(place, one, theirs[place]).any() for place, one in after) else None

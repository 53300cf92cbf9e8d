"""Which pictures a run has, as data: what is drawn over the rows trained. Pure; `drawing` makes SVG of them.

A picture of which nothing is known is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sfctr.train.log import Line
from sfctr.train.stages import NAMES

from .findings import TIERS, Use, stretches_of, uses_of
from .record import Record, number

Scale = Literal["number", "share", "count", "bytes", "seconds"]
MOST_LINES = 6
"""Tables or labels that have a line of their own in a picture."""
COLOURS = {name: place for place, name in enumerate(NAMES)}
"""The number of the colour of each part of a step and stage ahead of it."""


@dataclass(frozen=True)
class Series:
    """Points of a line, or of a layer of a stack. A y that is not known is NaN. style: the number of its colour, and of
    its dashes where it is a line."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int = 0

    @property
    def last(self) -> float | None:
        """The last y that is known."""
        return next((y for y in reversed(self.ys) if not math.isnan(y)), None)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Series over x, as lines or stacked on each other.

    note: what one must know to read it. levels: horizontal lines by label.
    """

    title: str
    series: Sequence[Series]
    note: str = ""
    scale: Scale = "number"
    x: str = "rows trained"
    x_scale: Scale = "count"
    stacked: bool = False
    from_zero: bool = False
    levels: Mapping[str, float] | None = None

    def __bool__(self) -> bool:
        """Whether there is something to see."""
        return any(series.last is not None for series in self.series)


def quality(record: Record) -> list[Picture]:
    """Loss, AUC, normalised entropy and calibration."""
    before = "training, each row before it was learnt"
    several = len(_labels(record)) > 1
    loss_note = "Training loss is the sum over the labels, validation the mean." if several else ""
    found = [
        Picture(
            title="Loss", note=loss_note, series=[*_trained(record, "loss"), *_measured(record, "logloss", before)]
        ),
        Picture(
            title="AUC",
            note="Training: of the last rows of each stretch, scored before they were learnt. Higher is better.",
            series=[*_trained(record, "auc"), *_measured(record, "auc", before)],
        ),
        Picture(
            title="Normalised entropy",
            note="Log loss over that of always guessing the mean; below 1 the model knows more.",
            series=_measured(record, "ne", before),
        ),
        Picture(
            title="Calibration",
            note="Mean score over mean label; 1 is right.",
            series=_measured(record, "calibration", before),
            levels={"right": 1.0},
        ),
    ]
    return [numbered(picture) for picture in found if picture]


def _trained(record: Record, name: str) -> list[Series]:
    return _over_rows(record, "training", record.train, at(name))


def _measured(record: Record, name: str, before: str) -> list[Series]:
    """A metric of the held-out rows, of each label of several, and of training rows before they were learnt."""
    labels = _labels(record)
    found = _over_rows(record, "validation" if len(labels) < 2 else "validation, mean", record.valid, at(name))
    if 2 <= len(labels) <= MOST_LINES:
        for label in labels:
            found += _over_rows(record, label, record.valid, at("labels", label, name))
    return found + _over_rows(record, before, record.progressive, at("progressive", name))


def _labels(record: Record) -> list[str]:
    return list(record.valid[-1].get("labels", {})) if record.valid else []


def time(record: Record) -> list[Picture]:
    """What a step took, and the pace."""
    stretches = list(stretches_of(record))
    xs = [record.rows_at(each.line) for each in stretches]
    names = [name for name in NAMES if any(each.parts.get(name, 0) > 0 for each in stretches)]
    layers = [
        Series(
            NAMES[name],
            xs,
            [_ratio(each.parts.get(name, 0.0), each.steps) for each in stretches],
            COLOURS[name],
        )
        for name in names
    ]
    rates = [_ratio(each.rows, each.seconds) for each in stretches]
    found = [
        Picture(
            title="Time of a step",
            note="Of training's own thread, stacked: its height is what a step took.",
            series=layers,
            scale="seconds",
            stacked=True,
        ),
        Picture(
            title="Rows a second",
            note="While steps ran: without evaluating and saving.",
            series=[Series("rows a second", xs, rates)],
            scale="count",
            from_zero=True,
        ),
    ]
    return [picture for picture in found if picture]


def tiers(record: Record) -> list[Picture]:
    """Hit rates and moved rows of the tiers, over all tables and of the worst ones."""
    found = []
    for tier in ("device", "ram"):
        uses = [use for use in uses_of(record.moved) if use.tier == tier]
        if uses:
            found += [_hit_rates(record, uses), _moves(record, tier)]
    return [numbered(picture) for picture in found if picture]


_HITS = {"device": "device_hits", "ram": "hits"}
_MOVES = {
    "device": {"to the device": "lifted", "back to RAM": "lowered"},
    "ram": {"read from disk": "fetched", "written to disk": "evicted"},
}


def _hit_rates(record: Record, uses: Sequence[Use]) -> Picture:
    """uses: of one tier, the worst first."""
    tier, tables = uses[0].tier, [use.table for use in uses]
    shown = {"all tables": tables} if len(tables) > 1 else {tables[0]: tables}
    shown |= {use.table: [use.table] for use in uses[: MOST_LINES - 1] if use.hits < use.asked}
    note = "Share of the keys with a row whose row was there when its batch was planned."
    if 1 < len(shown) < len(tables) + 1:
        note += " The worst tables have lines of their own."
    series = [Series(label, *rates(record, tier, own)) for label, own in shown.items()]
    return Picture(title=f"Hit rate: {TIERS[tier]}", note=note, series=series, scale="share")


def rates(record: Record, tier: str, tables: Sequence[str]) -> tuple[list[float], list[float]]:
    """The hit rate of some tables together, stretch by stretch."""
    ys = []
    for line in record.train:
        counts = [line.get("moved", {}).get(table, {}) for table in tables]
        asked = sum(own.get("unique", 0) - own.get("fresh", 0) for own in counts)
        hits = sum(own.get(_HITS[tier], 0) for own in counts)
        ys.append(min(1.0, _ratio(hits, asked)) if asked > 0 else math.nan)
    return [record.rows_at(line) for line in record.train], ys


def _moves(record: Record, tier: str) -> Picture:
    xs = [record.rows_at(line) for line in record.train]
    moved = {label: _moved(record, name) for label, name in _MOVES[tier].items()}
    series = [Series(label, xs, ys) for label, ys in moved.items() if any(y > 0 for y in ys)]
    note = "Of all tables, for each row trained."
    return Picture(title=f"Rows moved: {TIERS[tier]}", note=note, series=series, from_zero=True)


def _moved(record: Record, name: str) -> list[float]:
    rows = _differences([record.rows_at(line) for line in record.train])
    counts = [sum(own.get(name, 0) for own in line.get("moved", {}).values()) for line in record.train]
    return [_ratio(n, of) for n, of in zip(counts, rows, strict=True)]


def memory(record: Record) -> list[Picture]:
    """What each tier took, with its bound, and the rows of the largest tables."""
    lines = [line for line in record.train if line.get("held")]
    found = []
    for tier, name in TIERS.items():
        series = _over_rows(record, name, lines, at("held", "bytes", tier))
        bound = record.held.get("bounds", {}).get(tier)
        bounds = {} if bound is None else {"budget": float(bound)}
        picture = Picture(title=f"Memory: {name}", series=series, scale="bytes", from_zero=True, levels=bounds)
        found += [picture] if picture and series[0].last else []
    largest = sorted(record.held.get("rows", {}).items(), key=lambda entry: -entry[1])[:MOST_LINES]
    rows = [each for table, _ in largest for each in _over_rows(record, table, lines, at("held", "rows", table))]
    found.append(Picture(title="Rows held", note="Of the largest tables.", series=rows, scale="count", from_zero=True))
    return [numbered(picture) for picture in found if picture]


def _over_rows(record: Record, label: str, lines: Sequence[Line], value: Callable[[Line], Any]) -> list[Series]:
    """A series of what is known of it, or none."""
    points = [(record.rows_at(line), number(value(line))) for line in lines]
    if all(y is None for _, y in points):
        return []
    return [Series(label, [x for x, _ in points], [math.nan if y is None else y for _, y in points])]


def at(*path: str) -> Callable[[Line], Any]:
    """What a line has there; None where it has nothing."""

    def value(line: Line) -> Any:
        found: Any = line
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    return value


def numbered(picture: Picture) -> Picture:
    """With styles in the order of the series."""
    return replace(picture, series=[replace(each, style=place) for place, each in enumerate(picture.series)])


def _differences(values: Sequence[float]) -> list[float]:
    return [value - before for before, value in zip((0, *values)[: len(values)], values, strict=True)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan

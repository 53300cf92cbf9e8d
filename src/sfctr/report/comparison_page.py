"""One page on several runs: what came out of each, their curves, and how their run files differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from sfctr.spec.struct_tree import entry_name, join_path, shown, to_plain
from sfctr.train.log import Line

from . import words
from .findings import (
    best_line,
    bound_of,
    rows_per_second,
    rows_per_second_of_steps,
    rows_trained,
    state_of,
    stretches_of,
    uses_of,
    wall_seconds,
)
from .html import Html, figures, page, paragraph, section, table, text
from .pictures import Picture, Scale, Series, at, rates
from .record import Record, number
from .summary import worst_in_words

_ABSENT, _THERE = "not set", "there"
Points = list[tuple[float, float]]


def comparison_page(records: Sequence[Record]) -> str:
    names = distinct_names(records)
    runs = dict(zip(names, records, strict=True))
    return page(
        f"{len(records)} runs compared",
        [
            Html(
                f"<header>\n<h1>{len(records)} runs compared</h1>\n{paragraph(', '.join(names), kind='sub')}\n</header>"
            ),
            section("What came out", _outcomes(runs)),
            section("Curves", [figures([picture for picture in _pictures(runs) if picture])]),
            section("How their run files differ", _differences(runs)),
        ],
    )


def distinct_names(records: Sequence[Record]) -> list[str]:
    """The runs' names, numbered where two have the same."""
    found: list[str] = []
    for record in records:
        number_, name = 1, record.name
        while name in found:
            number_ += 1
            name = f"{record.name} ({number_})"
        found.append(name)
    return found


def _outcomes(runs: dict[str, Record]) -> Iterator[Html]:
    heading = (
        "run",
        "AUC, best",
        "AUC, last",
        "log loss, last",
        "rows trained",
        "wall time",
        "rows/s",
        "while steps ran",
    )
    rows = []
    for name, record in runs.items():
        last, best = record.valid[-1] if record.valid else {}, best_line(record)
        rows.append(
            (
                name,
                *(words.metric(number(each)) for each in (best.get("auc"), last.get("auc"), last.get("logloss"))),
                words.short(rows_trained(record)),
                words.duration(wall_seconds(record)),
                words.short(rows_per_second(record)),
                words.short(rows_per_second_of_steps(record)),
            )
        )
    yield table(heading, rows)
    for name, record in runs.items():
        found = bound_of(record)
        bound = "what bound it is not known" if found is None else f"bound by {found}"
        pieces = [Html(f"<strong>{text(name)}</strong>: "), f"{state_of(record)}; {bound}. "]
        if uses_of(record.moved):
            pieces += ["Worst tier: ", text(worst_in_words(record))]
        yield paragraph(*pieces)


def _pictures(runs: dict[str, Record]) -> Iterator[Picture]:
    curves: tuple[tuple[str, str, Callable[[Record], Sequence[Line]], Callable[[Line], Any]], ...] = (
        ("AUC, validation", "Higher is better.", _valid, at("auc")),
        ("Log loss, validation", "", _valid, at("logloss")),
        ("Normalised entropy, validation", "", _valid, at("ne")),
        (
            "Calibration, validation",
            "Mean score over mean label; 1 is right.",
            _valid,
            at("calibration"),
        ),
        ("Loss, training", "", _train, at("loss")),
    )
    for title, note, lines, value in curves:
        yield _picture(title, note, runs, lines, value, Record.rows_at)
    yield _picture(
        "AUC over time",
        "What it took to get there.",
        runs,
        _valid,
        at("auc"),
        _seconds,
        "seconds",
        "seconds",
    )
    yield Picture(
        title="Rows a second", note="While steps ran.", series=_series(runs, _pace), scale="count", from_zero=True
    )
    yield Picture(title="Hit rate: RAM", note="Of all tables.", series=_series(runs, _hit_rates), scale="share")


def _series(runs: dict[str, Record], points: Callable[[Record], Points]) -> list[Series]:
    """One of each run that has any points; a run looks the same in all pictures."""
    each = [(style, name, points(record)) for style, (name, record) in enumerate(runs.items())]
    return [Series(name, [x for x, _ in found], [y for _, y in found], style) for style, name, found in each if found]


def _picture(
    title: str,
    note: str,
    runs: dict[str, Record],
    lines: Callable[[Record], Sequence[Line]],
    value: Callable[[Line], Any],
    place: Callable[[Record, Line], float],
    x: str = "rows trained",
    x_scale: Scale = "count",
) -> Picture:
    def points(record: Record) -> Points:
        found = [(place(record, line), number(value(line))) for line in lines(record)]
        return [(where, y) for where, y in found if y is not None]

    return Picture(title=title, note=note, series=_series(runs, points), x=x, x_scale=x_scale)


def _valid(record: Record) -> Sequence[Line]:
    return record.valid


def _train(record: Record) -> Sequence[Line]:
    return record.train


def _seconds(record: Record, line: Line) -> float:
    return number(line.get("seconds")) or 0.0


def _pace(record: Record) -> Points:
    spent = [stretch for stretch in stretches_of(record) if stretch.seconds > 0]
    return [(record.rows_at(each.line), each.rows / each.seconds) for each in spent]


def _hit_rates(record: Record) -> Points:
    xs, ys = rates(record, "ram", list(record.moved))
    return [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]


def _differences(runs: dict[str, Record]) -> Iterator[Html]:
    unread = [name for name, record in runs.items() if record.run is None]
    if unread:
        yield paragraph(f"Without a run file that can be read: {', '.join(unread)}.", kind="note")
    options = {name: options_of(record.run) for name, record in runs.items() if record.run is not None}
    rows = differing(options)
    if rows:
        yield table(
            ("option", *options),
            rows,
            kind="options",
            note=f"Options that are the same in all of them are left out. “{_ABSENT}”: it has none.",
        )
    elif len(options) > 1:
        yield paragraph("They do not differ.")


def options_of(struct: msgspec.Struct) -> dict[str, str]:
    """Every option by its path, in words. Of a table or feature itself: that it is there."""
    found: dict[str, str] = {}
    _collect(to_plain(struct, ""), "", found)
    return found


def _collect(value: Any, path: str, found: dict[str, str]) -> None:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            _collect(inner, join_path(path, name), found)
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for place, entry in enumerate(value):
            own = join_path(path, entry_name(entry, place))
            found[own] = _THERE
            _collect(entry, own, found)
    elif value is not None:
        found[path] = shown(value)


def differing(options: dict[str, dict[str, str]]) -> list[tuple[str, ...]]:
    """(path, the value of each run) of what is not the same in all; of a table or feature that only some have, what
    differs among these."""
    rows = []
    for path in dict.fromkeys(path for own in options.values() for path in own):
        entry = next((each for each in _above(path) if any(own.get(each) == _THERE for own in options.values())), None)
        compared = [own for own in options.values() if entry is None or entry in own]
        if len({own.get(path) for own in compared}) > 1:
            rows.append((path, *(own.get(path, _ABSENT) for own in options.values())))
    return rows


def _above(path: str) -> Iterator[str]:
    """The paths that it lies in, the longest first."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path

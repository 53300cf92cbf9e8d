"""The page of one run, from what came out of it to the file that it was made of. Pure: a record in, HTML out.

A section of which the run told nothing is left out, or says that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import pictures, words
from .findings import TIERS, best_line, bound_of, holdings, step_seconds, unseen_of, uses_of, wall_seconds
from .html import (
    Html,
    bar,
    code,
    figures,
    folded,
    items,
    page,
    paragraph,
    section,
    statements,
    table,
    tiles,
)
from .record import Record, number
from .summary import beside_in_words, bound_in_words, head, numbers, statements_of, whole_of, worst_in_words
from .thread_bars import thread_bars

METRICS = ("auc", "gauc", "logloss", "ne", "calibration")
_MOST_OPEN = 12
"""Rows of a table that are shown without being asked for."""


def run_page(record: Record) -> str:
    return page(
        f"{record.name}: report of a run",
        [
            head(record),
            tiles(numbers(record)),
            statements(statements_of(record)),
            section("Quality", [figures(pictures.quality(record)), *_evaluations(record)]),
            section("Time", _time(record)),
            section("Tiers", _tiers(record)),
            section("Memory", _memory(record)),
            section("Tables", _tables(record)),
            section("Unseen keys", _unseen(record)),
            section("Between processes", _wire(record)),
            section("Notices", [items(record.notices)]),
            section("Run file", [_run_file(record)]),
            section("Machine and versions", [_machine(record)]),
        ],
    )


def _evaluations(record: Record) -> Iterator[Html]:
    last, best = record.valid[-1] if record.valid else {}, best_line(record)
    at = best or last
    if at.get("labels"):
        note = f"Of each label, at step {at['step']:,}."
        yield _metrics_table("label", at["labels"], note)
    lines = {f"step {line['step']:,}" + (" ★" if line is best else ""): line for line in record.valid}
    yield folded(f"{words.plural(len(lines), 'evaluation')} (★ the best)", _metrics_table("evaluation", lines))
    for metric, why in last.get("undefined", {}).items():
        yield paragraph(f"{metric} is undefined: {why}", kind="note")
    for column, values in last.get("slices", {}).items():
        rows = [
            (value, words.metric(number(found.get("auc"))), words.count(number(found.get("weight"))))
            for value, found in values.items()
        ]
        heading = f"AUC by {column} ({words.plural(len(rows), 'value')})"
        yield folded(heading, table((column, "auc", "weight"), rows))


def _metrics_table(what: str, lines: Mapping[str, Mapping[str, Any]], note: str = "") -> Html:
    """The metrics that any line has."""
    names = [name for name in METRICS if any(number(line.get(name)) is not None for line in lines.values())]
    rows = [(key, *(words.metric(number(line.get(name))) for name in names)) for key, line in lines.items()]
    return table((what, *names), rows, note=note)


def _time(record: Record) -> Iterator[Html]:
    found = bound_of(record)
    if found is None:
        yield paragraph("Where the time went is not known: the lines of this run have no times of stages.", kind="note")
        return
    yield paragraph("What bound the run: ", bound_in_words(record))
    yield thread_bars(record, found.part)
    yield paragraph(*_time_note(record), kind="note")
    yield figures(pictures.time(record))


def _time_note(record: Record) -> Iterator[str]:
    yield "Threads work side by side; a bar as long as the longest one was busy all the time that steps took. "
    if record.begun.get("processes", 1) > 1:
        yield "These are the first process's; in what is between processes it also waits for slower ones. "
    whole, steps = wall_seconds(record), step_seconds(record)
    if whole is not None and whole > steps:
        yield beside_in_words(record)


def _tiers(record: Record) -> Iterator[Html]:
    uses = uses_of(record.moved)
    if not uses:
        yield paragraph(
            "Nothing is known of hit rates: no row was asked for twice, or the lines do not tell.", kind="note"
        )
        return
    yield paragraph("Worst tier: ", worst_in_words(record))
    yield figures(pictures.tiers(record))
    heading = ("table", "tier", "hit rate", "asked for", "rows in", "rows out", "bytes")
    rows = [
        (
            use.table,
            TIERS[use.tier],
            bar(use.rate, words.share(use.rate)),
            words.short(use.asked),
            words.short(use.came),
            words.short(use.left),
            words.size(use.num_bytes),
        )
        for use in uses
    ]
    note = (
        "The worst first. Asked for: unique keys of batches, counted in each, that had a row before; those whose row"
        " was in the tier, among them, are the hit rate. Rows in come from the tier below, rows out go there."
    )
    yield _long_table(heading, rows, "tiers of tables", note)


def _long_table(heading: Sequence[str], rows: Sequence[Sequence[object]], what: str, note: str = "") -> Html:
    """The first rows, and all of them where that is asked for."""
    if len(rows) <= _MOST_OPEN + 3:
        return table(heading, rows, note=note)
    rest = folded(f"The other {len(rows) - _MOST_OPEN} {what}", table(heading, rows[_MOST_OPEN:]))
    return Html(f"{table(heading, rows[:_MOST_OPEN], note=note)}\n{rest}")


def _memory(record: Record) -> Iterator[Html]:
    taken, bounds = record.held.get("bytes", {}), record.held.get("bounds", {})
    if not taken:
        yield paragraph("What the tiers took is not known: the lines of this run do not tell.", kind="note")
        return
    yield figures(pictures.memory(record))
    rows = [
        (name, words.size(taken[tier]), *_of_bound(taken[tier], bounds.get(tier)))
        for tier, name in TIERS.items()
        if tier in taken
    ]
    yield table(("tier", "taken at the end", "budget", "share of it"), rows, note=_memory_note(record))


def _of_bound(taken: float, bound: float | None) -> tuple[object, object]:
    if not bound:
        return "no bound", words.DASH
    return words.size(bound), bar(taken / bound, words.share(taken / bound))


def _memory_note(record: Record) -> str:
    peak = record.held.get("process", {}).get("peak_bytes")
    told = "RAM: rows, their index, staging and scratch; a few MB of buffers come on top of a small budget."
    if not peak:
        return told
    who = whole_of(record).capitalize()
    return f"{told} {who} took at most {words.size(peak)}, with torch, the dense part and the reader."


def _tables(record: Record) -> Iterator[Html]:
    held = holdings(record)
    whole = sum(each.num_bytes for each in held)
    rows = [
        (
            each.table,
            words.count(each.rows),
            words.size(each.num_bytes),
            bar(each.num_bytes / whole if whole else 0, words.share(each.num_bytes / whole if whole else None)),
            each.what,
        )
        for each in held
    ]
    note = "The largest first. Bytes: of vectors and optimizer state, without the index."
    if rows:
        yield _long_table(("table", "rows", "bytes", "share", "row"), rows, "tables", note)
    else:
        yield paragraph("How many rows the tables had is not known, or there are no tables.", kind="note")
    membership: Mapping[str, Mapping[str, int]] = next(
        (line["membership"] for line in reversed(record.train) if line.get("membership")), {}
    )
    if membership:
        names = tuple(next(iter(membership.values())))
        counts = [(name, *(words.count(own.get(key)) for key in names)) for name, own in membership.items()]
        yield _long_table(
            ("keys of", *names), counts, "tables", "Keys since training began; live and waiting: at the end."
        )


def _unseen(record: Record) -> Iterator[Html]:
    rates = unseen_of(record)
    rows = [(name, bar(rate, words.share(rate, 2))) for name, rate in rates.items()]
    if rows:
        note = "Share of a feature's keys at the last evaluation that had no row: never trained, refused or removed."
        yield _long_table(("feature", "unseen"), rows, "features", note)


def _wire(record: Record) -> Iterator[Html]:
    rows = [
        (kind, words.size(count)) for kind, count in record.wire.items() if kind not in ("virtual_ids", "positions")
    ]
    if not rows:
        return
    ids, positions = (words.size(record.wire[kind]) for kind in ("virtual_ids", "positions"))
    note = f"Rows with keys and gradients took {ids} by virtual ids; position by position it were {positions}."
    yield table(("sent", "bytes"), rows, note=note if record.wire["positions"] else "")


def _run_file(record: Record) -> Html:
    if not record.run_text:
        return paragraph("run.toml is missing.", kind="note")
    return folded("run.toml, every option as it was used", code(record.run_text))


def _machine(record: Record) -> Html:
    begun = record.begun
    if not begun:
        return paragraph("Not kept by the version that trained this run.", kind="note")
    machine, versions = begun.get("machine", {}), begun.get("versions", {})
    rows = [(name, str(value)) for name, value in machine.items() if name != "memory_bytes"]
    rows += [("memory", words.size(machine["memory_bytes"]))] if "memory_bytes" in machine else []
    rows += [(name, str(value)) for name, value in versions.items()]
    began = [line for line in record.history if line.get("kind") == "begin"]
    if len(began) > 1:
        rows.append(("training began or went on", words.plural(len(began), "time")))
    return table(("what", "here"), rows)

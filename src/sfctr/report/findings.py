"""What a run came to, worked out from its record: how good, how fast, what bound it, and which tier was the worst.

Pure functions; what the record does not tell is None, or left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sfctr.spec.tables import Table
from sfctr.train.log import Line
from sfctr.train.stages import Bound, bound, parts_of_training, threads_ahead

from .record import Record, number

LEAST_SHARE = 0.01
"""Of the keys asked for: a table that is asked for fewer has no worst tier."""
TIERS = {"device": "device", "ram": "RAM", "disk": "disk"}
"""How they are called, the fastest first."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What one tier did for one table.

    asked: unique keys of batches, counted in each, that had a row before; at least one. hits: those whose row was in
    the tier. came, left: rows copied into it from the tier below and back. num_bytes: their size.
    """

    tier: str
    table: str
    asked: int
    hits: int
    came: int
    left: int
    num_bytes: int

    @property
    def rate(self) -> float:
        return min(1.0, self.hits / self.asked)

    @property
    def moved(self) -> int:
        return self.came + self.left


@dataclass(frozen=True, kw_only=True)
class Held:
    """The rows of a table at the end. num_bytes: of their records, without the index."""

    table: str
    rows: int
    num_bytes: int
    what: str


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A line on training that has times: the steps and rows since the line before it, and what they took of training's
    own thread, seconds by its parts."""

    line: Line
    steps: int
    rows: float
    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def best_line(record: Record) -> Line:
    """The evaluation that had the best of the watched metric; an empty line without one."""
    return next((line for line in reversed(record.valid) if line["best"]), {})


def watched(record: Record) -> str:
    return "auc" if record.run is None else record.run.train.watch


def rows_trained(record: Record) -> int:
    """Rows of all steps, those of later epochs counted again."""
    return max((int(number(line.get("rows")) or 0) for line in (*record.train, record.ended)), default=0)


def wall_seconds(record: Record) -> float | None:
    """From the first step to the last, or to the end where all of it was trained at one go."""
    return number((record.ended if _is_told_whole(record) else record.last).get("seconds"))


def _is_told_whole(record: Record) -> bool:
    """Whether the end of the run speaks of all of it."""
    begins = [line for line in record.history if line.get("kind") == "begin"]
    return len(begins) == 1 and begins[0].get("step") == 0 and bool(record.ended)


def step_seconds(record: Record) -> float:
    """Of all steps, what they took to get their batches included."""
    return sum(parts_of_training(record.stage_s, window_of(record)).values())


def stretches_of(record: Record) -> Iterator[Stretch]:
    """Of the whole run; lines without times or without steps are left out."""
    window, step, rows = window_of(record), 0, 0.0
    for line in record.train:
        steps, more = line.get("step", 0) - step, record.rows_at(line) - rows
        step, rows = line.get("step", 0), record.rows_at(line)
        if line.get("stage_s") and steps > 0:
            yield Stretch(line=line, steps=steps, rows=more, parts=parts_of_training(line["stage_s"], window))


def rows_per_second(record: Record) -> float | None:
    """Of wall time, with rows and seconds up to the same point."""
    seconds = wall_seconds(record)
    rows = rows_trained(record) if _is_told_whole(record) else record.rows_at(record.last)
    return rows / seconds if seconds else None


def rows_per_second_of_steps(record: Record) -> float | None:
    """While steps ran, of the rows whose time is known: steps after the last line on training are not."""
    stretches = list(stretches_of(record))
    seconds = sum(stretch.seconds for stretch in stretches)
    return sum(stretch.rows for stretch in stretches) / seconds if seconds > 0 else None


def bound_of(record: Record) -> Bound | None:
    return bound(record.stage_s, window=window_of(record))


def window_of(record: Record) -> int:
    """Batches prepared ahead. Of a run without a run file: none, if training waited for none."""
    if record.run is not None:
        return record.run.train.window
    return 1 if record.stage_s["wait"] > 0 else 0


def threads_of(record: Record) -> dict[str, dict[str, float]]:
    """By thread, seconds of its parts over the whole run; the first is training's own. One alone with window 0."""
    window = window_of(record)
    found = {"training": parts_of_training(record.stage_s, window)}
    found |= threads_ahead(record.stage_s) if window else {}
    kept = {
        thread: {name: seconds for name, seconds in parts.items() if seconds > 0} for thread, parts in found.items()
    }
    return {thread: parts for thread, parts in kept.items() if parts}


def uses_of(moved: Mapping[str, Mapping[str, int]]) -> list[Use]:
    """What each tier did for each table, the worst hit rate first. A table has no device tier that never had a row
    there, and no RAM tier in it that never was asked for a row."""
    uses = []
    for table, counts in moved.items():
        asked = counts.get("unique", 0) - counts.get("fresh", 0)
        if asked <= 0:
            continue
        uses.append(_use("ram", table, asked, counts, "hits", "fetched", "evicted"))
        if counts.get("lifted", 0) or counts.get("device_hits", 0) or counts.get("device_scratch", 0):
            uses.append(_use("device", table, asked, counts, "device_hits", "lifted", "lowered"))
    return sorted(uses, key=lambda use: (use.rate, -use.moved))


def _use(tier: str, table: str, asked: int, counts: Mapping[str, int], hits: str, came: str, left: str) -> Use:
    return Use(
        tier=tier,
        table=table,
        asked=asked,
        hits=counts.get(hits, 0),
        came=counts.get(came, 0),
        left=counts.get(left, 0),
        num_bytes=counts.get(f"bytes_{came}", 0) + counts.get(f"bytes_{left}", 0),
    )


def worst_use(uses: list[Use]) -> Use | None:
    """The lowest hit rate among tables that are asked for enough; None where nothing was ever missed."""
    enough = LEAST_SHARE * sum(use.asked for use in uses) / max(1, len({use.tier for use in uses}))
    missed = [use for use in uses if use.asked >= enough and use.hits < use.asked]
    return min(missed, key=lambda use: use.rate, default=None)


def busiest_use(uses: list[Use]) -> Use | None:
    """Where most rows moved; None where none did."""
    return max((use for use in uses if use.moved), key=lambda use: use.moved, default=None)


def holdings(record: Record) -> list[Held]:
    """The tables at the end, the largest first; those of the dense part as the run file has them."""
    rows, sizes = record.held.get("rows", {}), record.held.get("row_bytes", {})
    tables = {} if record.run is None else {table.name: table for table in record.run.tables}
    found = [
        Held(table=name, rows=rows[name], num_bytes=sizes.get(name, 0), what=_kind(tables.get(name))) for name in rows
    ]
    for table in tables.values():
        if table.dense:
            num_rows = table.rows_of_dense + 1
            size = 4 * num_rows * (table.dim + (table.linear is not None))
            found.append(Held(table=table.name, rows=num_rows, num_bytes=size, what=_kind(table)))
    return sorted(found, key=lambda held: (-held.num_bytes, held.table))


def _kind(table: Table | None) -> str:
    if table is None:
        return ""
    optimizer = "of the dense part" if table.dense else type(table.optimizer).__name__
    linear = " + first-order weight" if table.linear is not None else ""
    return f"{table.dim} × {table.dtype}{linear}, {optimizer}"


def unseen_of(record: Record) -> dict[str, float]:
    """By feature, the share of keys without a row at the last evaluation, the largest first."""
    last = record.valid[-1] if record.valid else {}
    rates = {name: number(rate) for name, rate in last.get("unseen", {}).items()}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return dict(sorted(known.items(), key=lambda entry: -entry[1]))


def state_of(record: Record) -> str:
    """Whether and how the run ended, in words."""
    if record.ended:
        how = str(record.ended.get("how", ""))
        return "finished" if how == "finished" else f"stopped by {how}"
    if record.history:
        return "has not ended: it is still training, or its process was killed"
    return "how it ended was not kept"

"""A trace as a person reads it: two tables of what the ids look like, and a line of advice for each table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sfctr.spec.sizes import size_text

from .text import table_text

if TYPE_CHECKING:
    from sfctr.trace import Advice, TableTrace, TraceReport


def trace_text(report: TraceReport, dense: Sequence[str] = ()) -> str:
    """The report in words. dense: names of tables left out of it, whose rows all sit with the model."""
    parts = [
        f"{report.rows:,} rows in {report.batches:,} batches",
        table_text([_KEYS_HEADING, *(_keys_line(table) for table in report.tables)]),
        table_text([_reuse_heading(report), *(_reuse_line(table) for table in report.tables)]),
        "\n".join(_advice_lines(report)),
    ]
    if dense:
        parts.append(f"not traced, because all their rows sit with the model: {', '.join(dense)}")
    return "\n\n".join(parts)


_KEYS_HEADING = ("table", "look-ups", "missing", "keys", "a batch", "at most", "bytes a row", "all rows")


def _keys_line(table: TableTrace) -> tuple[object, ...]:
    return (
        table.name,
        table.lookups,
        f"{table.missing:.1%}",
        table.rows,
        round(table.unique.mean),
        table.unique.max,
        table.row_bytes,
        size_text(table.all_bytes),
    )


def _reuse_heading(report: TraceReport) -> tuple[object, ...]:
    return ("table", "in one batch only", "back in 1 batch", "4", "16", "64", "reuse distance: half", "90 %", "99 %")


def _reuse_line(table: TableTrace) -> tuple[object, ...]:
    reuse = table.reuse
    if reuse is None:
        return (table.name, "100.0%", *["-"] * 7)
    within = [f"{share:.1%}" for share in reuse.within_batches.values()]
    return (
        table.name,
        f"{reuse.used_once:.1%}",
        *within,
        reuse.distance_p50,
        reuse.distance_p90,
        reuse.distance_p99,
    )


def _advice_lines(report: TraceReport) -> Iterator[str]:
    for table in report.tables:
        yield f"table '{table.name}': {_advice(table, report.window)}{_about_sample(table)}"
    whole, advised = size_text(report.all_bytes), size_text(report.advised_bytes)
    yield f"together: {advised} of RAM as advised; all rows take {whole}"


def _advice(table: TableTrace, window: int) -> str:
    advice, whole = table.advice, size_text(table.all_bytes)
    if advice is None:
        return f"no row is used in two batches, so no cache helps; all {table.rows:,} rows take {whole}"
    if advice.keep_all:
        return f"keep all {table.rows:,} rows: they take {whole}"
    return (
        f"{size_text(advice.bytes)} of RAM gives {_rate(advice)} hits with window {window}"
        f" (LRU would need {size_text(advice.lru_bytes)}; all {table.rows:,} rows take {whole})"
    )


def _rate(advice: Advice) -> str:
    error = advice.standard_error
    return f"{advice.hit_rate:.1%}" if error is None else f"{advice.hit_rate:.1%} (± {2 * error:.1%})"


def _about_sample(table: TableTrace) -> str:
    if table.share_kept == 1:
        return ""
    errors = [error for curve in table.curves for error in curve.standard_errors or ()]
    known = f"; standard error of its hit rates at most {max(errors):.1%}" if errors else ""
    return f"; estimated from 1 key in {round(1 / table.share_kept)}{known}"

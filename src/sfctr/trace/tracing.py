"""One pass over batches, and from what it leaves the report: curves of three policies and the cache worth having."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sfctr.data.rows import cut
from sfctr.spec.batch import I64, Batch
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.schema import Schema, check_fixed
from sfctr.telemetry import span

from .accesses import Policy
from .caches import Caches
from .recording import Recording, TracedTable
from .report import Advice, Curve, Reuse, Spread, TableTrace, TraceReport, spread_of

_POLICIES: tuple[Policy, ...] = ("lru", "lfu", "window")
NUM_SIZES = 19
SMALLEST_SIZE = 1e-3
"""Curves have so many sizes, from this share of the rows to all of them, in equal ratios."""
GAPS = (1, 4, 16, 64)
"""Distances in batches that the share of repeats within is given for."""
WORTH_CUTTING = 0.9
"""A cache that needs more than this share of all bytes is not worth its misses: keep all rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracing:
    """What a trace is asked for.

    window:   batches that the look-ahead cache knows after the current one.
    target:   hit rate that the advice aims at.
    max_rows: rows of data after which reading stops; None: all.
    memory_bytes: bound on what is kept of the accesses while reading; data that need more are sampled by key. The
              default is enough for 90 million accesses to five million keys. Replaying a table takes up to three times
              its part of this in addition.
    """

    window: int = 4
    target: float = 0.99
    max_rows: int | None = None
    memory_bytes: int = 500_000_000

    def __post_init__(self) -> None:
        check_fixed(self.window, 0, "window")
        if not 0 < self.target <= 1:
            raise ConfigError(f"target is {self.target!r} and must be above 0 and at most 1")
        if self.max_rows is not None:
            check_fixed(self.max_rows, 1, "max_rows")


def trace_batches(
    batches: Iterable[Batch],
    schema: Schema,
    tables: Sequence[TracedTable],
    options: Tracing = Tracing(),
) -> TraceReport:
    """Trace the tables over batches in training order, such as a source gives.

    The answer depends on the batches and the options alone. Raises ConfigError where no feature uses one of the tables,
    DataError where there are no batches, and what reading raises.
    """
    recording = Recording(schema, tables, options.memory_bytes)
    with span("record"):
        for batch in _first_rows(batches, options.max_rows):
            recording.add(batch)
    if recording.num_rows == 0:
        raise DataError("there are no rows to trace")
    unique = recording.unique()
    with span("replay"):
        traced = tuple(_table(recording, place, unique[:, place], options) for place in range(len(tables)))
    advised = sum(t.all_bytes if t.advice is None else t.advice.bytes for t in traced)
    return TraceReport(
        rows=recording.num_rows,
        batches=len(unique),
        window=options.window,
        target=options.target,
        tables=traced,
        all_bytes=sum(t.all_bytes for t in traced),
        advised_bytes=advised,
    )


def _first_rows(batches: Iterable[Batch], num_rows: int | None) -> Iterator[Batch]:
    """The batches up to so many rows, the last one cut there."""
    for batch in batches:
        if num_rows is None or batch.size < num_rows:
            yield batch
            num_rows = None if num_rows is None else num_rows - batch.size
        else:
            yield cut(batch, 0, num_rows)
            return


def _table(recording: Recording, place: int, unique_B: I64, options: Tracing) -> TableTrace:
    table, accesses = recording.tables[place], int(unique_B.sum())
    caches = Caches(recording.logs[place], accesses)
    sizes = curve_sizes(caches.num_rows) if caches.num_repeats else ()
    ahead = _scaled(spread_of(caches.kept.rows_ahead(options.window)), caches.share)
    index_bytes = caches.num_rows * table.index_bytes
    return TableTrace(
        name=table.name,
        features=recording.features_of(place),
        lookups=int(recording.lookups[place]),
        missing=float(recording.missing[place] / max(recording.lookups[place], 1)),
        accesses=accesses,
        rows=caches.num_rows,
        row_bytes=table.row_bytes,
        index_bytes=index_bytes,
        all_bytes=caches.num_rows * table.row_bytes + index_bytes,
        share_kept=caches.share,
        unique=spread_of(unique_B),
        window_rows=ahead,
        reuse=_reuse(caches) if sizes else None,
        sizes=sizes,
        size_bytes=tuple(size * table.row_bytes for size in sizes),
        curves=_curves(caches, sizes, options.window) if sizes else (),
        advice=_advice(caches, table, ahead.max, options) if sizes else None,
    )


def curve_sizes(num_rows: int) -> tuple[int, ...]:
    """Sizes in rows, rising to num_rows; fewer where there are not so many."""
    shares = np.geomspace(SMALLEST_SIZE, 1.0, NUM_SIZES)
    return tuple(np.unique(np.ceil(shares * num_rows).astype(np.int64)).tolist())


def _scaled(spread: Spread, share: float) -> Spread:
    """Of a sample as of the whole."""
    whole = {name: round(getattr(spread, name) / share) for name in ("p50", "p90", "p99", "max")}
    return Spread(mean=spread.mean / share, **whole)


def _reuse(caches: Caches) -> Reuse:
    kept, hits, back = caches.kept, caches.kept.lru_hits(), np.cumsum(caches.kept.gap_counts())
    at = [int(np.searchsorted(hits, np.ceil(share * kept.num_repeats))) for share in (0.5, 0.9, 0.99)]
    return Reuse(
        repeats=caches.num_repeats,
        used_once=float(np.mean(kept.uses() == 1)),
        distance_p50=round(at[0] / caches.share),
        distance_p90=round(at[1] / caches.share),
        distance_p99=round(at[2] / caches.share),
        within_batches={str(most): float(back[min(most, len(back) - 1)] / back[-1]) for most in GAPS},
    )


def _curves(caches: Caches, sizes: Sequence[int], window: int) -> tuple[Curve, ...]:
    return tuple(_curve(caches, policy, sizes, window if policy == "window" else 0) for policy in _POLICIES)


def _curve(caches: Caches, policy: Policy, sizes: Sequence[int], window: int) -> Curve:
    errors = caches.errors(policy, sizes, window=window)
    return Curve(
        policy=policy,
        window=window,
        hit_rates=tuple(caches.hit_rates(policy, sizes, window=window).tolist()),
        standard_errors=None if errors is None else tuple(errors.tolist()),
    )


def _advice(caches: Caches, table: TracedTable, rows_ahead: int, options: Tracing) -> Advice:
    """The smallest look-ahead cache that reaches the target and holds what it looks ahead to."""
    enough = caches.smallest("window", options.target, window=options.window)
    rows = min(max(enough, rows_ahead), caches.num_rows)
    cost = rows * table.row_bytes + caches.num_rows * table.index_bytes
    keep_all = cost > WORTH_CUTTING * caches.num_rows * (table.row_bytes + table.index_bytes)
    if keep_all:
        rows = caches.num_rows
    hit_rate = float(caches.hit_rates("window", [rows], window=options.window)[0])
    error = caches.errors("window", [rows], window=options.window)
    lru_rows = caches.smallest("lru", hit_rate)
    return Advice(
        rows=rows,
        bytes=rows * table.row_bytes + caches.num_rows * table.index_bytes,
        hit_rate=hit_rate,
        standard_error=None if error is None else float(error[0]),
        lru_rows=lru_rows,
        lru_bytes=lru_rows * table.row_bytes + caches.num_rows * table.index_bytes,
        keep_all=keep_all,
    )

"""What a trace found, as nouns that print and that trace.json holds.

Hit rates are shares of the *repeats*: accesses after a row's first, which is made and not fetched. Where a table was
sampled, its counts of rows and its hit rates are estimates; what is counted in look-ups or accesses is exact always.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sfctr.spec.batch import I64


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a count is spread over batches."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """When rows come back."""

    repeats: int
    """Accesses after a row's first."""
    used_once: float
    """Share of the rows that one batch alone asks for."""
    distance_p50: int
    """Half of the repeats find at most this many other rows used since, their own included: what LRU must hold."""
    distance_p90: int
    distance_p99: int
    within_batches: dict[str, float]
    """Share of the repeats that come at most so many batches after the use before."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Hit rates of one policy at the sizes of its table."""

    policy: str
    """lru, lfu or window."""
    window: int
    """Batches known after the current one; 0 for the others."""
    hit_rates: tuple[float, ...]
    standard_errors: tuple[float, ...] | None
    """None: exact."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest cache worth having. Bytes are of rows with their optimizer state, and of the index of all keys."""

    rows: int
    """Enough for the target, and for the rows of every window at once."""
    bytes: int
    hit_rate: float
    standard_error: float | None
    """Of hit_rate; None: exact."""
    lru_rows: int
    """What LRU needs for the same hit rate."""
    lru_bytes: int
    keep_all: bool
    """Little is saved by keeping fewer than all rows."""


class TableTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One table."""

    name: str
    features: tuple[str, ...]
    lookups: int
    """Keys looked up, a missing value counted as one."""
    missing: float
    """Share of them that are missing values."""
    accesses: int
    """Distinct keys of each batch, summed over the batches."""
    rows: int
    """Distinct keys of all batches."""
    row_bytes: int
    """Of a row with its optimizer state."""
    index_bytes: int
    """Of the index of all keys."""
    all_bytes: int
    """Of all rows and the index."""
    share_kept: float
    """Share of the keys that curves and reuse were computed from; 1: all, and they are exact."""
    unique: Spread
    """Distinct keys of a batch."""
    window_rows: Spread
    """Distinct keys of a batch and those of the window after it."""
    reuse: Reuse | None
    """None: no key comes back, and no cache can have a hit."""
    sizes: tuple[int, ...]
    """Sizes of the curves, in rows."""
    size_bytes: tuple[int, ...]
    """The same in bytes of rows, without the index."""
    curves: tuple[Curve, ...]
    advice: Advice | None


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Tables are in the order they were given."""

    version: int = 1
    rows: int
    """Rows of data that were read."""
    batches: int
    window: int
    """Batches that the look-ahead cache knows after the current one."""
    target: float
    """Hit rate that the advice aims at."""
    tables: tuple[TableTrace, ...]
    all_bytes: int
    """Of all tables whole."""
    advised_bytes: int
    """Of all tables as advised; those without advice whole."""


def spread_of(counts: I64) -> Spread:
    """Of one count for each batch; at least one."""
    ordered = sorted(counts.tolist())
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.9, 0.99)]
    return Spread(mean=float(counts.mean()), p50=at[0], p90=at[1], p99=at[2], max=ordered[-1])


def write_trace(report: TraceReport, picture: str, out_dir: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write trace.json and trace.svg into a directory that is there, over those of an earlier trace."""
    written = Path(out_dir) / "trace.json", Path(out_dir) / "trace.svg"
    written[0].write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    written[1].write_text(picture, encoding="utf-8")
    return written

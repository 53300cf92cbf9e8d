"""The ways in which a run must come to the same bits, as data: a name, and what it makes of a run file. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sfctr.spec.runfile import RunFile
from sfctr.spec.tables import Tiers

from .outcome import Outcome

INDEX_BYTES = 24
"""What a key takes in RAM beside its row, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """of: the run as it was given -> the run to train. quick: whether it is tried when time is short."""

    name: str
    of: Callable[[RunFile], RunFile]
    quick: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What the rows of some steps take: how many there are, and bytes of their records."""

    num_rows: int
    row_bytes: int

    @classmethod
    def of(cls, outcome: Outcome) -> Footprint:
        fields = [values for rows in outcome.rows.values() for values in rows.fields.values()]
        return cls(num_rows=outcome.num_rows, row_bytes=sum(values.nbytes for values in fields))


def with_train(run: RunFile, **changes: Any) -> RunFile:
    return msgspec.structs.replace(run, train=msgspec.structs.replace(run.train, **changes))


def plain(run: RunFile) -> RunFile:
    """The run in its plainest form: nothing is prepared ahead, one thread, and all rows in RAM."""
    return msgspec.structs.replace(with_train(run, window=0, threads=1), tiers=Tiers())


def two_threads(run: RunFile) -> RunFile:
    """Two threads of kernels and two of the reader."""
    run = with_train(run, threads=2)
    return msgspec.structs.replace(run, data=msgspec.structs.replace(run.data, threads=2))


def loop_variants(run: RunFile) -> tuple[Variant, ...]:
    """Other windows and threads, evaluation in between, and the run as it is."""
    window = max(run.train.window, 2)
    scored = f"scored before each step, window {window}"
    return (
        Variant(name="window 1", of=lambda run: with_train(plain(run), window=1)),
        Variant(name=f"window {window}", of=lambda run: with_train(plain(run), window=window)),
        Variant(name="2 threads", of=lambda run: two_threads(plain(run))),
        Variant(name=f"2 threads, window {window}", of=lambda run: two_threads(with_train(plain(run), window=window))),
        Variant(name=scored, of=lambda run: with_train(plain(run), window=window, progressive=True)),
        Variant(name="the run as it is", of=lambda run: run, quick=True),
    )


def _passing_keys(run: RunFile, window: int) -> int:
    """About how many keys the index holds, while batches are in flight, that have no row in the end."""
    if not any(table.has_membership for table in run.tables):
        return 0
    return run.train.batch_size * len(run.schema.keyed) * (window + 2)


def tier_variants(run: RunFile, touched: Footprint) -> tuple[Variant, ...]:
    """Caches for a quarter of the rows that the steps touch, over a lower tier, by each policy."""
    quarter = max(touched.row_bytes // 4, 1)
    window = max(run.train.window, 2)
    ram = (touched.num_rows + _passing_keys(run, window)) * INDEX_BYTES + quarter

    def variant(name: str, tiers: Tiers, window: int, threads: int = 1, *, quick: bool = False) -> Variant:
        def of(run: RunFile) -> RunFile:
            return msgspec.structs.replace(with_train(plain(run), window=window, threads=threads), tiers=tiers)

        return Variant(name=f"{name}, window {window}" + ", 2 threads" * (threads == 2), of=of, quick=quick)

    over_disk, over_ram = Tiers(ram=ram, disk=True), Tiers(device=quarter)
    over_both = Tiers(device=quarter, ram=ram, disk=True)
    least_used = [msgspec.structs.replace(tiers, policy="lfu") for tiers in (over_disk, over_ram)]
    return (
        variant("disk under RAM, LRU", over_disk, 0),
        variant("disk under RAM, LRU", over_disk, 1),
        variant("disk under RAM, LRU", over_disk, window, quick=True),
        variant("disk under RAM, LRU", over_disk, window, 2),
        variant("disk under RAM, LFU", least_used[0], window),
        variant("device over RAM, LRU", over_ram, 0),
        variant("device over RAM, LRU", over_ram, window, quick=True),
        variant("device over RAM, LFU", least_used[1], window),
        variant("device over RAM over disk, LRU", over_both, window, 2),
    )

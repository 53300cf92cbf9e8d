"""What is kept beside the rows, as Parquet: keys that wait for a row, event time, and the text of hashed keys.

  waiting/NNN.parquet for tables with options of membership: keys without a row: key, the steps that reached it (count),
                      the last of them
  clock.parquet       where rows expire by event time: step, time (ns since 1970) at which the greatest time rose
  strings/NNN.parquet the text of hashed keys, for tables that keep it: key, text

NNN counts the run's tables that are not dense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.tables import Table
from sfctr.store import NO_CLOCK, EventClock, Store, Waiting

CLOCK = "clock.parquet"


def waiting_name(number: int) -> str:
    return f"waiting/{number:03}.parquet"


def strings_name(number: int) -> str:
    return f"strings/{number:03}.parquet"


def stored(tables: Sequence[Table]) -> list[Table]:
    """The tables that are not dense."""
    return [table for table in tables if not table.dense]


def membership_parts(store: Store) -> Iterator[tuple[str, pa.Table]]:
    """Name and contents of each file on who waits for a row, and of the clock where there is one."""
    for number, table in enumerate(stored(list(store.tables.values()))):
        if table.has_membership:
            waiting = store.waiting(table.name)
            yield (
                waiting_name(number),
                pa.table({"key": waiting.keys, "count": waiting.counts, "last": waiting.last}),
            )
    clock = store.clock()
    if clock.steps.size:
        yield CLOCK, pa.table({"step": clock.steps, "time": clock.times})


def string_parts(tables: Sequence[Table], strings: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[str, pa.Table]]:
    """Name and contents of each file of texts; strings: table -> key -> text."""
    for number, table in enumerate(stored(tables)):
        if table.name in strings:
            texts = strings[table.name]
            keys = pa.array(np.fromiter(texts.keys(), dtype=np.uint64, count=len(texts)))
            yield strings_name(number), pa.table({"key": keys, "text": pa.array(texts.values(), type=pa.string())})


def read_waiting(directory: Path, number: int) -> Waiting:
    columns = pq.read_table(directory / waiting_name(number))
    return Waiting(keys=columns["key"].to_numpy(), counts=columns["count"].to_numpy(), last=columns["last"].to_numpy())


def read_clock(directory: Path) -> EventClock:
    if not (directory / CLOCK).exists():
        return NO_CLOCK
    columns = pq.read_table(directory / CLOCK)
    return EventClock(steps=columns["step"].to_numpy(), times=columns["time"].to_numpy())


def read_strings(directory: Path, tables: Sequence[Table]) -> dict[str, dict[int, str]]:
    """Table -> key -> text of hashed keys, for tables that keep it."""
    found: dict[str, dict[int, str]] = {}
    for number, table in enumerate(stored(tables)):
        if (directory / strings_name(number)).exists():
            columns = pq.read_table(directory / strings_name(number))
            found[table.name] = dict(zip(columns["key"].to_pylist(), columns["text"].to_pylist(), strict=True))
    return found

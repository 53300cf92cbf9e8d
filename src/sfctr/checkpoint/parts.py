"""What is kept beside the rows, as Parquet: keys that wait for a row, event time, and the text of hashed keys.

  waiting/NNN.parquet for tables with options of membership: keys without a row: key, the steps that reached it (count),
                      the last of them
  clock.parquet       where rows expire by event time: step, time (ns since 1970) at which the greatest time rose
  strings/NNN.parquet the text of hashed keys, for tables that keep it: key, text

NNN counts the run's tables that are not dense. Of several ranks each writes its own (names.py), rank 0 the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.tables import Table
from sfctr.store import NO_CLOCK, EventClock, Store, Waiting

from .names import part_names

CLOCK = "clock.parquet"


def waiting_name(number: int) -> str:
    return f"waiting/{number:03}.parquet"


def strings_name(number: int) -> str:
    return f"strings/{number:03}.parquet"


def stored(tables: Sequence[Table]) -> list[Table]:
    """The tables that are not dense."""
    return [table for table in tables if not table.dense]


def waiting_parts(store: Store) -> Iterator[tuple[str, pa.Table]]:
    """Name and contents of each file on who waits for a row."""
    for number, table in enumerate(stored(list(store.tables.values()))):
        if table.has_membership:
            waiting = store.waiting(table.name)
            yield (
                waiting_name(number),
                pa.table({"key": waiting.keys, "count": waiting.counts, "last": waiting.last}),
            )


def clock_parts(store: Store) -> Iterator[tuple[str, pa.Table]]:
    """The same of the clock, where there is one. It is the same on all ranks."""
    clock = store.clock()
    if clock.steps.size:
        yield CLOCK, pa.table({"step": clock.steps, "time": clock.times})


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """What the ranks have counted, by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def string_parts(tables: Sequence[Table], strings: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[str, pa.Table]]:
    """Name and contents of each file of texts; strings: table -> key -> text."""
    for number, table in enumerate(stored(tables)):
        if table.name in strings:
            texts = strings[table.name]
            keys = pa.array(np.fromiter(texts.keys(), dtype=np.uint64, count=len(texts)))
            yield strings_name(number), pa.table({"key": keys, "text": pa.array(texts.values(), type=pa.string())})


def read_waiting(directory: Path, files: Collection[str], number: int) -> Waiting:
    """files: names of those that are there, by which parts are found; so below."""
    parts = [pq.read_table(directory / name) for name in part_names(files, waiting_name(number))]
    columns = pa.concat_tables(parts)
    return Waiting(keys=columns["key"].to_numpy(), counts=columns["count"].to_numpy(), last=columns["last"].to_numpy())


def read_clock(directory: Path) -> EventClock:
    if not (directory / CLOCK).exists():
        return NO_CLOCK
    columns = pq.read_table(directory / CLOCK)
    return EventClock(steps=columns["step"].to_numpy(), times=columns["time"].to_numpy())


def read_strings(directory: Path, files: Collection[str], tables: Sequence[Table]) -> dict[str, dict[int, str]]:
    """Table -> key -> text of hashed keys, for tables that keep it."""
    found: dict[str, dict[int, str]] = {}
    for number, table in enumerate(stored(tables)):
        for name in part_names(files, strings_name(number)):
            if (directory / name).exists():
                columns = pq.read_table(directory / name)
                texts = zip(columns["key"].to_pylist(), columns["text"].to_pylist(), strict=True)
                found.setdefault(table.name, {}).update(texts)
    return found

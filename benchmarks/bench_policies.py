"""Measures what caches of equal size hit, by policy, on the id streams of click logs, and what replaying them costs.

A stream is what batches ask for: one access for each distinct key of a batch and column. The synthetic one is read in
batches of --batch rows, the real ones, which are small samples, in batches of 256. All columns share one cache of rows.
A hit rate is the share of the repeats, accesses after a row's first, that find their row; sizes are shares of the
distinct rows. The policies' exact rules are in native/include/sfctr/replay.h. "optimal" is Belady's, the bound on all
others but the hot set, which lets rows pass beside the cache. "frequency" and "hot set" know the counts of the whole
stream in advance; "window W" knows W batches.

The synthetic stream draws every row independently, which is what policies by frequency are made for; real streams have
trends. It would measure something else with other batch sizes (a larger batch merges more repeats) or with a part of
the columns. Times are processor seconds of replaying the size of 10 % alone, on one thread, preparation included (next
uses, ranks); rounds are taken in turn and medians quoted. Beside other work they still grow, as caches and memory are
shared. The rival in time is LRU by Python's OrderedDict.

    python benchmarks/bench_policies.py [--rows 1000000] [--batch 4096] [--rounds 3] [--data DIR] [--save]

--data: a directory with criteo_sample_60k/rows.parquet, frappe_x1/train.parquet and jodie_wikipedia/wikipedia.parquet;
streams whose file is not there are skipped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from origin import keep, origin

from sfctr.data import open_source
from sfctr.data.synth import synth_criteo
from sfctr.spec.schema import Categorical, Schema
from sfctr.trace import Accesses, Recording, TracedTable

SHARES = (0.01, 0.05, 0.10, 0.25)
TIMED = 0.10
SAMPLE_BATCH = 256
WINDOWS = (1, 4, 16, 64)
POLICIES = (
    ("LRU", "lru", 0),
    ("CLOCK", "clock", 0),
    ("LFU", "lfu", 0),
    *((f"window {window}", "window", window) for window in WINDOWS),
    ("frequency, known in advance", "frequency", 0),
    ("hot set, known in advance", "hot_set", 0),
    ("optimal", "optimal", 0),
)


class Stream(NamedTuple):
    name: str
    path: str
    columns: tuple[str, ...]
    batch: int


def streams(folder: str, rows: int, batch: int, data: Path | None) -> Iterator[Stream]:
    synth_criteo(folder, rows, valid_fraction=0.0)
    yield Stream("synthetic, Criteo's shape", f"{folder}/train", tuple(f"C{i}" for i in range(1, 27)), batch)
    if data is None:
        print("no --data: the real streams are skipped")
        return
    frappe = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
    for name, file, columns in (
        ("Criteo sample", "criteo_sample_60k/rows.parquet", tuple(f"c{i}" for i in range(1, 27))),
        ("Frappe", "frappe_x1/train.parquet", frappe),
        ("Wikipedia edits in time order", "jodie_wikipedia/wikipedia.parquet", ("user", "item")),
    ):
        if (data / file).is_file():
            yield Stream(name, str(data / file), columns, SAMPLE_BATCH)
        else:
            print(f"{data / file} is not there: skipped")


def accesses_of(stream: Stream) -> Accesses:
    """The accesses of all columns as those of one table: batch by batch, column by column."""
    schema = Schema(label="unread", features=[Categorical(name) for name in stream.columns])
    tables = [TracedTable(name=name, row_bytes=0, index_bytes=0) for name in stream.columns]
    recording = Recording(schema, tables, 1 << 40)
    with open_source(stream.path, schema, batch_size=stream.batch, labels="none", shuffle=False) as source:
        for each in source:
            recording.add(each)
    tables_apart = [Accesses.of_log(log) for log in recording.logs]
    offsets = np.cumsum([0, *(a.num_rows for a in tables_apart)])
    batches = np.concatenate(
        [np.repeat(np.arange(len(a.batch_begin) - 1), np.diff(a.batch_begin)) for a in tables_apart]
    )
    rows = np.concatenate([a.rows + np.uint32(first) for a, first in zip(tables_apart, offsets, strict=False)])
    order = np.argsort(batches, kind="stable")
    begin = np.sum([a.batch_begin for a in tables_apart], axis=0, dtype=np.int64)
    return Accesses(rows=rows[order], batch_begin=begin, num_rows=int(offsets[-1]))


def python_lru(accesses: Accesses, capacity: int) -> int:
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in accesses.rows.tolist():
        if row in held:
            hits += 1
            held.move_to_end(row)
            continue
        if len(held) == capacity:
            held.popitem(last=False)
        held[row] = None
    return hits


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(stream: Stream, rounds: int) -> dict[str, Any]:
    accesses = accesses_of(stream)
    sizes = [max(1, round(share * accesses.num_rows)) for share in SHARES]
    timed = sizes[SHARES.index(TIMED)]
    replays: dict[str, Callable[[], Any]] = {
        label: lambda policy=policy, window=window: accesses.hits(policy, [timed], window=window)
        for label, policy, window in POLICIES
    }
    rival = "LRU by OrderedDict"
    replays[rival] = lambda: python_lru(accesses, timed)
    assert replays[rival]() == replays["LRU"]()[0]
    taken: dict[str, list[float]] = {label: [] for label in replays}
    for _ in range(rounds):
        for label, work in replays.items():
            taken[label].append(seconds(work))
    nanoseconds = {label: statistics.median(times) * 1e9 / len(accesses.rows) for label, times in taken.items()}
    results: list[dict[str, object]] = []
    for label, policy, window in POLICIES:
        rates = accesses.hits(policy, sizes, window=window) / accesses.num_repeats
        results.append(
            {
                "policy": label,
                "hit_rates": [round(float(rate), 4) for rate in rates],
                "ns_per_access": round(nanoseconds[label], 1),
            }
        )
    return {
        "stream": stream.name,
        "batch": stream.batch,
        "batches": len(accesses.batch_begin) - 1,
        "accesses": len(accesses.rows),
        "rows": accesses.num_rows,
        "largest_batch": int(np.diff(accesses.batch_begin).max()) if len(accesses.rows) else 0,
        "shares": list(SHARES),
        "policies": results,
        "rival_ns_per_access": round(nanoseconds[rival], 1),
    }


def as_markdown(measured: list[dict[str, Any]], facts: dict[str, object]) -> str:
    lines = [", ".join(f"{name}: {value}" for name, value in facts.items())]
    lines += [f"Hit rates at sizes in shares of the distinct rows; ns of processor time an access at {TIMED:.0%}."]
    for m in measured:
        size = f"{m['accesses']:,} accesses in {m['batches']:,} batches of {m['batch']:,} rows"
        size += f" (at most {m['largest_batch']:,} accesses a batch)"
        lines += ["", f"## {m['stream']}", "", f"{size}; {m['rows']:,} distinct rows"]
        lines += ["", "| policy | " + " | ".join(f"{share:.0%}" for share in SHARES) + " | ns an access |"]
        lines += ["|---|" + "---:|" * (len(SHARES) + 1)]
        for r in m["policies"]:
            rates = " | ".join(f"{rate:.1%}" for rate in r["hit_rates"])
            lines.append(f"| {r['policy']} | {rates} | {r['ns_per_access']:.0f} |")
        lines.append(f"| LRU by OrderedDict | {'as LRU | ' * len(SHARES)}{m['rival_ns_per_access']:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the synthetic stream")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help="directory of the real streams")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/policies.json and policies.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = [measure(stream, args.rounds) for stream in streams(folder, args.rows, args.batch, args.data)]
    facts = origin(synthetic_rows=args.rows, rounds=args.rounds)
    print(as_markdown(measured, facts))
    if args.save:
        keep("policies", as_markdown(measured, facts), {**facts, "streams": measured})


if __name__ == "__main__":
    main()

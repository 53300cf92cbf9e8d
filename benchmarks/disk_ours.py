"""The process of ours for bench_disk.py: a Store whose RAM has room for a share of the rows, the others on disk.

Rounds of reading are steps of a Lookahead of 8 batches that are discarded at once: unique keys, plan and fetch run in
its threads, as in training. What that costs beyond reading is counted: the store takes a row that it reads off the
disk and writes it there again when it leaves RAM, and compaction takes the garbage away.

Its RAM is made smaller until no more rows are there than the plan's share of all; what the index and the buffers take
comes on top, as RocksDB's index does.

Rounds of writing load rows anew that are on disk: each is appended to the log as an evicted one is, with its look-ups,
and leaves garbage there, so nothing is read but by compaction; at the end, all files are on the disk (fsync). Rows that
are in RAM stay there and are not counted, and neither are the last ones, which still wait in a buffer.

Rounds of training look one row up in each of 8 columns, 64 floats each, under an MLP in fp32 on one thread. The first
WINDOW steps, whose rows were fetched before the clock, and the last ones, beside which nothing is fetched, do not
count.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from disk_rows import ROW_BYTES, Array, Plan, Wanted, chunks, io_counts, row_values
from torch import nn

import sfctr
from sfctr.spec.batch import Batch, Keys
from sfctr.store.group import RowBlock

DIM = ROW_BYTES // 4
WINDOW = 8
INDEX_BYTES = 24
BUFFERS = 8 << 20
TRIES = 12
SECTOR, RECORD_HEAD = 4096, 16  # docs/format/segments.md
SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])
COLUMNS = [f"item{i}" for i in range(8)]
WIDE = sfctr.Schema(label="y", features=[sfctr.Categorical(name, table="item") for name in COLUMNS])
LOADED = 1 << 14  # rows that are written at once


class Watched(sfctr.Store):
    """A Store that says what its fetches have cost, which one thread makes, one after the other."""

    fetch_s = fetch_cpu_s = 0.0

    def fetch(self, working_sets: Sequence[Any]) -> None:
        began, used = time.perf_counter(), time.thread_time()
        super().fetch(working_sets)
        self.fetch_s += time.perf_counter() - began
        self.fetch_cpu_s += time.thread_time() - used


def open_warm(folder: Path, plan: Plan, batches: Sequence[Array], *, share: float) -> Watched:
    """All rows, after these batches were read; at most a share of them is in RAM."""
    ram = int(share * plan.rows * ROW_BYTES) + INDEX_BYTES * plan.rows + BUFFERS
    for _ in range(TRIES):
        store = open_store(folder, plan, ram)
        read(store, batches)
        above = in_ram(store) - math.floor(share * plan.rows)
        if above <= 0:
            return store
        store.close()
        shutil.rmtree(folder / "ours")
        ram -= above * ROW_BYTES
    raise ValueError(f"no size of RAM was found with which {share:.0%} of the rows are there")


def in_ram(store: sfctr.Store) -> int:
    return store.num_rows("item") - store.counters()["disk_rows"]


def open_store(folder: Path, plan: Plan, ram: int) -> Watched:
    """All rows, in the order of their numbers."""
    table = sfctr.Table("item", dim=DIM, optimizer=sfctr.SGD(lr=0.01))
    store = Watched([table], tiers=sfctr.Tiers(ram=ram, disk=str(folder / "ours")))
    for first, values in chunks(plan):
        load(store, np.arange(first, first + len(values)), values)
    return store


def load(store: sfctr.Store, rows: Array, values: Array) -> None:
    vectors, none = values.view(np.float32), np.empty((len(rows), 0), np.float32)
    nulls = np.zeros(len(rows), np.bool_)
    keys = rows.astype(np.uint64)
    store.load_rows("item", RowBlock(keys=keys, nulls=nulls, vectors=vectors, linear=None, state=none))


def as_batch(rows: Array, columns: Sequence[str] = ("item",)) -> Batch:
    """Rows dealt out to columns; what does not fill them is left out."""
    size = len(rows) // len(columns)
    keys = rows[: size * len(columns)].astype(np.uint64).reshape(len(columns), size)
    return Batch(
        size=size,
        keys={name: Keys(keys=column) for name, column in zip(columns, keys, strict=True)},
        labels=(keys[0][:, None] % 2).astype(np.float32),
        label_mask=np.ones((size, 1), np.bool_),
        rows=np.arange(size, dtype=np.int64),
    )


def read(store: Watched, batches: Sequence[Array]) -> dict[str, Any]:
    prepared = [as_batch(rows) for rows in batches]
    before, moved = store.counters(), io_counts()
    fetch_s, fetch_cpu_s = store.fetch_s, store.fetch_cpu_s
    used = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    for step in sfctr.Lookahead(prepared, store, schema=SCHEMA, window=WINDOW):
        step.discard()
    seconds = time.perf_counter() - began
    done, after = resource.getrusage(resource.RUSAGE_SELF), store.counters()
    written = io_counts()
    require_right(store, batches[-1])
    return {
        "rows": sum(len(rows) for rows in batches),
        "rows_in_ram": in_ram(store),
        "seconds": seconds,
        "cpu_s": done.ru_utime + done.ru_stime - used.ru_utime - used.ru_stime,
        "fetched": after["fetched"] - before["fetched"],
        "evicted": after["evicted"] - before["evicted"],
        "fetch_s": store.fetch_s - fetch_s,
        "fetch_cpu_s": store.fetch_cpu_s - fetch_cpu_s,
        "disk_bytes": written["read"] - moved["read"],
        "written_bytes": written["written"] - moved["written"],
    }


def require_right(store: sfctr.Store, rows: Array) -> None:
    for step in sfctr.Lookahead([as_batch(rows)], store, schema=SCHEMA):
        values = step.features()["item"].detach().numpy()
        if (values.view(np.uint32) != row_values(rows).view(np.uint32)).any():
            raise ValueError("rows are not those that were asked for")
        step.discard()


def sync(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write(store: Watched, rows: Array, folder: Path) -> dict[str, Any]:
    blocks = [(part, row_values(part)) for part in np.array_split(rows, max(1, len(rows) // LOADED))]
    before, moved = store.counters(), io_counts()
    began = time.perf_counter()
    for part, values in blocks:
        load(store, part, values)
    sync(folder)
    seconds = time.perf_counter() - began
    after, now = store.counters(), io_counts()
    moved_rows = after["disk_rows_moved"] - before["disk_rows_moved"]
    record_bytes = SECTOR / (SECTOR // (ROW_BYTES + RECORD_HEAD))
    return {
        "rows": (after["disk_bytes_written"] - before["disk_bytes_written"]) / record_bytes - moved_rows,
        "seconds": seconds,
        "moved": moved_rows,
        "waited_s": (after["disk_write_wait_us"] - before["disk_write_wait_us"]) * 1e-6,
        "disk_bytes": now["read"] - moved["read"],
        "written_bytes": now["written"] - moved["written"],
    }


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(DIM * len(COLUMNS), 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)]
    return nn.Sequential(*layers)


def train(store: sfctr.Store, batches: Sequence[Array], model: nn.Module | None) -> dict[str, Any]:
    """Seconds a step, and rows that were fetched; without a model rows are fetched alone."""
    if len(batches) < 3 * WINDOW:
        raise ValueError(f"a round of training has {len(batches)} batches and needs {3 * WINDOW}")
    before = store.counters()["fetched"]
    prepared = [as_batch(rows, COLUMNS) for rows in batches]
    times = []
    for step in sfctr.Lookahead(prepared, store, schema=WIDE, window=WINDOW):
        if model is None:
            step.discard()
        else:
            features = step.features()
            logits = model(torch.cat([features[name] for name in COLUMNS], dim=1)).squeeze(-1)
            nn.functional.binary_cross_entropy_with_logits(logits, step.labels).backward()
            for parameter in model.parameters():
                parameter.grad = None
            step.step(None)
        times.append(time.perf_counter())
    counted = times[WINDOW - 1 : len(times) - WINDOW]  # from the end of the last step that does not count
    return {
        "step_s": (counted[-1] - counted[0]) / (len(counted) - 1),
        "fetched": store.counters()["fetched"] - before,
        "rows": sum(len(rows) for rows in batches),
    }


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[4])
    plan = Plan.read(folder)
    wanted = Wanted(folder, plan)
    stores: dict[str, Watched] = {}
    model = make_model()
    for line in sys.stdin:
        job = json.loads(line)
        answer: dict[str, Any] = {}
        if job["do"] == "load":
            own = folder / job["what"]
            own.mkdir()
            stores[job["what"]] = open_warm(own, plan, wanted.history(), share=job["share"])
        elif job["do"] == "read":
            answer = read(stores["tiered"], wanted.round(job["round"]))
        elif job["do"] == "write":
            answer = write(stores["tiered"], wanted.scattered(job["rows"], job["seed"]), folder / "tiered" / "ours")
        elif job["do"] == "train":
            answer = train(stores[job["what"]], wanted.training(job["round"]), model if job["model"] else None)
        print(json.dumps(answer), flush=True)
    for store in stores.values():
        store.close()


if __name__ == "__main__":
    torch.set_flush_denormal(True)
    main()

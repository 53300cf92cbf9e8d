"""Trains tables larger than their RAM, and holds rows, state and memory against the same training with all in RAM.

Every step brings new keys and some old ones, drawn evenly, so that rows come back from disk. Two tables: dim 32 with
Adam (384 bytes a row) and dim 16 with row-wise Adagrad (68 bytes). `tiers.ram` is what the index needs, 24 bytes a key,
and a twentieth of the rows. Each training is a process of its own. What is compared is the SHA-256 of all keys, vectors
and state in the order of the keys' hashes; memory is the peak of the process's anonymous pages, which leaves out the
page cache (rows are read and written around it where the file system allows), beside what it had before the store.

It would measure something else with too few keys (then fixed buffers are the larger part), or with a file system in
memory under --dir. Seconds are of one run each, for orientation; benchmarks of speed are elsewhere.

    python benchmarks/bench_capacity.py [--keys 20000000] [--dir DIR] [--save]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from origin import keep, origin

NEW, OLD = 20_000, 4_000
"""Keys of a step: those that no step had before, and those that one had."""
TABLES = {"dim 32, Adam": (32, "adam", 384), "dim 16, row-wise Adagrad": (16, "rowwise", 68)}
SLACK = 64 << 20


class Peak:
    """Largest count of anonymous bytes of this process while its block runs; `before` is the count at its start."""

    def __enter__(self) -> Peak:
        self.before = self.bytes = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, anonymous_bytes())


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def batches(num_keys: int) -> Iterator[Any]:
    """Batches over keys 0 .. num_keys - 1, scattered over 64 bits."""
    from sfctr.spec.batch import Batch, Keys

    random = np.random.default_rng(0)
    for first in range(0, num_keys, NEW):
        fresh = np.arange(first, min(first + NEW, num_keys), dtype=np.uint64)
        old = random.integers(0, max(first, 1), OLD, dtype=np.uint64) if first else fresh[:0]
        keys = np.concatenate([fresh, old]) * np.uint64(0x9E3779B97F4A7C15)
        labels = np.zeros((keys.size, 1), dtype=np.float32)
        yield Batch(
            size=keys.size,
            keys={"item": Keys(keys=keys)},
            labels=labels,
            label_mask=np.ones(labels.shape, dtype=np.bool_),
            rows=np.arange(keys.size, dtype=np.int64),
        )


def train(what: str, num_keys: int, ram: int | None, directory: str, window: int) -> dict[str, Any]:
    """One training in this process."""
    import torch

    import sfctr

    dim, rule, _ = TABLES[what]
    optimizer = sfctr.Adam(lr=0.01) if rule == "adam" else sfctr.RowWiseAdagrad(lr=0.05)
    schema = sfctr.Schema(label="y", features=[sfctr.Categorical("item")])
    torch.set_num_threads(1)
    for step in sfctr.Lookahead(batches(NEW), sfctr.Store([sfctr.Table("item", dim=dim)]), schema=schema):
        step.features()["item"].square().sum().backward()  # what torch itself keeps is there before memory is counted
        step.step(None)
    table = sfctr.Table("item", dim=dim, optimizer=optimizer)
    tiers = sfctr.Tiers(ram=ram or "1TB", disk=directory if ram else False)
    began = time.perf_counter()
    with Peak() as peak, sfctr.Store([table], tiers=tiers) as store:
        for step in sfctr.Lookahead(batches(num_keys), store, schema=schema, window=window):
            (0.5 * step.features()["item"].square().sum()).backward()
            step.step(None)
        trained, train_peak = time.perf_counter(), peak.bytes
        digest, rows = hashlib.sha256(), 0
        for block in store.rows("item", 8192):
            rows += block.keys.size
            for part in (block.keys, block.vectors, block.state):
                digest.update(np.ascontiguousarray(part).data)
        counts, held = store.counters(), store.memory_bytes()
    return {
        "table": what,
        "rows": rows,
        "ram": ram,
        "window": window,
        "digest": digest.hexdigest(),
        "train_s": trained - began,
        "read_back_s": time.perf_counter() - trained,
        "before_bytes": peak.before,
        "train_peak_bytes": train_peak,
        "peak_bytes": peak.bytes,
        "store_bytes": held,
        **{name: counts[name] for name in ("fetched", "evicted", "scratch", "disk_bytes")},
    }


def apart(*arguments: object) -> dict[str, Any]:
    """`train` in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def measure(what: str, num_keys: int, directory: str) -> dict[str, Any]:
    ram = 24 * num_keys + num_keys * TABLES[what][2] // 20
    whole = apart(what, num_keys, None, directory, 0)
    tiered = apart(what, num_keys, ram, directory, 2)
    spare = tiered["before_bytes"] + ram + SLACK - tiered["peak_bytes"]
    return {"whole": whole, "tiered": tiered, "same_bits": whole["digest"] == tiered["digest"], "spare_bytes": spare}


def as_markdown(found: list[dict[str, Any]], facts: dict[str, object]) -> str:
    lines = [
        "# Tables larger than their RAM",
        "",
        *(f"{name}: {value}  " for name, value in facts.items()),
        "",
        "| table | rows | row bytes in all | tiers.ram | peak above the bare process | bound left | rows read |"
        " written | train, tiered : all in RAM | same bits |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        one, all_in = each["tiered"], each["whole"]
        above = one["peak_bytes"] - one["before_bytes"]
        lines.append(
            f"| {one['table']} | {one['rows']:,} | {one['rows'] * TABLES[one['table']][2] / 1e9:.2f} GB |"
            f" {one['ram'] / 1e6:,.0f} MB | {above / 1e6:,.0f} MB | {each['spare_bytes'] / 1e6:,.0f} MB |"
            f" {one['fetched']:,} | {one['evicted']:,} | {one['train_s']:.0f} s : {all_in['train_s']:.0f} s |"
            f" {'yes' if each['same_bits'] else 'NO'} |"
        )
    lines += [
        "",
        "Bound left: what remains of the bare process + tiers.ram + 64 MB at the peak, reading back included.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--dir", help="where rows go; by default a temporary directory")
    parser.add_argument("--save", action="store_true", help="write results/capacity.md and .json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(train(*json.loads(options.one))))
        return 0
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        found = [measure(what, options.keys, directory) for what in TABLES]
    facts = origin(command=f"python benchmarks/bench_capacity.py --keys {options.keys}")
    text = as_markdown(found, facts)
    print(text)
    if options.save:
        keep("capacity", text, {"facts": facts, "measured": found})
    return 0 if all(each["same_bits"] and each["spare_bytes"] >= 0 for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())

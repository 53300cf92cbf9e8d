"""Measures what a row for every key is worth over the hashing trick, in AUC, where the best possible AUC is known.

The log is `sfctr synth criteo`, whose labels are drawn from a planted model, so its best AUC on the validation rows is
exact. The same DeepFM, epochs, batches and seeds train on tables in which every key owns a row, of which tiers.ram
holds a part and the disk the others, and on tables whose keys are hashed into a quarter, a 16th and a 64th as many rows
(`Table(buckets=n)`), all in RAM. Columns of fewer than 1000 keys keep their rows everywhere: they cost nothing.

Bytes of RAM stand beside each: a hashed table has its rows and a small index; a full one has an index of 24 bytes a
key, which no disk takes away, and as many rows as the 16th has, but not less than 8 MB. So a full one needs no more
than hashing to a quarter, and more than hashing to less; what tiers.ram is changes no number of it.

It would measure something else with other ids: here every id has an effect of its own, drawn independently, and the
most frequent ones decide most labels. Where rare ids are noise hashing loses less, and with more rows a key more. Keys
that were never trained read as zero in a full table, and as somebody else's row in a hashed one.

    python benchmarks/bench_hashing.py [--rows 600000] [--seeds 2] [--scale 1.0] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from origin import keep, origin

import sfctr
from sfctr.data.synth import synth_criteo

IDS = [f"C{i}" for i in range(1, 27)]
DIM, LR = 16, 5e-3
ROW_BYTES, INDEX_BYTES = 3 * 4 * (DIM + 1), 24  # a first-order weight beside; Adam keeps two moments
LEAST_KEYS, LEAST_CACHE = 1000, 8 << 20
RATIOS = (4, 16, 64)
CACHE_OF = 16

Kept = Mapping[str, int]


def count_keys(folder: Path) -> Kept:
    """Distinct keys of each column among the rows to train on."""
    table = pq.read_table(folder / "train", columns=IDS)
    return {name: pc.count_distinct(table[name]).as_py() for name in IDS}


def make_schema() -> sfctr.Schema:
    numbers = [sfctr.Dense(f"I{i}", transform="log1p") for i in range(1, 14)]
    return sfctr.Schema(label="label", features=[*numbers, *(sfctr.Categorical(name) for name in IDS)])


def make_tables(keys: Kept, ratio: int) -> list[sfctr.Table]:
    """ratio: of keys to rows; 1: a row for each."""
    return [
        sfctr.Table(
            name,
            dim=DIM,
            optimizer=sfctr.Adam(lr=LR),
            linear=sfctr.Adam(lr=LR),
            buckets=-(-count // ratio) if ratio > 1 and count >= LEAST_KEYS else None,
        )
        for name, count in keys.items()
    ]


def num_rows(keys: Kept, ratio: int) -> int:
    return sum(-(-count // ratio) if count >= LEAST_KEYS else count for count in keys.values())


def ram_of(keys: Kept, ratio: int) -> int:
    """What the rows of a form, or of a full one the rows that RAM keeps, and its index take."""
    if ratio > 1:
        return (ROW_BYTES + INDEX_BYTES) * num_rows(keys, ratio)
    return INDEX_BYTES * num_rows(keys, 1) + max(LEAST_CACHE, ROW_BYTES * num_rows(keys, CACHE_OF))


def train(folder: Path, keys: Kept, ratio: int, seed: int) -> dict[str, Any]:
    tiers = sfctr.Tiers(ram=ram_of(keys, 1)) if ratio == 1 else sfctr.Tiers(disk=False)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        sfctr.fit(
            str(folder / "train"),
            make_schema(),
            make_tables(keys, ratio),
            model="deepfm",
            valid=str(folder / "valid"),
            run_dir=Path(scratch) / "run",
            tiers=tiers,
            quiet=True,
            epochs=1,
            batch_size=1024,
            window=2,
            seed=seed,
        ) as run,
    ):
        found = run.evaluate(str(folder / "valid"))
        seconds = time.monotonic() - began
        counts = run.store.counters()
    return {
        "auc": found["auc"],
        "logloss": found["logloss"],
        "seconds": seconds,
        **{name: counts[name] for name in ("fetched", "evicted", "disk_rows")},
    }


def measure(folder: Path, rows: int, scale: float, seeds: int) -> dict[str, Any]:
    report = synth_criteo(folder, rows, click_rate=0.25, scale=scale)
    keys = count_keys(folder)
    found: dict[int, list[dict[str, Any]]] = {ratio: [] for ratio in (1, *RATIOS)}
    for seed in range(seeds):
        for ratio, runs in found.items():
            runs.append(train(folder, keys, ratio, seed))
    forms = [
        {"ratio": ratio, "rows": num_rows(keys, ratio), "ram": ram_of(keys, ratio), "runs": runs}
        for ratio, runs in found.items()
    ]
    return {"best_auc": report.best_auc, "best_logloss": report.best_logloss, "keys": dict(keys), "forms": forms}


def mean(runs: Sequence[Mapping[str, Any]], what: str) -> float:
    return statistics.fmean(run[what] for run in runs)


def as_markdown(found: Mapping[str, Any], facts: Mapping[str, object]) -> str:
    best = found["best_auc"]
    full = mean(found["forms"][0]["runs"], "auc")
    page = ["# A row for every key, or the hashing trick", "", *(f"{name}: {value}  " for name, value in facts.items())]
    page += ["", f"{sum(found['keys'].values()):,} keys among the rows to train on. Best possible AUC: {best:.4f}."]
    page += ["", "| rows | of the keys | RAM for rows and index | on disk | test AUC | spread | below the best |"]
    page[-1] += " below a row for each | log loss |"
    page += ["|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
    for form in found["forms"]:
        runs = form["runs"]
        auc = mean(runs, "auc")
        spread = max(run["auc"] for run in runs) - min(run["auc"] for run in runs)
        share = "all" if form["ratio"] == 1 else f"1/{form['ratio']}"
        cells = [f"{form['rows']:,}", share, f"{form['ram'] / 1e6:.1f} MB", f"{mean(runs, 'disk_rows'):,.0f}"]
        cells += [f"{auc:.4f}", f"{spread:.4f}", f"{best - auc:.4f}", f"{full - auc:.4f}"]
        page.append(f"| {' | '.join(cells)} | {mean(runs, 'logloss'):.4f} |")
    page += ["", f"Log loss of the planted model: {found['best_logloss']:.4f}. {_verdict(found, full)}"]
    return "\n".join(page) + "\n"


def _verdict(found: Mapping[str, Any], full: float) -> str:
    """In words, held against how far seeds alone move the figure."""
    noise = max(
        max(run["auc"] for run in form["runs"]) - min(run["auc"] for run in form["runs"]) for form in found["forms"]
    )
    words = []
    for form in found["forms"][1:]:
        loss = full - mean(form["runs"], "auc")
        how = f"loses {loss:.4f}" if loss > noise else f"loses nothing that can be told from chance ({loss:+.4f})"
        words.append(f"hashing to 1/{form['ratio']} {how}")
    return f"Seeds move an AUC by up to {noise:.4f}: " + ", ".join(words) + "."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=600_000, help="of the log, those to validate on included")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of ids of the large columns")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/hashing.json and hashing.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.rows, args.scale, args.seeds)
    facts = origin(rows=args.rows, scale=args.scale, seeds=args.seeds, model="deepfm", dim=DIM, epochs=1)
    print(as_markdown(found, facts))
    if args.save:
        keep("hashing", as_markdown(found, facts), {**facts, **found})


if __name__ == "__main__":
    main()

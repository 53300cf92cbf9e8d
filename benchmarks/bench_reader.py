"""Measures how fast Parquet and CSV files of Criteo's shape become batches, against pandas and pyarrow's bare scan.

Every contender reads the same file (label, 13 numbers with nulls, 26 ids with nulls) from the page cache, decodes on
one thread, and touches every row once. "pandas" reads the file and makes the same arrays: float32 log1p numbers beside
missing marks, uint64 ids beside missing marks, float32 labels, cut into batches; "scan" is pyarrow's decoding alone, a
ceiling. Rounds are taken in turn, and medians quoted. Seconds are of the wall, and of the processor over all threads.

It would measure something else on a cold file (then: the disk), with so few rows that opening counts, or beside other
work: on a busy machine trust the processor seconds. A shuffled epoch is timed from the second on, when its rows are
converted; the first one costs a plain pass and the packing on top.

    python benchmarks/bench_reader.py [--rows 500000] [--rounds 5] [--batch 4096] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import measures
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from measures import Measure
from origin import keep, origin

from sfctr.data import open_source
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Categorical, Dense, Schema

NUMBERS = [f"I{i}" for i in range(1, 14)]
IDS = [f"C{i}" for i in range(1, 27)]


def make_table(rows: int) -> pa.Table:
    """Skewed ids and heavy-tailed integers with a tenth missing, as click logs have them."""
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {"label": pa.array((rng.random(rows) < 0.25).astype(np.int8))}
    for name in NUMBERS:
        columns[name] = pa.array(rng.lognormal(2, 2, rows).astype(np.int32), mask=rng.random(rows) < 0.1)
    for name in IDS:
        ids = rng.zipf(1.2, rows).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(24)
        columns[name] = pa.array(ids.astype(np.int64), mask=rng.random(rows) < 0.1)
    return pa.table(columns)


def schema() -> Schema:
    numbers = [Dense(name, transform="log1p") for name in NUMBERS]
    return Schema(label="label", features=[*numbers, *(Categorical(name, dtype="int64") for name in IDS)])


def with_sfctr(path: str, batch: int) -> int:
    with open_source(path, schema(), batch_size=batch, shuffle=False) as source:
        return sum(b.size for b in source)


def with_pandas(path: str, batch: int) -> int:
    """The arrays that sfctr makes, by pandas and NumPy, without a loop over rows."""
    if path.endswith(".csv"):
        frame = pd.read_csv(path, dtype=dict.fromkeys(IDS, "Int64"))
    else:
        frame = pd.read_parquet(path, use_threads=False, dtype_backend="numpy_nullable")
    dense = {}
    for name in NUMBERS:
        missing = frame[name].isna().to_numpy()
        values = (
            frame[name].to_numpy(dtype=np.float64, na_value=0.0)
            if path.endswith("parquet")
            else frame[name].fillna(0).to_numpy()
        )
        dense[name] = np.stack([np.where(missing, 0, np.log1p(np.maximum(values, 0))), missing], axis=1).astype(
            np.float32
        )
    keys = {}
    for name in IDS:
        missing = frame[name].isna().to_numpy()
        keys[name] = (frame[name].to_numpy(dtype=np.int64, na_value=0).view(np.uint64), missing.view(np.uint8))
    labels = frame["label"].to_numpy(dtype=np.float32)
    done = 0
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        cut = [values[part] for values in dense.values()], [(k[part], n[part]) for k, n in keys.values()], labels[part]
        done += len(cut[2])
    return done


def with_scan(path: str, batch: int) -> int:
    if path.endswith(".csv"):
        options = pacsv.ReadOptions(use_threads=False)
        return sum(b.num_rows for b in pacsv.open_csv(path, read_options=options))
    return sum(b.num_rows for b in pq.ParquetFile(path).iter_batches(batch, use_threads=False))


class Shuffled:
    """Epochs of one open source, each in another order."""

    def __init__(self, path: str, batch: int) -> None:
        self.source = open_source(path, schema(), batch_size=batch, shuffle=True, options=Data(memory="4GB"))
        self.epoch = 0
        self.run()

    def run(self) -> int:
        self.epoch += 1
        return sum(b.size for b in self.source.batches(self.epoch))


def timed(work: Callable[[], int], rows: int) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    assert work() == rows
    return time.perf_counter() - wall, time.process_time() - processor


def measure(folder: str, rows: int, rounds: int, batch: int) -> list[dict[str, float | str]]:
    table = make_table(rows)
    parquet, text = f"{folder}/rows.parquet", f"{folder}/rows.csv"
    pq.write_table(table, parquet)
    pacsv.write_csv(table, text)
    shuffled = Shuffled(parquet, batch)
    contenders: dict[tuple[str, str], Callable[[], int]] = {
        (kind, name): (lambda work=work, path=path: work(path, batch))  # type: ignore[misc]
        for kind, path in (("parquet", parquet), ("csv", text))
        for name, work in (("sfctr", with_sfctr), ("pandas", with_pandas), ("scan", with_scan))
    }
    contenders["parquet", "sfctr shuffled"] = shuffled.run
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in contenders}
    for number in range(rounds + 1):
        for key, work in contenders.items():
            sample = timed(work, rows)
            if number:  # the first round warms the page cache and the imports
                seconds[key].append(sample)
    shuffled.source.close()
    results: list[dict[str, float | str]] = []
    for (kind, name), samples in seconds.items():
        wall, processor = (statistics.median(s[at] for s in samples) for at in (0, 1))
        rival = statistics.median(s[1] for s in seconds[kind, "pandas"])
        results.append(
            {
                "format": kind,
                "reader": name,
                "rows_per_s": round(rows / wall),
                "rows_per_processor_s": round(rows / processor),
                "times_pandas": round(rival / processor, 2),
            }
        )
    return results


def lines_of(results: list[dict[str, float | str]]) -> list[Measure]:
    """Ours against pandas, by rows a second of processor time, which other work on the machine disturbs less."""
    pace = {(r["format"], r["reader"]): float(r["rows_per_processor_s"]) for r in results}
    reach = {("parquet", "sfctr"): 5.0, ("parquet", "sfctr shuffled"): 5.0}
    return [
        Measure(
            target="reader",
            case=f"{kind}, {name.removeprefix('sfctr').strip() or 'in order'}",
            rival="pandas",
            ours=own,
            theirs=pace[kind, "pandas"],
            unit="rows/s of a core",
            figure=own / pace[kind, "pandas"],
            reach=reach.get((kind, name)),
        )
        for (kind, name), own in pace.items()
        if name.startswith("sfctr")
    ]


def as_markdown(results: list[dict[str, float | str]], facts: dict[str, object]) -> str:
    lines = [", ".join(f"{name}: {value}" for name, value in facts.items()), ""]
    lines += ["| format | reader | rows/s | rows/s of processor time | times pandas |", "|---|---|---:|---:|---:|"]
    for r in results:
        rates = f"{r['rows_per_s']:,} | {r['rows_per_processor_s']:,} | {r['times_pandas']}"
        lines.append(f"| {r['format']} | {r['reader']} | {rates} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/reader.json and reader.md")
    measures.add_option(parser)
    args = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        results = measure(folder, args.rows, args.rounds, args.batch)
    versions = f"pyarrow {pa.__version__}, pandas {pd.__version__}, numpy {np.__version__}"
    facts = origin(rows=args.rows, batch=args.batch, rounds=args.rounds, versions=versions)
    print(as_markdown(results, facts))
    measures.write(args.measures, lines_of(results))
    if args.save:
        keep("reader", as_markdown(results, facts), {**facts, "results": results})


if __name__ == "__main__":
    main()

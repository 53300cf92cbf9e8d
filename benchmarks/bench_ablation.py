"""Measures what each part of ScaleFreeCTR's pipeline is worth: the cache, virtual ids, and preparing a batch ahead.

A CPU simulates the device (`tiers.device`), so what crosses between RAM and device is exact, and what a step takes is
not what an accelerator would need: a copy within RAM is cheap beside torch's operations on a CPU. Rows of the stream
(synthetic, Criteo's shape) are read into memory before; torch has one thread, look-ahead has its own.

- `scalefreectr`: the preset. Its cache holds a tenth of the distinct rows, and the next batch is prepared ahead.
- `without the pipeline`: the same with window 0.
- `without the cache`: room for one row, so that every batch brings its rows up and takes them down again.
- `without virtual ids`: each look-up has a row of its own, the n-th one of a key in a batch always the same one, so
  that nothing is merged; once with the cache's bytes, and once without a cache. The numbers that it trains are others.
- `all on the device`: no row ever leaves it, the bound for a cache.

A look-up's row is counted with its optimizer state, as rows travel whole. Rounds are taken in turn, medians quoted. It
would measure something else with larger batches (more repeats in each, so virtual ids save more), with less skewed ids,
or with so few batches that most rows are new.

    python benchmarks/bench_ablation.py [--batches 150] [--batch 4096] [--rounds 3] [--save]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from origin import keep, origin
from torch.nn.functional import binary_cross_entropy_with_logits

import sfctr
from sfctr.data import open_source
from sfctr.data.synth import synth_criteo
from sfctr.models.registry import build_model
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.inputs import inputs_of

IDS = [f"C{i}" for i in range(1, 27)]
DIM = 16
SHARE = 0.1
"""Of the distinct rows, that the cache holds."""
MISSING = np.uint64(0x5EED)


@dataclass(frozen=True, kw_only=True)
class Form:
    """share: of the distinct rows, that the device has room for; None: room for one row."""

    name: str
    share: float | None = SHARE
    window: int = 1
    is_merged: bool = True


FORMS = (
    Form(name="scalefreectr"),
    Form(name="without the pipeline", window=0),
    Form(name="without the cache", share=None),
    Form(name="without virtual ids", is_merged=False),
    Form(name="without virtual ids and cache", share=None, is_merged=False),
    Form(name="all on the device", share=2.0),
)


def make_schema() -> sfctr.Schema:
    numbers = [sfctr.Dense(f"I{i}", transform="log1p") for i in range(1, 14)]
    return sfctr.Schema(label="label", features=[*numbers, *(sfctr.Categorical(name) for name in IDS)])


def make_tables() -> list[sfctr.Table]:
    return [sfctr.Table(name, dim=DIM, optimizer=sfctr.Adagrad(lr=0.02)) for name in IDS]


def read(schema: sfctr.Schema, count: int, size: int) -> tuple[sfctr.Schema, list[Batch]]:
    with tempfile.TemporaryDirectory() as folder:
        synth_criteo(folder, count * size, valid_fraction=0.0)
        with open_source(f"{folder}/train", schema, batch_size=size, shuffle=False) as source:
            return source.schema, list(source)


def apart(batch: Batch) -> Batch:
    """The batch with a key of its own for the n-th look-up of each key and column."""
    return replace(batch, keys={name: Keys(keys=_apart(keys)) for name, keys in batch.keys.items()})


def _apart(given: Keys) -> Any:
    keys = given.keys if given.nulls is None else np.where(given.nulls, MISSING, given.keys)
    order = np.argsort(keys, kind="stable")
    found = keys[order]
    is_first = np.ones(found.size, np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    first = np.maximum.accumulate(np.where(is_first, np.arange(found.size), 0))
    numbers = np.empty(found.size, np.uint64)
    numbers[order] = (np.arange(found.size) - first).astype(np.uint64)
    return keys + numbers * np.uint64(0x9E3779B97F4A7C15)


def train(form: Form, schema: sfctr.Schema, batches: Sequence[Batch], num_rows: int) -> dict[str, Any]:
    """One training; its first tenth of the steps is not timed."""
    tables = make_tables()
    model = build_model("dlrm", inputs_of(schema, tables), 1, {}, seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    row_bytes = 8 * DIM
    room = row_bytes * len(IDS) if form.share is None else int(form.share * num_rows * row_bytes)
    step_s, up, began = [], 0, 0.0
    tiers = sfctr.Tiers(device=room, ram="8GB", disk=False)
    with sfctr.Store(tables, tiers=tiers) as store:
        for step in sfctr.Lookahead(batches, store, schema=schema, window=form.window):
            logits = model(step.features()).squeeze(-1)
            binary_cross_entropy_with_logits(logits, step.labels).backward()
            step.step(optimizer)
            now = time.perf_counter()
            step_s.append(now - began)
            began = now
        counts, digest = store.counters(), hashlib.sha256()
        for name in IDS:
            for block in store.rows(name):
                for part in (block.keys, block.vectors, block.state):
                    digest.update(np.ascontiguousarray(part).data)
    warm = max(1, len(batches) // 10)
    up = counts["lifted"] + counts["device_scratch"]
    down = counts["lowered"] + counts["device_scratch"]
    return {
        "step_s": statistics.median(step_s[warm:]),
        "requested": counts["requested"] / len(batches),
        "unique": counts["unique"] / len(batches),
        "hits": counts["device_hits"] / counts["unique"],
        "bytes_up": up * row_bytes / len(batches),
        "bytes_down": down * row_bytes / len(batches),
        "digest": digest.hexdigest(),
    }


def measure(count: int, size: int, rounds: int) -> list[dict[str, Any]]:
    schema, merged = read(make_schema(), count, size)
    forms = {True: merged, False: [apart(batch) for batch in merged]}
    num_rows = sum(np.unique(np.concatenate([b.keys[name].keys for b in merged])).size for name in IDS)
    found: dict[str, list[dict[str, Any]]] = {form.name: [] for form in FORMS}
    for _ in range(rounds):
        for form in FORMS:
            found[form.name].append(train(form, schema, forms[form.is_merged], num_rows))
    return [
        {"form": name, **runs[0], "step_s": statistics.median(run["step_s"] for run in runs)}
        for name, runs in found.items()
    ]


def as_markdown(measured: Sequence[dict[str, Any]], facts: dict[str, object]) -> str:
    base = measured[0]
    lines = [
        "# What the parts of the pipeline are worth",
        "",
        ", ".join(f"{name}: {value}" for name, value in facts.items()),
        "",
        "| form | look-ups a batch | rows a batch | of them there already | MB up a batch | MB down | all that moves |"
        " step time | same bits |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    whole = base["bytes_up"] + base["bytes_down"]
    for m in measured:
        moved = m["bytes_up"] + m["bytes_down"]
        rows = f"{m['requested']:,.0f} | {m['unique']:,.0f} | {m['hits']:.1%}"
        bytes_ = f"{m['bytes_up'] / 1e6:.2f} | {m['bytes_down'] / 1e6:.2f} | {moved / whole:.2f}"
        same = "yes" if m["digest"] == base["digest"] else "other numbers"
        lines.append(f"| {m['form']} | {rows} | {bytes_} | {m['step_s'] / base['step_s']:.2f} | {same} |")
    lines += ["", "All that moves and step time: ratios to the first line. The device is simulated."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/ablation.json and ablation.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured = measure(args.batches, args.batch, args.rounds)
    facts = origin(batches=args.batches, batch=args.batch, rounds=args.rounds, model="dlrm", dim=DIM)
    print(as_markdown(measured, facts))
    if args.save:
        keep("ablation", as_markdown(measured, facts), {**facts, "measured": measured})


if __name__ == "__main__":
    main()

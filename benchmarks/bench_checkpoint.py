"""Measures what a checkpoint of changed rows costs: bytes, and steps that training stands still, beside torch.save.

One table of --rows rows, dim 16, row-wise Adagrad (68 bytes a row), looked up by 26 features of a DLRM (batch 4,096,
one torch thread). A first checkpoint has all rows; then steps change --share of them, and the second one is measured:
the pause (in median steps of this very training), the bytes that it wrote, and how long its thread wrote beside
training. The rival is torch.save of the same table as tensors of keys, vectors and state, which writes all and stands
still.

Two forms: all rows in RAM, and rows on disk beyond an eighth of them. It would measure something else with smaller
steps (the pause is then more of them), with more rows changed, or on a cold or full page cache (writes go to the page
cache and are synced at a file's end).

    python benchmarks/bench_checkpoint.py [--rows 10000000] [--share 0.01] [--rounds 3] [--dir DIR] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from origin import keep, origin
from torch.nn.functional import binary_cross_entropy_with_logits

import sfctr
from sfctr.checkpoint import Checkpointer, TrainingState
from sfctr.models.registry import build_model
from sfctr.spec.batch import Batch, Keys
from sfctr.spec.inputs import inputs_of
from sfctr.spec.runfile import Data, RunFile
from sfctr.store import RowBlock

FEATURES = [f"C{i}" for i in range(26)]
BATCH, DIM = 4096, 16
ROW_BYTES = 4 * (DIM + 1)


def batches(keys: Any, count: int, seed: int) -> Iterator[Batch]:
    """`count` batches that between them look up each of `keys`, and some twice."""
    random = np.random.default_rng(seed)
    wanted = count * BATCH * len(FEATURES)
    drawn = np.concatenate([keys, random.choice(keys, max(0, wanted - keys.size))])[:wanted]
    random.shuffle(drawn)
    for part in drawn.reshape(count, len(FEATURES), BATCH):
        labels = random.integers(0, 2, (BATCH, 1)).astype(np.float32)
        yield Batch(
            size=BATCH,
            keys={name: Keys(keys=part[f]) for f, name in enumerate(FEATURES)},
            labels=labels,
            label_mask=np.ones(labels.shape, np.bool_),
            rows=np.arange(BATCH),
        )


def measure(rows: int, share: float, directory: Path, *, on_disk: bool) -> dict[str, Any]:
    schema = sfctr.Schema(
        label="y", features=[sfctr.Categorical(name, table="item", dtype="uint64") for name in FEATURES]
    )
    tables = [sfctr.Table("item", dim=DIM, optimizer=sfctr.RowWiseAdagrad(lr=0.05))]
    run = RunFile(data=Data(), schema=schema, tables=tuple(tables))
    model = build_model("dlrm", inputs_of(schema, tables), 1, {}, seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    ram = 24 * rows + ROW_BYTES * rows // 8 if on_disk else "1TB"
    with (
        sfctr.Store(tables, tiers=sfctr.Tiers(ram=ram, disk=str(directory) if on_disk else False)) as store,
        Checkpointer(directory / "checkpoints", store) as saver,
    ):
        fill(store, rows)
        state = TrainingState(run=run, store=store, model=model, optimizer=optimizer)
        changed = np.random.default_rng(1).choice(rows, int(rows * share), replace=False).astype(np.uint64)
        steps = max(1, -(-changed.size // (BATCH * len(FEATURES))))
        train(store, schema, model, optimizer, batches(changed[:BATCH], 3, 0))  # warm
        saver.save(state)
        saver.wait()
        assert saver.last_saved is not None
        whole = saver.last_saved
        step_s = train(store, schema, model, optimizer, batches(changed, steps, 2))
        saver.save(state)
        beside = train(store, schema, model, optimizer, batches(changed, max(8, steps), 3))
        saver.wait()
        found = saver.last_saved
        rival_s, rival_bytes = save_by_torch(store, directory / "rival.pt")
    step = statistics.median([*step_s, *beside])
    return {
        "form": "rows on disk" if on_disk else "rows in RAM",
        "changed": found.num_rows,
        "bytes": found.num_bytes,
        "dense_bytes": sum(p.numel() * 4 for p in model.parameters()) * 2,
        "pause_s": found.pause_s,
        "write_s": found.write_s,
        "step_s": step,
        "longest_step_beside_s": max(beside),
        "full_pause_s": whole.pause_s,
        "full_write_s": whole.write_s,
        "full_bytes": whole.num_bytes,
        "rival_s": rival_s,
        "rival_bytes": rival_bytes,
    }


def fill(store: sfctr.Store, rows: int) -> None:
    store.reserve("item", rows)
    random = np.random.default_rng(0)
    for first in range(0, rows, 1 << 17):
        keys = np.arange(first, min(first + (1 << 17), rows), dtype=np.uint64)
        vectors = random.standard_normal((keys.size, DIM), dtype=np.float32)
        state = np.full((keys.size, 1), 0.1, np.float32)
        nulls = np.zeros(keys.size, np.bool_)
        store.load_rows("item", RowBlock(keys=keys, nulls=nulls, vectors=vectors, linear=None, state=state))


def train(store: Any, schema: Any, model: Any, optimizer: Any, stream: Iterator[Batch]) -> list[float]:
    """Seconds of each step."""
    seconds, began = [], time.perf_counter()
    for ready in sfctr.Lookahead(stream, store, schema=schema, window=2):
        logits = model(ready.features()).squeeze(-1)
        binary_cross_entropy_with_logits(logits, ready.labels).backward()
        ready.step(optimizer)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    return seconds


def save_by_torch(store: sfctr.Store, path: Path) -> tuple[float, int]:
    """Of tensors that are at hand already: only torch.save and an fsync are timed."""
    blocks = list(store.rows("item"))
    parts = {
        name: torch.from_numpy(np.concatenate([getattr(block, name) for block in blocks]).view(kind))
        for name, kind in (("keys", np.int64), ("vectors", np.float32), ("state", np.float32))
    }
    began = time.perf_counter()
    with path.open("wb") as file:
        torch.save(parts, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began, path.stat().st_size


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    numbers = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "form"}
    return {"form": rounds[0]["form"], **numbers}


def as_markdown(measured: Sequence[dict[str, Any]], facts: dict[str, object], rows: int) -> str:
    lines = [
        "# What a checkpoint of changed rows costs",
        "",
        ", ".join(f"{name}: {value}" for name, value in facts.items()),
        "",
        f"{rows:,} rows of {ROW_BYTES} bytes and a key",
        "",
        "| form | changed rows | MB written | of the changed rows' bytes | pause | in steps | written beside training |"
        " full: pause, in steps | MB | torch.save of all: MB | stands still |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for m in measured:
        of_rows = (m["bytes"] - m["dense_bytes"]) / (m["changed"] * (ROW_BYTES + 8))
        pause = f"{m['pause_s'] * 1e3:.0f} ms | {m['pause_s'] / m['step_s']:.2f}"
        rival = f"{m['rival_bytes'] / 1e6:,.0f} | {m['rival_s'] / m['step_s']:.0f} steps"
        lines.append(
            f"| {m['form']} | {m['changed']:,.0f} | {m['bytes'] / 1e6:.1f} | {of_rows:.2f} | {pause} |"
            f" {m['write_s']:.2f} s | {m['full_pause_s'] / m['step_s']:.2f} | {m['full_bytes'] / 1e6:,.0f} | {rival} |"
        )
    lines += [
        "",
        "Bytes of the changed rows: row and key, the dense part taken off. A median step is "
        + ", ".join(f"{m['step_s'] * 1e3:.0f} ms ({m['form']})" for m in measured)
        + "; the longest one beside a save "
        + ", ".join(f"{m['longest_step_beside_s'] / m['step_s']:.1f} of these" for m in measured)
        + ".",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", help="where files go; by default a temporary directory")
    parser.add_argument("--save", action="store_true", help="write results/checkpoint.json and checkpoint.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(args.rounds):
        for on_disk, found in rounds.items():
            with tempfile.TemporaryDirectory(dir=args.dir) as directory:
                found.append(measure(args.rows, args.share, Path(directory), on_disk=on_disk))
    measured = [medians(found) for found in rounds.values()]
    facts = origin(rows=args.rows, share=args.share, rounds=args.rounds)
    print(as_markdown(measured, facts, args.rows))
    if args.save:
        keep("checkpoint", as_markdown(measured, facts, args.rows), {**facts, "measured": measured})
    return 0


if __name__ == "__main__":
    main()

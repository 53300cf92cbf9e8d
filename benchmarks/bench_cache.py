"""Measures what a device cache of 10 % of the rows costs a step, against all rows on the device, at window 4.

A CPU simulates the device (`tiers.device`): rows are trained in tensors of their own, by torch's operations, and what
moves between RAM and them is copied. Both contenders train the same batches (synthetic, Criteo's shape, read into
memory before) with the same model, and end with the same bits, which is checked. The cache holds a tenth of the
distinct rows of the stream; "all resident" has room for twice of them, and its rows have come to the device before the
clock runs, as those of the cache have: the stream is trained once, and timed when it is trained again.

Torch has one thread, look-ahead its own. On one core all that look-ahead does would be added to the step. Without
skew in the ids a tenth would hold little, and with an accelerator the copies would cross a bus. With so few batches
that a tenth of their rows is less than five of them need, it would measure batches that wait for room.

    python benchmarks/bench_cache.py [--batches 240] [--batch 1024] [--rounds 3] [--measures FILE] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import measures
import numpy as np
import torch
from bench_ablation import IDS, make_schema, make_tables, read
from measures import Measure
from origin import keep, origin
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import sfctr
from sfctr.models.registry import build_model
from sfctr.spec.batch import Batch
from sfctr.spec.inputs import inputs_of

SHARE, WINDOW, REACH = 0.1, 4, 1.1
ROW_BYTES = 128  # dim 16 and an accumulator for each


class Contender:
    """A store whose device has room for `room` rows, and the model on top of it."""

    def __init__(self, schema: sfctr.Schema, room: int) -> None:
        self._schema, tables = schema, make_tables()
        self.store = sfctr.Store(tables, tiers=sfctr.Tiers(device=room * ROW_BYTES, ram="5GB", disk=False))
        self._model = build_model("dlrm", inputs_of(schema, tables), 1, {}, seed=0)
        self._optimizer = torch.optim.Adagrad(self._model.parameters(), lr=0.02)

    def close(self) -> None:
        self.store.close()

    def train(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """One pass. Steps are timed from the end of one to that of the next."""
        before, times = self.store.counters(), []
        for step in sfctr.Lookahead(batches, self.store, schema=self._schema, window=WINDOW):
            loss = self._loss(step.features(), step.labels, self._model)
            loss.backward()
            step.step(self._optimizer)
            times.append(time.perf_counter())
        after = self.store.counters()
        moved = {name: after[name] - before[name] for name in after}
        return {
            "step_s": statistics.median(np.diff(times)),
            "mean_s": float(np.mean(np.diff(times))),
            "hits": moved["device_hits"] / moved["unique"],
            "lifted": moved["lifted"] / len(batches),
            "lowered": moved["lowered"] / len(batches),
            "waits": moved["device_waits"],
            "scratch": moved["device_scratch"],
        }

    @staticmethod
    def _loss(features: Any, labels: Tensor, model: nn.Module) -> Tensor:
        return binary_cross_entropy_with_logits(model(features).squeeze(-1), labels)

    def vectors(self) -> Iterator[Any]:
        for name in IDS:
            for block in self.store.rows(name):
                yield block.vectors


def measure(count: int, size: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    schema, batches = read(make_schema(), count, size)
    num_rows = sum(np.unique(np.concatenate([b.keys[name].keys for b in batches])).size for name in IDS)
    with ExitStack() as stack:
        rooms = {"cache of 10 %": int(SHARE * num_rows), "all resident": 2 * num_rows}
        contenders = {name: Contender(schema, room) for name, room in rooms.items()}
        for contender in contenders.values():
            stack.callback(contender.close)
            contender.train(batches)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, contender in contenders.items():
                found[name].append(contender.train(batches))
        pairs = zip(*(contender.vectors() for contender in contenders.values()), strict=True)
        if not all(np.array_equal(a, b) for a, b in pairs):
            raise SystemExit("the two did not train the same numbers: what they took cannot be compared")
    return found


def line_of(found: dict[str, list[dict[str, Any]]], size: int) -> Measure:
    ours, theirs = (statistics.median(each["mean_s"] for each in runs) for runs in found.values())
    return Measure(
        target="device-cache",
        case=f"DLRM, batch {size}, simulated device",
        rival="all rows there",
        ours=1e3 * ours,
        theirs=1e3 * theirs,
        unit="ms a step",
        figure=ours / theirs,
        reach=REACH,
        at_most=True,
    )


def as_markdown(found: dict[str, list[dict[str, Any]]], line: Measure, facts: dict[str, object]) -> str:
    page = ["# A cache of rows against all rows on the device", "", *(f"{k}: {v}  " for k, v in facts.items()), ""]
    page += ["| rows on the device | step, mean | step, median | unique keys there already | rows up a step | down |"]
    page += ["|---|---:|---:|---:|---:|---:|"]
    for name, runs in found.items():
        mean, median = (1e3 * statistics.median(run[key] for run in runs) for key in ("mean_s", "step_s"))
        last = runs[-1]
        moved = f"{last['hits']:.1%} | {last['lifted']:,.0f} | {last['lowered']:,.0f}"
        page.append(f"| {name} | {mean:.1f} ms | {median:.1f} ms | {moved} |")
    page += ["", f"Ratio of the means: {line.figure:.2f} (at most {REACH}). The device is simulated by the CPU."]
    return "\n".join(page) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=240)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cache.json and cache.md")
    measures.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = measure(args.batches, args.batch, args.rounds)
    line = line_of(found, args.batch)
    facts = origin(batches=args.batches, batch=args.batch, rounds=args.rounds, window=WINDOW, model="dlrm")
    page = as_markdown(found, line, facts)
    print(page)
    measures.write(args.measures, [line])
    if args.save:
        keep("cache", page, {**facts, "measured": found})


if __name__ == "__main__":
    main()

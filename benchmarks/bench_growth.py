"""Measures that a step costs what it works on: not the vocabulary, the batch's share alone, and the window nothing.

One table in bf16, dim 16, with SGD: 32 bytes a row, so that 10^8 rows and their index take 3.2 + 1.9 GB. Keys are
scattered over 64 bits and rows are there before the clock runs; batches are drawn evenly, so that nothing is in the
processor's caches but by chance. A step looks 8 columns up, pools, takes a fixed gradient, and trains: unique keys,
plan, features, backward, update, without a model.

- Vocabulary: 10^6 to 10^8 rows at one working set (batch 4096, window 0). The work is equal; memory that is larger than
  the caches and what the page tables reach is slower, which is all the growth that there may be.
- Batch: 1024 to 65,536 at the largest vocabulary. Time a row should fall to a level and stay there.
- Window: 0 to 16 batches ahead at that vocabulary and batch 4096. What look-ahead does moves to other threads; on two
  cores a step is shorter then, never longer.

Each point is the median of rounds taken in turn where points share a store; vocabularies follow one another. With
Zipf's law in place of even draws, or with less memory than the rows need, it would measure something else.

    python benchmarks/bench_growth.py [--rows 100000000] [--rounds 3] [--pictures] [--measures FILE] [--save]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import measures
import numpy as np
import torch
from measures import Measure
from origin import keep, origin

import sfctr
from sfctr.spec.batch import Batch, Keys

DIM, COLUMNS = 16, [f"item{i}" for i in range(8)]
SCHEMA = sfctr.Schema(label="y", features=[sfctr.Categorical(name, table="item") for name in COLUMNS])
BATCH, STEPS, WARM = 4096, 30, 5
BATCHES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
WINDOWS = (0, 1, 2, 4, 8, 16)
REACH = 1.6
DOCS = Path(__file__).resolve().parent.parent / "docs"
SCATTER = np.uint64(0x9E3779B97F4A7C15)

Point = tuple[int, float]


def vocabularies(most: int) -> list[int]:
    """Four a decade, from a hundredth of the most."""
    return sorted({round(most / 10 ** (i / 4)) for i in range(9)})


def fill(store: sfctr.Store, begin: int, end: int) -> None:
    """Rows of keys number begin to end - 1."""
    store.reserve("item", end)
    for first in range(begin, end, 1 << 18):
        keys = np.arange(first, min(first + (1 << 18), end), dtype=np.uint64) * SCATTER
        store.set_vectors("item", keys, np.full((keys.size, DIM), 0.01, np.float32))


def make_batches(rows: int, size: int, count: int) -> list[Batch]:
    random = np.random.default_rng(size)
    labels, rows_of = np.zeros((size, 1), np.float32), np.arange(size, dtype=np.int64)
    mask = np.ones((size, 1), np.bool_)
    return [
        Batch(
            size=size,
            keys={name: Keys(keys=random.integers(0, rows, size, dtype=np.uint64) * SCATTER) for name in COLUMNS},
            labels=labels,
            label_mask=mask,
            rows=rows_of,
        )
        for _ in range(count)
    ]


def step_ms(store: sfctr.Store, batches: Sequence[Batch], window: int) -> float:
    """Median over the steps that are not warming up. With a window the mean: steps are then not alike.

    The last `window` steps do not count, since nothing is prepared beside them.
    """
    gradient = torch.full((batches[0].size, DIM), 1e-6)
    times = [time.perf_counter()]
    for step in sfctr.Lookahead(batches, store, schema=SCHEMA, window=window):
        features = step.features()
        torch.autograd.backward([features[name] for name in COLUMNS], [gradient] * len(COLUMNS))
        step.step(None)
        times.append(time.perf_counter())
    taken = np.diff(times)[WARM : len(batches) - window]
    return 1e3 * float(np.median(taken) if window == 0 else taken.mean())


def grow(store: sfctr.Store, most: int, rounds: int) -> list[Point]:
    points, there = [], 0
    for rows in vocabularies(most):
        fill(store, there, rows)
        there = rows
        batches = make_batches(rows, BATCH, STEPS + WARM)
        points.append((rows, statistics.median(step_ms(store, batches, 0) for _ in range(rounds))))
    return points


def in_turn(store: sfctr.Store, rows: int, settings: Sequence[tuple[int, int, int]], rounds: int) -> list[Point]:
    """Of each (x, batch, window): x and the median of rounds that all settings take in turn."""
    found: dict[int, list[float]] = {x: [] for x, _, _ in settings}
    for _ in range(rounds):
        for x, size, window in settings:
            count = WARM + max(6, min(STEPS, STEPS * BATCH // size)) + window
            found[x].append(step_ms(store, make_batches(rows, size, count), window))
    return [(x, statistics.median(times)) for x, times in found.items()]


def measure(most: int, rounds: int) -> dict[str, list[Point]]:
    table = sfctr.Table("item", dim=DIM, dtype="bf16", optimizer=sfctr.SGD(lr=0.01))
    with sfctr.Store([table], tiers=sfctr.Tiers(ram="100GB", disk=False)) as store:
        found = {"vocabulary": grow(store, most, rounds)}
        found["batch"] = in_turn(store, most, [(size, size, 0) for size in BATCHES], rounds)
        found["window"] = in_turn(store, most, [(window, BATCH, window) for window in WINDOWS], rounds)
        found["bytes"] = [(most, store.memory_bytes() / most)]
    return found


def line_of(found: dict[str, list[Point]]) -> Measure:
    (fewest, least), *_, (most, greatest) = found["vocabulary"]
    return Measure(
        target="growth",
        case=f"{most:,} rows against {fewest:,}, batch {BATCH}, 8 look-ups, bf16, SGD",
        rival="itself",
        ours=greatest,
        theirs=least,
        unit="ms a step",
        figure=greatest / least,
        reach=REACH,
        at_most=True,
    )


def as_markdown(found: dict[str, list[Point]], line: Measure, facts: dict[str, object]) -> str:
    page = ["# What a step costs as things grow", "", *(f"{name}: {value}  " for name, value in facts.items())]
    page += ["", "| rows of vocabulary | ms a step |", "|---:|---:|"]
    page += [f"| {rows:,} | {ms:.2f} |" for rows, ms in found["vocabulary"]]
    page += [
        "",
        f"{line.case}: {line.figure:.2f} times (at most {REACH}); {found['bytes'][0][1]:.1f} bytes a row in all.",
    ]
    page += ["", "| batch | ms a step | us a row of the batch |", "|---:|---:|---:|"]
    page += [f"| {size:,} | {ms:.2f} | {1e3 * ms / size:.2f} |" for size, ms in found["batch"]]
    page += ["", "| window | ms a step |", "|---:|---:|"]
    page += [f"| {window} | {ms:.2f} |" for window, ms in found["window"]]
    return "\n".join(page) + "\n"


def draw(found: dict[str, list[Point]]) -> None:
    """docs/growth-*.svg: one grey for lines and words, which is read on white and on black, and no background."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    grey, blue = "#808080", "#3b82f6"
    names = ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color")
    plt.rcParams.update(
        dict.fromkeys(names, grey) | {"font.size": 11, "svg.hashsalt": "growth", "svg.fonttype": "none"}
    )
    per_row = [(size, 1e3 * ms / size) for size, ms in found["batch"]]
    for name, points, x, y, is_log in (
        ("vocabulary", found["vocabulary"], "rows of the vocabulary", "ms a step", True),
        ("batch", per_row, "rows of a batch", "microseconds a row of the batch", True),
        ("window", found["window"], "batches prepared ahead", "ms a step", False),
    ):
        figure, axes = plt.subplots(figsize=(5.6, 3.2))
        axes.plot(*zip(*points, strict=True), marker="o", color=blue, linewidth=2)
        axes.set_xscale("log" if is_log else "linear")
        axes.set_ylim(0, 1.25 * max(value for _, value in points))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=grey, alpha=0.25)
        figure.savefig(DOCS / f"growth-{name}.svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000_000, help="the largest vocabulary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", action="store_true", help="draw docs/growth-*.svg (needs matplotlib)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/growth.json and growth.md")
    measures.add_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = measure(args.rows, args.rounds)
    line = line_of(found)
    facts = origin(rounds=args.rounds, dim=DIM, batch=BATCH)
    page = as_markdown(found, line, facts)
    print(page)
    if args.pictures:
        draw(found)
    measures.write(args.measures, [line])
    if args.save:
        keep("growth", page, {**facts, "measured": found})


if __name__ == "__main__":
    main()

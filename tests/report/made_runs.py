"""Directories of runs, written by hand, with every figure in them known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sfctr.train.stages import STAGES

RUN_FILE = """
[data]
train = ["clicks.parquet"]

[schema]
label = "click"
features = [{kind = "categorical", name = "item"}, {kind = "categorical", name = "user"}]

[[tables]]
name = "item"
dim = 16

[[tables]]
name = "user"
dim = 8

[[tables]]
name = "hour"
dim = 4
num_rows = 24
dense = true

[train]
batch_size = 100
"""
BEGIN = {
    "kind": "begin",
    "at": "2026-01-02T03:04:05+00:00",
    "step": 0,
    "rows": 0,
    "versions": {"sfctr": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.2"},
    "machine": {"name": "box", "system": "Linux", "processor": "Abacus 9", "cores": 2, "memory_bytes": 16_000_000_000},
    "processes": 1,
}
END = {
    "kind": "end",
    "at": "2026-01-02T03:05:00+00:00",
    "step": 20,
    "rows": 2000,
    "seconds": 55.0,
    "beside_s": {"evaluate": 8.0, "save": 2.0, "checkpoint": 1.0},
    "how": "finished",
    "notices": ["rows fill the RAM"],
}


def counts(unique: int, fresh: int, hits: int, **more: int) -> dict[str, int]:
    """Of a table: RAM had `hits` of the `unique` keys, `fresh` had no row, the disk had the others."""
    fetched = unique - fresh - hits
    return {"requested": 2 * unique, "unique": unique, "fresh": fresh, "hits": hits, "fetched": fetched, **more}


def train_line(step: int, **more: Any) -> dict[str, Any]:
    """Of ten steps of 100 rows, in 20 seconds, of which 4 were waited for."""
    return {
        "kind": "train",
        "step": step,
        "epoch": 1,
        "rows": 100 * step,
        "loss": 0.7 - 0.01 * step,
        "auc": 0.5 + 0.01 * step,
        "lr_factor": 1.0,
        "rows_per_s": 50.0,
        "seconds": 2.0 * step,
        "stage_s": {
            "step": 16.0,
            "features": 2.0,
            "forward": 5.0,
            "backward": 6.0,
            "update": 2.0,
            "wait": 4.0,
            "fetch": 9.0,
        },
        "moved": {
            "item": counts(1000, 200, 600, evicted=100, bytes_fetched=19_200, bytes_evicted=9_600),
            "user": counts(500, 100, 390),
        },
        "held": {
            "rows": {"item": 20 * step, "user": 10 * step},
            "row_bytes": {"item": 20 * step * 192, "user": 10 * step * 96},
            "bytes": {"ram": 1_500_000, "disk": 4_000_000},
            "bounds": {"ram": 2_000_000},
            "process": {"peak_bytes": 600_000_000},
        },
        **more,
    }


def valid_line(step: int, auc: float | None, *, best: bool, **more: Any) -> dict[str, Any]:
    """Of 50 rows that were held out."""
    return {
        "kind": "valid",
        "step": step,
        "epoch": 1,
        "rows": 50,
        "auc": auc,
        "logloss": 0.6,
        "ne": 0.95,
        "calibration": 1.02,
        "unseen": {"item": 0.25, "user": 0.5},
        "best": best,
        "seconds": 2.0 * step,
        **more,
    }


LINES = (
    train_line(10),
    valid_line(10, 0.75, best=True),
    train_line(20),
    valid_line(20, 0.74, best=False),
)


def make_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]] = LINES,
    *,
    run_file: str | None = RUN_FILE,
    history: Sequence[Mapping[str, Any]] = (BEGIN, END),
) -> Path:
    path.mkdir(parents=True)
    if run_file is not None:
        (path / "run.toml").write_text(run_file, encoding="utf-8")
    for name, entries in (("metrics.jsonl", lines), ("history.jsonl", history)):
        if entries:
            (path / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


EVIL = "<script>alert(1)</script>&\"'$x^2$ 名前"
"""A name that would be markup in HTML, mathematics in a picture, and has glyphs that few fonts have."""


def hard_run(path: Path, *, steps: int = 40) -> Path:
    """Forty tables with long names on a device, RAM and disk, several labels, several processes, options of membership
    and numbers that are none."""
    names = [
        f"table_of_the_feature_{number}_with_a_rather_long_name_that_goes_on_{'and_on_' * (number % 4)}"
        for number in range(39)
    ]
    names.append(EVIL)
    labels = {"click": 0.7, "like": 0.8, EVIL: None}
    lines = []
    for step in range(10, steps + 10, 10):
        moved = {
            name: counts(
                1000,
                100,
                900 - 20 * place * step // steps,
                evicted=50 * place,
                bytes_fetched=10**6,
                bytes_evicted=10**7,
                device_hits=600 - 10 * place,
                lifted=300 + 10 * place,
                lowered=200,
                bytes_lifted=10**5,
                bytes_lowered=10**5,
            )
            for place, name in enumerate(names)
        }
        held = {
            "rows": {name: 10 ** (place % 9) * step for place, name in enumerate(names)},
            "row_bytes": {name: 192 * 10 ** (place % 9) * step for place, name in enumerate(names)},
            "bytes": {"ram": 9 * 10**9, "disk": step * 10**9, "device": 10**9},
            "bounds": {"ram": 10**10, "device": 10**9},
            "process": {"peak_bytes": 12 * 10**9},
        }
        membership = {
            name: {"admitted": 7 * step, "refused": 3, "expired": 0, "live": 9, "waiting": 2} for name in names[:20]
        }
        stage_s = {name: 1.0 + place * 0.3 for place, name in enumerate(STAGES)}
        lines.append(
            train_line(step, moved=moved, held=held, membership=membership, stage_s={**stage_s, "step": 20.0},
                       wire={"rows": 10**9, "dense": 10**8, "virtual_ids": 10**9, "positions": 4 * 10**9})
        )  # fmt: skip
        of_labels = {
            name: {"auc": auc, "logloss": 0.5, "ne": 0.9, "calibration": float("nan"), "rows": 50}
            for name, auc in labels.items()
        }
        lines.append(
            valid_line(step, None, best=False, labels=of_labels, undefined={"auc": f"label '{EVIL}': all labels are 1"},
                       calibration=float("nan"), unseen={name: place / 50 for place, name in enumerate(names)},
                       progressive={"auc": 0.6, "logloss": 0.66, "ne": 0.97, "calibration": 1.0})
        )  # fmt: skip
    begin = {**BEGIN, "processes": 4, "machine": {**BEGIN["machine"], "processor": EVIL}}
    end = {**END, "how": f"ModelError: {EVIL}", "notices": [f"table '{EVIL}' is large", "x" * 300]}
    run_file = RUN_FILE + f"\n# {EVIL}\n"
    return make_run(path, lines, run_file=run_file, history=(begin, end))

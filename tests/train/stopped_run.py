"""A small run with all that a checkpoint must hold, stopped on purpose; and all that is left of a run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sfctr.spec.errors import Terminated
from sfctr.spec.optim import Adam, Plateau, Schedule
from sfctr.spec.runfile import Checkpoints, Data, Model, RunFile, Train
from sfctr.spec.schema import Bag, Categorical, Dense, Schema, TimeColumn
from sfctr.spec.tables import Table, Tiers
from sfctr.train import train_run
from sfctr.train.checkpoint_files import newest_checkpoint
from sfctr.train.optim import make_dense_optimizer
from sfctr.train.run import build_run_model, open_store
from sfctr.train.trainer import Trainer

STEPS, BATCH = 24, 64
ROWS = 8 * BATCH - 10  # eight batches an epoch, the last one short
OF_THE_MACHINE = {"seconds", "rows_per_s", "stage_s", "moved", "held", "wire"}


def write_data() -> None:
    """train.parquet and valid.parquet."""
    rng = np.random.default_rng(3)
    at = np.cumsum(rng.integers(0, 3_600, ROWS))
    columns = {
        "click": rng.integers(0, 2, ROWS),
        "item": rng.zipf(1.3, ROWS) % 400,
        "shop": [f"s{v}" for v in rng.integers(0, 60, ROWS)],
        "tags": [rng.integers(0, 200, n).tolist() for n in rng.integers(0, 4, ROWS)],
        "price": rng.normal(3, 2, ROWS),
        "at": pd.Timestamp("2024-01-01") + pd.to_timedelta(at, "s"),
    }
    for name, seed in (("train", 0), ("valid", 1)):
        order = np.sort(np.random.default_rng(seed).choice(ROWS, ROWS if name == "train" else 100, replace=False))
        pq.write_table(pa.Table.from_pandas(pd.DataFrame(columns).iloc[order], preserve_index=False), f"{name}.parquet")


def run_of(**train) -> RunFile:
    """Shuffle, look-ahead, Adam, a schedule, admission, capacity, expiry by steps and by time, rows on disk."""
    options = {
        "epochs": 3,
        "batch_size": BATCH,
        "optimizer": Adam(lr=0.01),
        "schedule": Schedule(warmup_steps=3, decay="cosine"),
        "plateau": Plateau(factor=0.5),
        "evaluate_every": 5,
        "progressive": True,
        "window": 3,
        "torch_threads": 1,
        "device": "cpu",
    }
    return RunFile(
        data=Data(train=("train.parquet",), valid=("valid.parquet",), shuffle=True),
        schema=Schema(
            label="click",
            features=[
                Categorical("item"),
                Categorical("shop", keep_strings=True),
                Bag("tags"),
                Dense("price", standardize=True),
            ],
            time=TimeColumn("at"),
        ),
        tables=(
            Table("item", dim=4, capacity=120, expire_after_steps=9),
            Table("shop", dim=4, admit_after=2, expire_after="90h"),
            Table("tags", dim=8),
        ),
        model=Model(name="dcnv2", args={"hidden": [8], "dropout": 0.2}),
        train=Train(**{**options, **train}),
        tiers=Tiers(ram=20_000, disk="rows"),
        checkpoint=Checkpoints(every_steps=4, every_minutes=0),
    )


class StopAt:
    """Sends a signal, once, in the middle of the steps of these numbers."""

    def __init__(self, monkeypatch, *steps, number=signal.SIGTERM):
        self.steps = set(steps)
        backward = Trainer.backward

        def stopping(trainer, ready):
            if trainer.step + 1 in self.steps:
                self.steps.remove(trainer.step + 1)
                os.kill(os.getpid(), number)
            return backward(trainer, ready)

        monkeypatch.setattr(Trainer, "backward", stopping)


def trained(run, run_dir, **more) -> None:
    """Train in `run_dir` until the run ends, however often it is stopped."""
    resume = False
    while True:
        try:
            train_run(run, Path(run_dir), quiet=True, resume=resume, **more).close()
        except (Terminated, KeyboardInterrupt):
            resume = True
        else:
            return


def end_of(run_dir) -> dict[str, object]:
    """All that is left of a run and does not tell how long it took."""
    last = Path(run_dir) / "last"
    files = {
        str(p.relative_to(last)): p.read_bytes() for p in last.rglob("*") if p.suffix in (".parquet", ".safetensors")
    }
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    facts = json.loads((last / "manifest.json").read_text())
    end = newest_checkpoint(Path(run_dir) / "checkpoints")
    trainer = {name: part for name, part in end.trainer.items() if name not in ("stages", "log", "deltas")}
    trainer["loop"] = {name: value for name, value in trainer["loop"].items() if name != "seconds"}
    return {
        "files": files,
        "lines": [{name: value for name, value in line.items() if name not in OF_THE_MACHINE} for line in lines],
        "facts": facts["facts"],
        "membership": facts["membership"],
        "trainer": trainer,
        "tensors": {name: tensor.tolist() for name, tensor in end.trainer_tensors.items()},
        "optimizer": moments(end),
    }


def rows_on_disk(run_dir) -> int:
    """How many rows have gone there."""
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return sum(table.get("evicted", 0) for line in lines for table in line.get("moved", {}).values())


def moments(checkpoint) -> list[object]:
    run = checkpoint.run
    model = build_run_model(run)
    with open_store(msgspec.structs.replace(run, tiers=Tiers())) as store:
        checkpoint.load_store(store)
        optimizer = make_dense_optimizer(run.train.optimizer, [*model.parameters(), *store.dense_parameters()])
        checkpoint.load_optimizer(optimizer, model, store)
    state = optimizer.state_dict()["state"]
    return [{name: value.tolist() for name, value in sorted(fields.items())} for fields in state.values()]


def differences(one, other, path="") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [d for name in names for d in differences(one.get(name), other.get(name), f"{path}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for k in range(len(one)) for d in differences(one[k], other[k], f"{path}.{k}")]
    return [] if one == other else [f"{path}: {str(one)[:60]} is not {str(other)[:60]}"]

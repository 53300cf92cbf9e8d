"""Runs on several ranks for tests, and what they leave behind, laid beside a run in one process."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from processes import run_ranks
from stopped_run import end_of

from sfctr.spec.errors import Terminated
from sfctr.spec.runfile import Parallel, RunFile
from sfctr.spec.runfile_text import decode_run_file, render_run_file
from sfctr.train.fit import train_there
from sfctr.train.run import open_saved, open_store
from sfctr.train.trainer import Trainer

OWN_PACE = {"seconds", "rows_per_s", "stage_s", "moved", "held", "wire"}


def with_parallel(run: RunFile, **options) -> RunFile:
    return msgspec.structs.replace(run, parallel=Parallel(**options))


def train_in_rank(world, text: str, run_dir: str, directory: str, resume: bool, stop_at: int | None) -> str:
    """stop_at: the last rank is asked to end (SIGTERM) in the middle of this step."""
    os.chdir(directory)
    backward = Trainer.backward

    def stopping(trainer, ready):
        if trainer.step + 1 == stop_at and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return backward(trainer, ready)

    Trainer.backward = stopping
    try:
        train_there(decode_run_file(text, "run.toml"), Path(run_dir), world=world, quiet=True, resume=resume)
    except Terminated:
        return "terminated"
    return "ended"


def train_on(size: int, run: RunFile, run_dir: str, *, resume: bool = False, stop_at: int | None = None) -> None:
    arguments = (render_run_file(run), run_dir, str(Path.cwd()), resume, stop_at)
    found = run_ranks(size, train_in_rank, *arguments, timeout_s=120)
    assert found == ["ended" if stop_at is None else "terminated"] * size


def lines_of(run_dir: str) -> list[dict]:
    lines = [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in OWN_PACE} for line in lines]


def rows_of(run_dir: str) -> dict[tuple[str, bool, int], np.ndarray]:
    saved = open_saved(Path(run_dir), "last")
    found = {}
    with open_store(saved.run) as store:
        saved.load_rows(store)
        for table in store.tables:
            for block in store.rows(table):
                whole = np.concatenate([block.vectors, block.state], axis=1)
                for key, is_null, row in zip(block.keys.tolist(), block.nulls.tolist(), whole, strict=True):
                    found[table, is_null, key] = row
    return found


def assert_near(found, expected, path="", tolerance=2e-4):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for name, value in expected.items():
            assert_near(found[name], value, f"{path}.{name}", tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_near(one, other, f"{path}.{number}", tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), path
    else:
        assert found == expected, path


def assert_same_run(run_dir: str, alone: str) -> None:
    assert_near(lines_of(run_dir), lines_of(alone))
    ours, theirs = rows_of(run_dir), rows_of(alone)
    assert ours.keys() == theirs.keys()
    for key, row in theirs.items():
        np.testing.assert_allclose(ours[key], row, rtol=0, atol=2e-4, err_msg=str(key))
    assert end_of(run_dir)["membership"] == end_of(alone)["membership"]

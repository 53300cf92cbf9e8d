"""The rows of bench_processes.py: a synthetic stream of Criteo's shape, in files for us and in arrays for rivals.

Rivals need to know their ids ahead: each column's are numbered from 0 as they appear, and what is missing is one more.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from processes_rank import IDS, NUMBERS, read

from sfctr.data.synth import synth_criteo
from sfctr.spec.batch import Batch, Keys

MISSING = np.uint64(0x5EED)


def write_rows(folder: Path, num_rows: int) -> None:
    """The files that ours read."""
    synth_criteo(str(folder), num_rows, valid_fraction=0.0)


def write_arrays(folder: Path, batch: int, steps: int) -> None:
    """The same rows, as ours reads them, as processes_model.parts_in_memory takes them."""
    _, batches = read(folder, batch, steps)
    keys = [np.concatenate([_keys(one.keys[name]) for one in batches]) for name in IDS]
    columns = [np.unique(column, return_inverse=True) for column in keys]
    np.save(folder / "ids.npy", np.stack([places.reshape(-1) for _, places in columns], axis=1).astype(np.int64))
    np.save(folder / "numbers.npy", np.concatenate([_numbers(one) for one in batches]))
    np.save(folder / "labels.npy", np.concatenate([one.labels[:, 0] for one in batches]).astype(np.float32))
    (folder / "sizes.json").write_text(json.dumps([len(distinct) for distinct, _ in columns]))


def _keys(given: Keys) -> np.ndarray:
    return given.keys if given.nulls is None else np.where(given.nulls, MISSING, given.keys)


def _numbers(batch: Batch) -> np.ndarray:
    return np.stack([batch.dense[name].reshape(-1) for name in NUMBERS], axis=1).astype(np.float32)

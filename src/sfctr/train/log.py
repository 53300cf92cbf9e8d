"""metrics.jsonl: what a run was worth along the way, one JSON object a line, each line complete when it is there.

After a run has gone on from a checkpoint it reads as if the run had never stopped, but for what the machine did:
seconds, rows_per_s, stage_s and moved.

kind "train": a stretch of steps. step, epoch (from 1), rows trained so far, loss (mean over the stretch's rows), auc
(of its last rows' scores, before the step learnt from them), lr_factor, rows_per_s, seconds since the run began;
stage_s, seconds of each stage during the stretch (see stages.py), moved, by table what Store.table_counters counts, and
membership, where tables have such options: by table, the counts of Store.membership.
kind "valid": an evaluation. step, epoch, rows, the metrics of the validation part, "unseen" per feature, "best"
(whether the watched metric improved), lr_factor, rows_per_s, seconds; "progressive", if asked for, holds the metrics of
the training rows since the line before, each scored before it was learnt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfctr.spec.errors import writing
from sfctr.telemetry import notice

from .auc import ScoreRuns
from .metrics import F64
from .state import State

Line = dict[str, Any]


class Log:
    """Appends lines to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def state(self) -> State:
        """Where the file ends now; what is in it is on the disk itself."""
        with writing(self._path), self._path.open("a") as file:
            os.fsync(file.fileno())
            return State({"bytes": file.tell()})

    def restore(self, state: State) -> None:
        """Leave the lines that were there then, and no others."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < state.plain["bytes"]:
            notice(f"{self._path} has lost lines since the checkpoint; those that are there stay")
        elif size > state.plain["bytes"]:
            with writing(self._path):
                os.truncate(self._path, state.plain["bytes"])

    def write(self, line: Line) -> None:
        """Raises CapacityError where the disk is full."""
        text = json.dumps(line, allow_nan=False) + "\n"
        with writing(self._path), self._path.open("a") as file:
            file.write(text)


def read_log(path: Path) -> list[Line]:
    """The complete lines of a metrics.jsonl; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


_COLUMNS = ("scores", "labels", "weights")


class Stretch:
    """Mean loss, and AUC of the last rows, over the steps since the last line."""

    LAST_ROWS = 1 << 16

    def __init__(self) -> None:
        self._loss = self._rows = 0.0
        self._scores: list[tuple[F64, F64, F64]] = []

    def add(self, rows: int, loss: float, scores: F64, labels: F64, weights: F64) -> None:
        """A step: its rows, its loss, and scores, labels and weights of its rows for one label."""
        self._loss += loss * rows
        self._rows += rows
        self._scores.append((scores, labels, weights))
        while sum(len(scores) for scores, _, _ in self._scores[1:]) >= self.LAST_ROWS:
            del self._scores[0]

    def __bool__(self) -> bool:
        return self._rows > 0

    def state(self) -> State:
        plain = {"loss": self._loss, "rows": self._rows, "steps": [len(scores) for scores, _, _ in self._scores]}
        columns = [np.concatenate([np.empty(0), *(step[k] for step in self._scores)]) for k in range(3)]
        return State(plain, {name: torch.from_numpy(c) for name, c in zip(_COLUMNS, columns, strict=True)})

    def restore(self, state: State) -> None:
        self._loss, self._rows = state.plain["loss"], state.plain["rows"]
        bounds = np.cumsum(state.plain["steps"])[:-1]
        columns = [np.split(state.tensors[name].numpy(), bounds) for name in _COLUMNS]
        self._scores = list(zip(*columns, strict=True)) if state.plain["steps"] else []

    def line(self) -> Line:
        auc = self._auc()
        return {"loss": self._loss / self._rows, **({} if auc is None else {"auc": auc})}

    def _auc(self) -> float | None:
        scores, labels, weights = (np.concatenate(parts) for parts in zip(*self._scores, strict=True))
        if ((labels != 0) & (labels != 1)).any():
            return None
        with ScoreRuns() as runs:
            runs.add(scores, labels, weights)
            found = next(runs.areas(), None)
        return None if found is None or np.isnan(found.auc[0]) else float(found.auc[0])

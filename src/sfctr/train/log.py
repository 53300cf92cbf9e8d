"""metrics.jsonl: what a run was worth along the way, one JSON object a line, each line complete when it is there.

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
from pathlib import Path
from typing import Any

import numpy as np

from sfctr.spec.errors import writing

from .auc import ScoreRuns
from .metrics import F64

Line = dict[str, Any]


class Log:
    """Appends lines to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

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

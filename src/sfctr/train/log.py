"""metrics.jsonl: what a run was worth along the way, one JSON object a line, each line complete when it is there.

After a run has gone on from a checkpoint it reads as if the run had never stopped, but for what the machine did:
seconds, rows_per_s, stage_s, moved, held and wire.

kind "train": a stretch of steps. step, epoch (from 1), rows trained so far, loss (mean over the stretch's rows), auc
(of its last rows' scores, before the step learnt from them), lr_factor, rows_per_s, seconds since the run began;
stage_s, seconds of each stage during the stretch (see stages.py), moved, by table what Store.table_counters counts, and
membership, where tables have such options: by table, the counts of Store.membership. held: what Store.held tells at its
end, and process.peak_bytes, the most memory that the process has had. Where several processes train, all of these but
stage_s are sums over them, and there is wire: bytes that they sent to one another, by kind; and what rows, their keys
and gradients among it come to with virtual ids, and would come to position by position (virtual_ids, positions).
kind "valid": an evaluation. step, epoch, rows (those evaluated), the metrics of them, "unseen" per feature, "best"
(whether the watched metric improved), lr_factor, rows_per_s, seconds; "progressive", if asked for, holds the metrics of
the training rows since the line before, each scored before it was learnt.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfctr.spec.batch import I64
from sfctr.spec.errors import writing
from sfctr.spec.peers import ALONE, Peers
from sfctr.telemetry import notice

from .auc import ScoreRuns
from .merging import KIND, from_first, from_others, packed, unpacked
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
    """Mean loss, and AUC of the last rows, over the steps since the last line.

    Where several ranks train, each has a Stretch of its own part of every step, and `line(peers)` is that of all.
    """

    LAST_ROWS = 1 << 16

    def __init__(self) -> None:
        self._loss = self._rows = 0.0
        self._scores: list[tuple[F64, F64, F64]] = []

    def add(self, rows: int, loss: float, scores: F64, labels: F64, weights: F64) -> None:
        """A step: its rows, its loss, and scores, labels and weights of its rows for one label.

        With several ranks: the rows of all, what this rank's add to the loss, and scores of this rank's rows alone.
        """
        self._loss += loss * rows
        self._rows += rows
        self._scores.append((scores, labels, weights))
        del self._scores[: _first_recent(self._lengths, self.LAST_ROWS)]

    def __bool__(self) -> bool:
        return self._rows > 0

    def state(self) -> State:
        plain = {"loss": self._loss, "rows": self._rows, "steps": self._lengths}
        columns = [np.concatenate([np.empty(0), *(step[k] for step in self._scores)]) for k in range(3)]
        return State(plain, {name: torch.from_numpy(c) for name, c in zip(_COLUMNS, columns, strict=True)})

    def restore(self, state: State, rank: int = 0) -> None:
        """state: that of all ranks (see `of_all`). Its loss and scores go to the first rank."""
        if rank:
            self._rows = state.plain["rows"]
            return
        self._loss, self._rows = state.plain["loss"], state.plain["rows"]
        bounds = np.cumsum(state.plain["steps"])[:-1]
        columns = [np.split(state.tensors[name].numpy(), bounds) for name in _COLUMNS]
        self._scores = list(zip(*columns, strict=True)) if state.plain["steps"] else []

    def of_all(self, peers: Peers) -> Stretch:
        """On the first rank the stretch of all ranks' rows: what one process would have, but for the order in which
        losses are added up. Elsewhere one that knows the number of rows alone."""
        if peers.size == 1:
            return self
        told = [unpacked(each) for each in peers.gather(KIND, packed((self._loss, self._lengths)))]
        steps = max(len(lengths) for _, lengths in told)
        lengths = np.array([[0] * (steps - len(own)) + own for _, own in told], np.int64)  # [ranks, steps]
        lengths = lengths[:, _first_recent(lengths.sum(0), self.LAST_ROWS) :]
        recent = self._scores[-lengths.shape[1] :]
        mine = np.concatenate([np.zeros((3, 0)), *(np.stack(step, dtype=np.float64) for step in recent)], axis=1)
        others = from_others(peers, [mine.reshape(-1).view(np.uint8)] if mine.size else [])
        columns = [mine, *(piece.view(np.float64).reshape(3, -1) for piece in others)]
        whole = Stretch()
        whole._rows = self._rows
        if peers.rank == 0:
            whole._loss = math.fsum(loss for loss, _ in told)
            whole._scores = _joined_steps([c for c in columns if c.size], lengths)
        return whole

    @property
    def _lengths(self) -> list[int]:
        return [len(scores) for scores, _, _ in self._scores]

    def line(self, peers: Peers = ALONE) -> Line:
        """What is logged, the same on all ranks."""
        line: Line = from_first(peers, self.of_all(peers)._line)
        return line

    def _line(self) -> Line:
        auc = self._auc()
        return {"loss": self._loss / self._rows, **({} if auc is None else {"auc": auc})}

    def _auc(self) -> float | None:
        if not self._scores:
            return None
        scores, labels, weights = (np.concatenate(parts) for parts in zip(*self._scores, strict=True))
        if ((labels != 0) & (labels != 1)).any():
            return None
        with ScoreRuns() as runs:
            runs.add(scores, labels, weights)
            found = next(runs.areas(), None)
        return None if found is None or np.isnan(found.auc[0]) else float(found.auc[0])


def _first_recent(lengths: Sequence[int] | I64, rows: int) -> int:
    """The latest step from which on there are at least `rows` rows; the first where there are fewer."""
    from_here = np.cumsum(np.asarray(lengths, np.int64)[::-1])[::-1]
    return max(0, int((from_here >= rows).sum()) - 1)


def _joined_steps(columns: Sequence[F64], lengths: I64) -> list[tuple[F64, F64, F64]]:
    """Step by step the rows of all ranks. columns: [3, rows] of each rank that has any; lengths: [ranks, steps]."""
    with_rows = lengths[lengths.sum(1) > 0]
    parts = [np.split(c, np.cumsum(of_rank)[:-1], axis=1) for c, of_rank in zip(columns, with_rows, strict=True)]
    steps = [np.concatenate(of_step, axis=1) for of_step in zip(*parts, strict=True)]
    return [(scores, labels, weights) for scores, labels, weights in steps]

"""How a contender of bench_step.py is asked: a job is a line of JSON on stdin, its answer one on stdout.

Imports numpy and torch alone, since rivals run in environments of their own. Jobs:

  build   make all rows of a case, and its batches. Gives bytes of the process, and how many of them in huge pages
  check   train three steps; write what batch 0 pooled before, and how three steps changed it, to `file`
  time    with `threads`: a step to warm up, then at least `least` steps and `seconds`. Gives the seconds of each,
          and of the processor, over all threads; and of the parts of a step, where they are known
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from step_data import Case

SHOWN = slice(None, None, 16)
"""Rows of the batch that are compared."""


class Contender(Protocol):
    """An embedding step over the rows of a case."""

    def step(self, batch: int) -> None:
        """Train a batch, by its number: forward, backward with the case's gradients, update."""
        ...

    def pooled(self, batch: int) -> np.ndarray:
        """float32 [F, B, D] of a batch, which is not trained."""
        ...


Parts = Callable[[], Mapping[str, float]]


def serve(make: Callable[[Case], Contender], use_threads: Callable[[int], None], parts: Parts = dict) -> None:
    """parts: seconds of each part of steps, of all steps so far."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_flush_denormal(True)
    asked = _Asked(make, use_threads, parts)
    for line in sys.stdin:
        job = json.loads(line)
        out.write(json.dumps(getattr(asked, job["do"])(job)) + "\n")
        out.flush()


class _Asked:
    def __init__(self, make: Callable[[Case], Contender], use_threads: Callable[[int], None], parts: Parts) -> None:
        self._make, self._use_threads, self._parts = make, use_threads, parts
        self._contender: Contender | None = None
        self._num_batches = self._steps = 0

    def build(self, job: dict[str, Any]) -> dict[str, Any]:
        self._contender = None
        gc.collect()  # its rows go before the next ones come, also where it refers to itself
        case = Case(**{field.name: job[field.name] for field in fields(Case)})
        self._use_threads(1)
        self._contender, self._num_batches, self._steps = self._make(case), case.num_batches, 0
        return memory()

    def check(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._contender is not None
        before = self._contender.pooled(0)[:, SHOWN].copy()
        for batch in (0, 1, 0):
            self._contender.step(batch)
        after = self._contender.pooled(0)[:, SHOWN]
        np.savez(job["file"], before=before, change=after - before)
        return {}

    def time(self, job: dict[str, Any]) -> dict[str, Any]:
        self._use_threads(job["threads"])
        self._step()
        before = self._parts()
        step_s: list[float] = []
        processor_s: list[float] = []
        while len(step_s) < job["least"] or sum(step_s) < job["seconds"]:
            began, processor = time.perf_counter(), time.process_time()
            self._step()
            step_s.append(time.perf_counter() - began)
            processor_s.append(time.process_time() - processor)
        parts = {name: (s - before.get(name, 0.0)) / len(step_s) for name, s in self._parts().items()}
        return {"step_s": step_s, "processor_s": processor_s, "parts_s": parts}

    def _step(self) -> None:
        assert self._contender is not None
        self._contender.step(self._steps % self._num_batches)
        self._steps += 1


def memory() -> dict[str, int]:
    """bytes, and huge_bytes: those in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:] if line.endswith("kB")}
    return {"bytes": found["Anonymous"], "huge_bytes": found["AnonHugePages"]}

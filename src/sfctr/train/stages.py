"""Where a run's time goes: seconds of its stages, rows that moved, and which stage bound it.

  training's thread   wait (for the next batch), bring (rows of other ranks), features, forward, backward, send
                      (gradients to other ranks), sum (of the dense part's gradients), update; "step" is all of a step
                      but wait and bring
  ahead of it         read, unique, share (keys with other ranks) | plan, write_back (evictions that waited for the
                      disk; not in plan) | fetch
Each `|` separates threads. With a device tier plan, write_back, fetch and lift (to the device) share one; without one,
what is fetched before rows spill, which is next to nothing, is the planner's. With window 0 all is one thread, and
there is no wait. In bring, send, sum and share a rank also waits for slower ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sfctr.telemetry import Recorder

from .state import State

STAGES = (
    *("read", "unique", "share", "plan", "write_back", "fetch", "lift"),
    *("wait", "bring", "features", "forward", "backward", "send", "sum", "update", "step"),
)

Seconds = Mapping[str, float]
Counters = Mapping[str, Mapping[str, int]]

STAGES_AHEAD = ("read", "unique", "share", "plan", "write_back", "fetch", "lift")
_IS_WAITING = 0.1
"""Share of the time that training waits from which on what it waits for bounds the run."""

NAMES = {
    "rows": "reading and updating rows",
    "model": "the dense model",
    "ranks": "rows and gradients between ranks",
    "other": "metrics and the loop itself",
    "wait": "waiting for the batch",
    "read": "reading",
    "unique": "finding unique ids",
    "share": "sharing keys with other ranks",
    "plan": "planning where rows go",
    "write_back": "writing rows back to disk",
    "fetch": "fetch from disk",
    "lift": "moving rows to the device",
}
"""Parts of a step (see parts_of_training) and stages ahead of it, in words."""

_REMEDIES = {
    "rows": "raise train.threads",
    "model": 'raise train.torch_threads, set train.autocast = "bf16", or make it smaller',
    "ranks": 'set parallel.wire = "bf16", or try the other parallel.sync',
    "other": "raise train.batch_size",
    "read": "raise data.threads",
    "unique": "raise train.threads",
    "share": "use a faster network, or fewer processes",
    "plan": "raise train.threads or tiers.ram",
    "write_back": "raise tiers.ram",
    "fetch": "raise tiers.ram or train.window",
    "lift": "raise tiers.device or train.window",
}


def stage_seconds(spans: Seconds) -> dict[str, float]:
    """Seconds of the stages that took any, by spans of a Recorder."""
    found = {name: spans.get(name, 0.0) for name in STAGES}
    found["plan"] = max(0.0, found["plan"] - found["write_back"])
    return {name: seconds for name, seconds in found.items() if seconds > 0}


@dataclass(frozen=True)
class Bound:
    """What bound a run: a part of a step's time or a stage ahead of it, by its name; its share of the steps' seconds
    (above 1 for a stage that also worked ahead while no step ran); what it is, and what to do about it, in words."""

    part: str
    share: float
    what: str
    remedy: str

    def __str__(self) -> str:
        share = f"{100 * self.share:.0f} % of the step" if self.share <= 1 else "longer than the steps took"
        return f"{self.what}: {share}; {self.remedy}"


def parts_of_step(stage_s: Seconds) -> dict[str, float]:
    """Seconds of training's own thread but for waiting: rows (features, update), model (forward, backward), ranks
    (bring, send, sum), and other, the rest of step and bring. The step in which a line is written is not in the line's
    "step" yet, while its parts are: a rest below zero is none."""
    stages = dict.fromkeys(STAGES, 0.0) | dict(stage_s)
    parts = {
        "rows": stages["features"] + stages["update"],
        "model": stages["forward"] + stages["backward"],
        "ranks": stages["bring"] + stages["send"] + stages["sum"],
    }
    return {**parts, "other": max(0.0, stages["step"] + stages["bring"] - sum(parts.values()))}


def parts_of_training(stage_s: Seconds, window: int) -> dict[str, float]:
    """Seconds of training's own thread, by its parts: waits for batches, or with window 0 what makes them ready."""
    names = ("wait",) if window else STAGES_AHEAD
    return {**parts_of_step(stage_s), **{name: stage_s.get(name, 0.0) for name in names}}


def threads_ahead(stage_s: Seconds) -> dict[str, dict[str, float]]:
    """By thread ahead of training, seconds of its stages, zeros too; see lookahead/pipeline.py for who does what."""
    threads = {"reading ahead": ("read", "unique", "share"), "placing ahead": ("plan", "write_back", "fetch", "lift")}
    if not stage_s.get("lift", 0.0):
        threads |= {"placing ahead": ("plan", "write_back"), "fetching ahead": ("fetch",)}
    return {thread: {name: stage_s.get(name, 0.0) for name in names} for thread, names in threads.items()}


def bound(stage_s: Seconds, *, window: int) -> Bound | None:
    """The stage that bound a run. None without a step.

    stage_s: as stage_seconds() gives them.

    Where training waits, the thread ahead of it that worked longest is the slowest of a chain, and its longest stage is
    named; else the longest part of training's own thread is. A stage's share is its seconds over those of the steps.
    """
    if stage_s.get("step", 0.0) + stage_s.get("bring", 0.0) <= 0:
        return None
    parts = parts_of_training(stage_s, window)
    total, wait = sum(parts.values()), parts.pop("wait", 0.0)
    if wait / total >= _IS_WAITING:
        parts = max(threads_ahead(stage_s).values(), key=lambda thread: sum(thread.values()))
    longest = max(parts, key=lambda name: parts[name])
    remedy = _REMEDIES[longest]
    if window == 0 and longest in STAGES_AHEAD:
        remedy = f"set train.window, so that it is done ahead of training, or {remedy}"
    return Bound(longest, parts[longest] / total, NAMES[longest], remedy)


class Stages:
    """Differences of a recorder's spans and of a store's counters between one line of metrics.jsonl and the next."""

    def __init__(self, recorder: Recorder, counters: Callable[[], Counters]) -> None:
        self._recorder, self._counters = recorder, counters
        self._seconds, self._counts = recorder.seconds(), counters()

    def line(self) -> dict[str, Any]:
        """stage_s: seconds of each stage, and moved: counters of each table, since the last call; zeros left out."""
        now = self._recorder.seconds(), self._counters()
        spans, moved = self._since(*now)
        self._seconds, self._counts = now
        kept = {table: {name: n for name, n in own.items() if n} for table, own in moved.items()}
        return {
            "stage_s": {name: round(value, 6) for name, value in stage_seconds(spans).items()},
            "moved": {table: own for table, own in kept.items() if own},
        }

    def state(self) -> State:
        """What the next line would tell so far."""
        spans, moved = self._since(self._recorder.seconds(), self._counters())
        return State({"seconds": spans, "moved": moved})

    def restore(self, state: State) -> None:
        """Have the next line tell that too."""
        spans, moved = self._since(state.plain["seconds"], state.plain["moved"])
        self._seconds = {name: -value for name, value in spans.items()}
        self._counts = {table: {name: -n for name, n in own.items()} for table, own in moved.items()}

    def _since(self, seconds: Seconds, counts: Counters) -> tuple[dict[str, float], dict[str, dict[str, int]]]:
        spans = {name: total - self._seconds.get(name, 0.0) for name, total in seconds.items()}
        moved = {
            table: {name: n - self._counts.get(table, {}).get(name, 0) for name, n in own.items()}
            for table, own in counts.items()
        }
        return spans, moved

"""The one table of all benchmarks, as Markdown and as data: pure functions of lines, in the order of targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from measures import TARGETS, Measure

HEAD = (
    "| what | case | rival | ours | theirs | figure | to reach | met |",
    "|---|---|---|---:|---:|---:|---:|---|",
)


def complete(lines: Iterable[Measure], failed: Mapping[str, str]) -> list[Measure]:
    """Lines in the order of targets, with one that says so for each target that has none. failed: target -> why."""
    by_target: dict[str, list[Measure]] = {target: [] for target in TARGETS}
    for line in lines:
        by_target[line.target].append(line)
    for target, own in by_target.items():
        if target in failed:
            own.append(Measure(target=target, case="", not_run=failed[target]))
        elif not own:
            own.append(Measure(target=target, case="", not_run="not measured"))
    return [line for own in by_target.values() for line in own]


def rows(lines: Sequence[Measure]) -> list[str]:
    """The table, a target's name on the first of its lines."""
    found, last = [*HEAD], ""
    for line in lines:
        what = "" if line.target == last else TARGETS[line.target].what
        last = line.target
        found.append(f"| {what} | {line.case} | {line.rival} | {' | '.join(_figures(line))} |")
    return found


def _figures(line: Measure) -> tuple[str, str, str, str, str]:
    """ours, theirs, figure, to reach, met."""
    if line.not_run or line.figure is None:
        return "", "", f"not run: {line.not_run}" if line.not_run != "not measured" else "not measured", "", ""
    unit = f" {line.unit}" if line.unit else ""
    ours, theirs = ("" if value is None else f"{number(value)}{unit}" for value in (line.ours, line.theirs))
    sign = "<=" if line.at_most else ">="
    reach = "" if line.reach is None else f"{sign} {number(line.reach)}"
    own_unit = line.figure_unit if line.figure_unit.startswith(("x", "%")) else f" {line.figure_unit}"
    return ours, theirs, f"**{number(line.figure)}{own_unit}**", reach, _MET[line.is_met]


_MET = {None: "", True: "yes", False: "no"}


def number(value: float) -> str:
    """Three figures, and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def sums(lines: Sequence[Measure]) -> list[str]:
    """How many lines are met, and which that must be are not."""
    judged = [line for line in lines if line.is_met is not None]
    must = [line for line in judged if TARGETS[line.target].must]
    without = dict.fromkeys(TARGETS[line.target].what for line in lines if line.figure is None)
    text = [
        f"{sum(line.is_met is True for line in judged)} of {len(judged)} lines reach what they should;"
        f" of those that must, {sum(line.is_met is True for line in must)} of {len(must)}."
    ]
    return [*text, f"With lines that have no figure: {'; '.join(without)}."] if without else text


def page(lines: Sequence[Measure], facts: Mapping[str, object]) -> str:
    head = ["# Against rivals, and against the machine", "", *(f"{name}: {value}  " for name, value in facts.items())]
    said = [f"- {target.what}: {target.reach}{'' if target.must else ' (or a reason)'}" for target in TARGETS.values()]
    return "\n".join([*head, "", *rows(lines), "", *sums(lines), "", "To reach:", "", *said]) + "\n"


def data(lines: Sequence[Measure], facts: Mapping[str, object]) -> dict[str, Any]:
    return {**facts, "lines": [asdict(line) | {"met": line.is_met} for line in lines]}

"""What the quality benchmark found, as rows and checks: printed, and kept in results/quality.json and quality.md.

Each part is kept with the date, machine and commit that it was measured on, so that a run of some parts replaces those
parts alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from origin import origin

HEAD = "| what | valid AUC | test AUC | least - most | log loss | epochs | seconds |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians over seeds of one model on one part; least and most are the test AUC's range over them.

    epochs, seconds: of one training and its test.
    """

    what: str
    valid_auc: float
    auc: float
    least: float
    most: float
    logloss: float
    epochs: float
    seconds: float

    def line(self) -> str:
        figures = f"{self.valid_auc:.4f} | {self.auc:.4f} | {self.least:.4f} - {self.most:.4f} | {self.logloss:.4f}"
        return f"| {self.what} | {figures} | {self.epochs:g} | {self.seconds:.0f} |"


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was asked for, what was found, and whether that is enough; None: could not be judged."""

    needed: str
    found: str
    passed: bool | None

    def line(self) -> str:
        verdict = {True: "yes", False: "NO", None: "not judged"}[self.passed]
        return f"- {verdict}: {self.needed} ({self.found})"


@dataclass(kw_only=True)
class Part:
    """One data set: rows, checks, and notes such as a rival that could not be run."""

    title: str
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def markdown(self) -> str:
        table = [HEAD, *(row.line() for row in self.rows)] if self.rows else []
        blocks = [table, [check.line() for check in self.checks], [f"- {note}" for note in self.notes]]
        return "\n\n".join([f"## {self.title}", *("\n".join(block) for block in blocks if block)])


def kept(part: Part) -> dict[str, Any]:
    """A part as results/quality.json holds it."""
    return {**asdict(part), **origin(torch=torch.__version__)}


def write(out: Path, parts: Mapping[str, Part]) -> None:
    """Put `parts` into out/quality.json, beside those of earlier runs, and render all of them as out/quality.md."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "quality.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results |= {name: kept(part) for name, part in parts.items()}
    path.write_text(json.dumps(results, indent=1) + "\n")
    (out / "quality.md").write_text(_page(results))


def _page(results: Mapping[str, Any]) -> str:
    sections = [f"{_part(entry).markdown()}\n\n{_origin(entry)}" for entry in results.values()]
    origin = "Made by `benchmarks/bench_quality.py`, whose first lines say how. Medians over seeds."
    return "\n\n".join(["# Quality on real data", origin, *sections]) + "\n"


def _part(entry: Mapping[str, Any]) -> Part:
    rows, checks = ([kind(**one) for one in entry[name]] for kind, name in ((Row, "rows"), (Check, "checks")))
    return Part(title=entry["title"], rows=rows, checks=checks, notes=entry["notes"], seconds=entry["seconds"])


def _origin(entry: Mapping[str, Any]) -> str:
    return f"{entry['date']}, commit {entry['commit']}, {entry['machine']}; {entry['seconds'] / 60:.1f} minutes."

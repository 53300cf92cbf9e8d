"""A run as its directory tells it: the lines of its files, and nothing that is not in them.

What a run of an older version did not write, or what was lost with a process that was killed, is missing here, too: an
empty mapping, an empty list, or None. Numbers that are no numbers (null, NaN, infinity) are None to whoever asks by
`number`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sfctr.spec.errors import ConfigError, SfctrError
from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file
from sfctr.train.log import Line
from sfctr.train.run_dir import HISTORY_FILE, METRICS_FILE, RUN_FILE


@dataclass(frozen=True)
class Record:
    """What a run left.

    name: of its directory. run: its run file, or None where that is missing or of another version; run_text: the file
    as it is. lines: of metrics.jsonl. history: of history.jsonl. unreadable: how many lines of history.jsonl are none.
    """

    name: str
    run: RunFile | None
    run_text: str
    lines: Sequence[Line]
    history: Sequence[Line]
    unreadable: int = 0

    @cached_property
    def train(self) -> list[Line]:
        """The lines on stretches of steps."""
        return [line for line in self.lines if line.get("kind") == "train"]

    @cached_property
    def valid(self) -> list[Line]:
        """The lines on evaluations of held-out rows."""
        return [line for line in self.lines if line.get("kind") == "valid" and "best" in line]

    @cached_property
    def progressive(self) -> list[Line]:
        """The lines that have metrics of training rows from before they were learnt."""
        return [line for line in self.lines if line.get("kind") == "valid" and line.get("progressive")]

    def rows_at(self, line: Line) -> float:
        """Rows trained until a line. One on an evaluation counts the rows it evaluated; a line on training is written
        before it, at the same step."""
        if line.get("kind") == "train":
            return number(line.get("rows")) or 0.0
        step = line.get("step", 0)
        place = bisect_right(self.train, step, key=lambda each: each.get("step", 0))
        if place == 0:
            return 0.0
        return self.rows_at(self.train[place - 1])

    @property
    def last(self) -> Line:
        """The last line; an empty one where there is none."""
        return self.lines[-1] if self.lines else {}

    @property
    def begun(self) -> Line:
        """The last time training began; an empty line where that is not told."""
        return next((line for line in reversed(self.history) if line.get("kind") == "begin"), {})

    @property
    def ended(self) -> Line:
        """How that ended; an empty line where it has not, or was killed."""
        last = self.history[-1] if self.history else {}
        return last if last.get("kind") == "end" else {}

    @cached_property
    def stage_s(self) -> Counter[str]:
        """Seconds of each stage over the whole run."""
        return _total(line.get("stage_s", {}) for line in self.train)

    @cached_property
    def moved(self) -> dict[str, Counter[str]]:
        """By table, what moved over the whole run."""
        found: dict[str, Counter[str]] = {}
        for line in self.train:
            for table, counts in line.get("moved", {}).items():
                found.setdefault(table, Counter()).update(counts)
        return found

    @cached_property
    def wire(self) -> Counter[str]:
        """Bytes that processes sent to one another over the whole run, by kind."""
        return _total(line.get("wire", {}) for line in self.train)

    @property
    def held(self) -> Mapping[str, Mapping[str, int]]:
        """What the rows took at the end."""
        return next((line["held"] for line in reversed(self.train) if line.get("held")), {})

    @cached_property
    def beside_s(self) -> Counter[str]:
        """Seconds of evaluating and saving, of all times that training ended here."""
        return _total(line.get("beside_s", {}) for line in self.history)

    @property
    def notices(self) -> list[str]:
        """Those of all times that training went on here, each once."""
        found = list(dict.fromkeys(text for line in self.history for text in line.get("notices", ())))
        if self.unreadable:
            lines = "1 line is" if self.unreadable == 1 else f"{self.unreadable} lines are"
            found.append(f"{HISTORY_FILE}: {lines} not readable and left out; a process was killed while it wrote")
        return found


def read_record(run_dir: Path) -> Record:
    """Raises ConfigError where the directory holds no run, and where one of its files is none of ours."""
    if not any((run_dir / name).exists() for name in (RUN_FILE, METRICS_FILE)):
        what = "holds no run" if run_dir.is_dir() else "is no directory"
        raise ConfigError(f"{run_dir} {what}; give the directory that sfctr train or fit wrote")
    file = run_dir / RUN_FILE
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    history = [entry for _, entry in _entries(run_dir / HISTORY_FILE)]
    known = [entry for entry in history if entry is not None]
    return Record(
        name=run_dir.resolve().name,
        run=_decoded(text, str(file)),
        run_text=text,
        lines=_lines(run_dir / METRICS_FILE),
        history=known,
        unreadable=len(history) - len(known),
    )


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _decoded(text: str, where: str) -> RunFile | None:
    try:
        return decode_run_file(text, where) if text else None
    except SfctrError:
        return None


def _lines(path: Path) -> list[Line]:
    """Those of a file that must have no others."""
    found = []
    for place, entry in _entries(path):
        if entry is None:
            raise ConfigError(f"{path}, line {place}, is no JSON object; it was damaged or is no file of a run")
        found.append(entry)
    return found


def _entries(path: Path) -> Iterator[tuple[int, Line | None]]:
    """Each line that is complete by its place, None where it is no JSON object; the last may be being written."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    for place, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        yield place, entry if isinstance(entry, dict) else None


def _total(counts: Iterable[Mapping[str, float]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total

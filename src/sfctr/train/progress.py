"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere, nothing when quiet.

It writes to stderr, and never more often than `every_s`, so that drawing costs nothing beside training.
"""

from __future__ import annotations

from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 10.0
LIVE_EVERY_S = 0.1


class ProgressLine:
    """Rows done of `total_rows` (None: not known), rows a second, loss, AUC and time left. Close it when done."""

    def __init__(self, total_rows: int | None, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self._live = self._console.is_terminal and not quiet
        self._total, self._rows, self._before = total_rows, 0, 0
        self._every_s = LIVE_EVERY_S if self._live else PLAIN_EVERY_S
        self._began = self._shown = monotonic()
        self._numbers = ""
        self._bar: Progress | None = None
        if self._live:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task("training", total=total_rows, numbers="")
            self._bar.start()

    def start_from(self, rows: int) -> None:
        """So many rows were trained before: they are done, and count for no rate."""
        self._rows = self._before = rows
        if self._bar is not None:
            self._bar.update(self._task, completed=rows)

    def advance(self, rows: int, loss: float, auc: float | None) -> None:
        """Note that `rows` more were trained; show it if it is time to."""
        self._rows += rows
        now = monotonic()
        if now - self._shown < self._every_s:
            return
        self._shown = now
        rate = (self._rows - self._before) / max(now - self._began, 1e-9)
        numbers = f"{rate:,.0f} rows/s  loss {loss:.4f}" + ("" if auc is None else f"  auc {auc:.4f}")
        if self._bar is not None:
            self._bar.update(self._task, completed=self._rows, numbers=numbers)
        else:
            self._console.print(self._plain(numbers, rate), soft_wrap=True)

    def _plain(self, numbers: str, rate: float) -> str:
        if self._total is None:
            return f"{self._rows:,} rows  {numbers}"
        left = max(0, self._total - self._rows) / rate
        minutes, seconds = divmod(round(left), 60)
        return f"{self._rows:,} of {self._total:,} rows  {numbers}  {minutes}:{seconds:02} left"

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

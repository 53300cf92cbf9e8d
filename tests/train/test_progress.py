"""What a person sees: plain lines where there is no terminal, a live line where there is one, nothing when quiet."""

from __future__ import annotations

import io

from rich.console import Console

from sfctr.train import progress as module
from sfctr.train.progress import ProgressLine


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False)


def clock(monkeypatch, *times):
    ticks = iter(times)
    monkeypatch.setattr(module, "monotonic", lambda: next(ticks))


def test_plain_lines_say_rows_rate_loss_auc_and_time_left(monkeypatch):
    clock(monkeypatch, 0.0, 5.0, 20.0)
    screen = console(terminal=False)
    line = ProgressLine(10_000, console=screen)
    line.advance(1000, 0.7, None)
    line.advance(3000, 0.61234, 0.75)
    line.close()
    assert screen.file.getvalue() == "4,000 of 10,000 rows  200 rows/s  loss 0.6123  auc 0.7500  0:30 left\n"


def test_rows_of_a_run_that_goes_on_are_done_and_count_for_no_rate(monkeypatch):
    clock(monkeypatch, 0.0, 20.0)
    screen = console(terminal=False)
    line = ProgressLine(10_000, console=screen)
    line.start_from(5000)
    line.advance(1000, 0.5, None)
    assert screen.file.getvalue() == "6,000 of 10,000 rows  50 rows/s  loss 0.5000  1:20 left\n"


def test_an_unknown_length_has_no_time_left(monkeypatch):
    clock(monkeypatch, 0.0, 10.0)
    screen = console(terminal=False)
    ProgressLine(None, console=screen).advance(500, 0.5, None)
    assert screen.file.getvalue() == "500 rows  50 rows/s  loss 0.5000\n"


def test_a_terminal_gets_a_live_line_that_is_gone_at_the_end(monkeypatch):
    screen = console(terminal=True)
    line = ProgressLine(100, console=screen)
    monkeypatch.setattr(line, "_every_s", 0.0)
    line.advance(50, 0.5, 0.6)
    line.say("step 1  auc 0.60000")
    line.close()
    shown = screen.file.getvalue()
    assert "training" in shown
    assert "loss 0.5000  auc 0.6000" in shown
    assert "step 1  auc 0.60000" in shown


def test_text_is_shown_as_it_is():
    screen = console(terminal=False)
    ProgressLine(None, console=screen).say("table '[bold]x[/bold]'")
    assert screen.file.getvalue() == "table '[bold]x[/bold]'\n"


def test_quiet_says_nothing(capsys):
    line = ProgressLine(100, quiet=True)
    line.advance(50, 0.5, 0.6)
    line.say("done")
    line.close()
    assert capsys.readouterr() == ("", "")

"""`sfctr verify`: does this run, on these data, come to what a simple one would?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from .run_file import RUN_FILE, SET, read_run_file
from .text import table_text

if TYPE_CHECKING:
    from sfctr.verify import Finding

HEADING = ("variant", "steps", "predictions", "rows", "result")


def verify(
    run_file: Annotated[Path, RUN_FILE],
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps to train in each form of the run.")] = 20,
    set_: Annotated[list[str], SET] = [],  # noqa: B006  typer copies it
    quick: Annotated[bool, typer.Option("--quick", help="Only the most telling forms.")] = False,
    processes: Annotated[
        int, typer.Option("--processes", metavar="P", help="Train it on so many processes of this machine, too.")
    ] = 1,
) -> None:
    """Show that a run computes what a simple one would.

    Trains the first steps in many forms (windows, threads, tiers) and compares every bit, then against plain PyTorch;
    with --processes on several processes, too, within what rounding needs.
    Exit code 1: something differs.
    """
    from sfctr.verify import verify_run

    run = read_run_file(run_file, set_)
    findings: list[Finding] = []
    console = Console(stderr=True)
    with console.status("verify") as status:
        begins = (lambda variant: status.update(f"training: {variant}")) if console.is_terminal else (lambda _: None)
        with closing(verify_run(run, steps=steps, quick=quick, processes=processes, begins=begins)) as found:
            findings.extend(found)
    show(findings, Console())
    if not all(finding.holds for finding in findings):
        raise typer.Exit(1)


def show(findings: Sequence[Finding], console: Console) -> None:
    """The findings as a table, what differs, and a verdict; plain text unless `console` is a terminal."""
    rows = [(f.variant, f.steps, f.predictions, f.rows, f.result) for f in findings]
    if console.is_terminal:
        table = Table(*HEADING)
        for finding, row in zip(findings, rows, strict=True):
            cells = [f"{cell:,}" if isinstance(cell, int) else cell for cell in row]
            table.add_row(*cells, style="" if finding.holds else "red")
        console.print(table)
    else:
        print(table_text([HEADING, *rows]), file=console.file)
    for finding in findings:
        if finding.difference is not None:
            print(f"\n{finding.variant}: {finding.difference}", file=console.file)
    print(f"\n{verdict(findings)}", file=console.file)


def verdict(findings: Sequence[Finding]) -> str:
    """One line."""
    remedies = [finding.remedy for finding in findings if finding.remedy]
    if remedies:
        return f"the numerics of this run are not repeatable, so its forms cannot be compared: {remedies[0]}"
    odd = [finding.variant for finding in findings if not finding.holds]
    if odd:
        return f"{len(odd)} of {len(findings)} forms of this run differ: {'; '.join(odd)}"
    return f"all {len(findings)} forms of this run agree"

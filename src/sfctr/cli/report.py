"""`sfctr report`: what happened in runs, as pages with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfctr.spec.errors import ConfigError, SfctrError
from sfctr.telemetry import notice


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the page on several runs goes; by default comparison.html."),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Write event files for TensorBoard there, and no page."),
    ] = None,
) -> None:
    """Show what happened in runs.

    Of one: how good it got, how fast it was and what bound it, what its tiers and tables took; written anew to
    RUN/report.html. Of several: one page with the curves of all and how their run files differ. A page is one file,
    without scripts, that needs nothing beside it; runs that have not ended are shown as far as they are.
    """
    from sfctr.report import write_comparison, write_report, write_tensorboard

    if tensorboard is not None:
        if out is not None:
            raise ConfigError("--out is of a page, and --tensorboard writes none; give one of them")
        print(*write_tensorboard(runs, tensorboard), sep="\n")
    elif len(runs) > 1:
        print(write_comparison(runs, out or Path("comparison.html")))
    elif out is not None:
        raise ConfigError("--out is of the page on several runs; that on one is RUN/report.html")
    else:
        print(write_report(runs[0]))


def report_if_possible(run_dir: Path) -> Path | None:
    """The report of a run that has just ended. Whatever goes wrong with it is said, and no more: the run is whole."""
    from sfctr.train.run_dir import RUN_FILE

    if not (run_dir / RUN_FILE).exists():
        return None
    try:
        from sfctr.report import write_report

        return write_report(run_dir)
    except (Exception, KeyboardInterrupt) as error:
        why = str(error) if isinstance(error, SfctrError) else f"{type(error).__name__}: {error}"
        notice(f"the report of {run_dir} could not be written: {why}; sfctr report {run_dir} tries again")
        return None

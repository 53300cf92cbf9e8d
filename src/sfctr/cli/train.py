"""`sfctr train`: from a run file to a run directory, and a summary of what came out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sfctr.spec.errors import ConfigError, SfctrError, Terminated

from .metrics import metrics_text
from .report import report_if_possible
from .run_file import RUN_FILE, SET, read_run_file
from .world import joined


def train(
    run_file: Annotated[Path, RUN_FILE],
    set_: Annotated[list[str], SET] = [],  # noqa: B006  typer copies it
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Where to keep the run; by default runs/<run file's name>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR holds.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in DIR from its newest checkpoint, if it has one.")
    ] = False,
    restore: Annotated[
        Path | None,
        typer.Option(
            "--restore",
            metavar="CHECKPOINT",
            help="Begin from rows, model and moments of another run's, where they fit.",
        ),
    ] = None,
    allow: Annotated[
        list[str],
        typer.Option(
            "--allow", metavar="NAME", help="What may differ from it: tables.item, model.*, train.optimizer ..."
        ),
    ] = [],  # noqa: B006  typer copies it
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write what every thread did when, for ui.perfetto.dev."),
    ] = None,
) -> None:
    """Train what a run file says.

    Started by 'sfctr launch' or torchrun it is one of the processes that train the run together.

    Shows progress and evaluations, keeps the best and the last model, and prints what they are worth. A run that was
    stopped or killed goes on with --resume, as if it had not been.
    """
    from sfctr.train.fit import train_there
    from sfctr.train.run import open_saved
    from sfctr.train.run_dir import CHECKPOINTS, began_here

    options = read_run_file(run_file, set_)
    run_dir = run or Path("runs") / run_file.stem
    if resume and overwrite:
        raise ConfigError("--resume goes on with the run that --overwrite replaces; give one of them")
    if allow and restore is None:
        raise ConfigError("--allow names what may differ from the checkpoint that --restore names; give that, too")
    more: dict[str, Any] = {"restore": restore, "allow": tuple(allow), "trace": trace}
    with joined(timeout_s=options.parallel.timeout_s) as others:
        is_first = others is None or others.world.rank == 0
        job = "" if others is None else others.job
        if is_first and not (resume or overwrite or began_here(run_dir, job)):
            check_place(run_dir)
        if others is not None:
            more |= {"world": others.world, "job": job}
        told_before = _told_in(run_dir)
        try:
            train_there(options, run_dir, resume=resume, overwrite=overwrite, **more)
        except (KeyboardInterrupt, Terminated) as stopped:
            if others is None:  # else a launcher may wait for it, to begin anew
                report_if_possible(run_dir)
            kept = [f"what was learnt until then is in {run_dir}/last/"] if (run_dir / "last").exists() else []
            can_go_on = any((run_dir / CHECKPOINTS).glob("step-*"))
            raise type(stopped)(*kept, *(["--resume goes on with it"] if can_go_on else [])) from None
        except SfctrError:
            if others is None and _told_in(run_dir) != told_before:  # what is refused has trained nothing
                report_if_possible(run_dir)
            raise
        if is_first:
            print(_summary(open_saved(run_dir).facts, options.train.watch, run_dir, report_if_possible(run_dir)))


def _told_in(run_dir: Path) -> tuple[int, int] | None:
    """Another value once training has begun there: what its history has come to, None without one."""
    from sfctr.train.run_dir import HISTORY_FILE

    if not (run_dir / HISTORY_FILE).is_file():
        return None
    found = (run_dir / HISTORY_FILE).stat()
    return found.st_size, found.st_mtime_ns


def check_place(run_dir: Path) -> None:
    """Refuse, in words of the command line, a directory where no new run can be."""
    from sfctr.train.run_dir import RUN_FILE

    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(
            f"{run_dir} is a file, and a directory is needed to keep the run in; choose another --run DIR"
        )
    if (run_dir / RUN_FILE).exists():
        raise ConfigError(
            f"{run_dir} already holds a run; add --resume to go on with it or --overwrite to replace it, or choose"
            " another --run DIR"
        )


def _summary(facts: Mapping[str, Any], watch: str, run_dir: Path, report: Path | None) -> str:
    """What the kept model is worth, and where everything is."""
    files = f"files: {run_dir}/run.toml, {run_dir}/metrics.jsonl, {run_dir}/last/"
    files += "" if report is None else f", {report}"
    if "evaluation" not in facts:
        return f"nothing was held out, so nothing was measured (data.valid_fraction = 0.1 holds out a tenth)\n\n{files}"
    found = facts["evaluation"]
    has_best = (run_dir / "best").exists()
    where = f"validation part, model of step {found['step']:,}" + (f" (the best by {watch})" if has_best else "")
    return f"{where}\n\n{metrics_text(found)}\n\n{files}" + (f", {run_dir}/best/" if has_best else "")

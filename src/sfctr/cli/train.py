"""`sfctr train`: from a run file to a run directory, and a summary of what came out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sfctr.spec.errors import ConfigError

from .metrics import metrics_text
from .run_file import RUN_FILE, SET, read_run_file


def train(
    run_file: Annotated[Path, RUN_FILE],
    set_: Annotated[list[str], SET] = [],  # noqa: B006  typer copies it
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Where to keep the run; by default runs/<run file's name>."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that DIR holds.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write what every thread did when, for ui.perfetto.dev."),
    ] = None,
) -> None:
    """Train what a run file says.

    Shows progress and evaluations, keeps the best and the last model, and prints what they are worth.
    """
    from sfctr.train import train_run

    options = read_run_file(run_file, set_)
    run_dir = run or Path("runs") / run_file.stem
    with _place_for(run_dir, overwrite=overwrite):
        try:
            trained = train_run(options, run_dir, trace=trace)
        except KeyboardInterrupt:
            kept = [f"what was learnt until then is in {run_dir}/last/"] if (run_dir / "last").exists() else []
            raise KeyboardInterrupt(*kept) from None
    with trained:
        print(_summary(trained.facts, options.train.watch, run_dir))


@contextmanager
def _place_for(run_dir: Path, *, overwrite: bool) -> Iterator[None]:
    """Move the run in `run_dir` aside, and back where the new one fails before it has begun."""
    from sfctr.train.run import METRICS_FILE, RUN_FILE

    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(
            f"{run_dir} is a file, and a directory is needed to keep the run in; choose another --run DIR"
        )
    if not (run_dir / RUN_FILE).exists():
        yield
        return
    if not overwrite:
        raise ConfigError(f"{run_dir} already holds a run; add --overwrite to replace it, or choose another --run DIR")
    aside = run_dir / ".replaced"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    owned = (RUN_FILE, METRICS_FILE, "best", "last")
    _move(owned, run_dir, aside)
    try:
        yield
    finally:
        if not (run_dir / RUN_FILE).exists():
            _move(owned, aside, run_dir)
        shutil.rmtree(aside)


def _move(names: tuple[str, ...], source: Path, target: Path) -> None:
    for name in names:
        if (source / name).exists():
            (source / name).rename(target / name)


def _summary(facts: Mapping[str, Any], watch: str, run_dir: Path) -> str:
    """What the kept model is worth, and where everything is."""
    files = f"files: {run_dir}/run.toml, {run_dir}/metrics.jsonl, {run_dir}/last/"
    if "evaluation" not in facts:
        return f"nothing was held out, so nothing was measured (data.valid_fraction = 0.1 holds out a tenth)\n\n{files}"
    found = facts["evaluation"]
    has_best = (run_dir / "best").exists()
    where = f"validation part, model of step {found['step']:,}" + (f" (the best by {watch})" if has_best else "")
    return f"{where}\n\n{metrics_text(found)}\n\n{files}" + (f", {run_dir}/best/" if has_best else "")

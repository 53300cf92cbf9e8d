"""`sfctr evaluate` and `sfctr predict`: a trained run on other data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .metrics import metrics_text
from .world import joined

TIMEOUT_S = 120.0
"""How long a process waits for the others, where there are several."""

Which = Literal["best", "last"]

RUN = typer.Argument(help="Directory of a run that was trained.")
WHICH = typer.Option(help="The model to use. Without validation data the best is the last.")
_DATA = typer.Option("--data", metavar="FILES", help="File, directory, glob or URL. Repeatable.")


def evaluate(
    run: Annotated[Path, RUN], data: Annotated[list[str], _DATA], which: Annotated[Which, WHICH] = "best"
) -> None:
    """Measure a run on labelled data.

    Prints its metrics, and the share of keys that the model has never seen.
    """
    from sfctr.train import Run

    with joined(timeout_s=TIMEOUT_S) as others, Run.load(run, which, world=others.world if others else None) as trained:
        print(metrics_text(trained.evaluate(data)))


def predict(
    run: Annotated[Path, RUN],
    data: Annotated[list[str], _DATA],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file to write: row, score.")],
    which: Annotated[Which, WHICH] = "best",
) -> None:
    """Score every row of some data.

    Writes a probability for every row, in the data's order; no label is needed.
    """
    from sfctr.train import Run

    with joined(timeout_s=TIMEOUT_S) as others, Run.load(run, which, world=others.world if others else None) as trained:
        trained.predict(data, out)
    print(out)

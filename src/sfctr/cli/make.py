"""`sfctr synth` and `sfctr fetch`: data to try things on, made or downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .text import parse_count, table_text

_OUT = typer.Option("--out", help="Directory to write into.", metavar="DIR")


def synth(
    what: Annotated[Literal["criteo"], typer.Argument(help="criteo: Criteo's columns, sizes and skew.")],
    rows: Annotated[str, typer.Option(help="Rows to make, such as 500K or 10M.", metavar="N")],
    out: Annotated[Path, _OUT],
    seed: Annotated[int, typer.Option(help="Another seed is another day of the same world.")] = 0,
    click_rate: Annotated[float, typer.Option(help="Share of rows with label 1.")] = 0.03,
    scale: Annotated[float, typer.Option(help="Factor on the number of ids of the large columns.")] = 1.0,
) -> None:
    """Make a click log whose best possible AUC is known."""
    from sfctr.data.synth import synth_criteo

    report = synth_criteo(out, parse_count(rows, "--rows"), seed=seed, click_rate=click_rate, scale=scale)
    facts = [
        ("training rows", report.train_rows),
        ("validation rows", report.valid_rows),
        ("click rate", report.click_rate),
        ("best possible AUC", report.best_auc),
        ("best possible log loss", report.best_logloss),
        ("files", str(out)),
    ]
    print(table_text(facts))


def fetch(
    what: Annotated[Literal["movielens"], typer.Argument(help="movielens: MovieLens-100K, 100,000 real ratings.")],
    out: Annotated[Path, _OUT],
) -> None:
    """Download a real click log.

    Files that are there already are kept.
    """
    from sfctr.data.movielens import prepare_movielens

    print(prepare_movielens(out).ratings)

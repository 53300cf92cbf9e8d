"""`sfctr export`: what a run has learnt, in files that others' tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .score import RUN, WHICH, Which


def export(
    run: Annotated[Path, RUN],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to write into.")],
    rows: Annotated[bool, typer.Option("--rows", help="Only the rows of the tables, not the model.")] = False,
    which: Annotated[Which, WHICH] = "best",
) -> None:
    """Write what was learnt for other tools.

    The rows of every table as Parquet, with the keys as the data had them; the dense part by torch.export; and what
    joins them, as JSON. sfctr.load_export scores with these files alone.
    """
    from sfctr.export import export_rows
    from sfctr.train import Run
    from sfctr.train.run import open_saved, open_trained

    if not rows:
        with Run.load(run, which) as trained:
            paths = trained.export(out)
    else:
        saved = open_saved(run, which)
        with open_trained(saved.run, run) as store:
            saved.load_rows(store)
            paths = export_rows(store, saved.run.schema, out, strings=saved.strings())
    print(*paths, sep="\n")

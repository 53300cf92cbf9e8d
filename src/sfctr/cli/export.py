"""`sfctr export`: what a run has learnt, in files that others' tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfctr.spec.errors import ConfigError

from .score import RUN, WHICH, Which


def export(
    run: Annotated[Path, RUN],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to write into.")],
    rows: Annotated[bool, typer.Option("--rows", help="One Parquet file a table: key, vector, linear.")] = False,
    which: Annotated[Which, WHICH] = "best",
) -> None:
    """Write what was learnt for other tools.

    The rows of every table, with the keys as the data had them.
    """
    from sfctr.export import export_rows
    from sfctr.train.run import open_saved, open_store

    if not rows:
        raise ConfigError("nothing was asked for; add --rows to write each table's rows")
    saved = open_saved(run, which)
    with open_store(saved.run, run) as store:
        saved.load_rows(store)
        for path in export_rows(store, saved.run.schema, out, strings=saved.strings()):
            print(path)

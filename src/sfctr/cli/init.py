"""`sfctr init`: from data never seen before to a run file. stdout is that file and nothing else."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer


def init(
    files: Annotated[list[str], typer.Argument(help="Files, directories, globs or URLs to train on.")],
    label: Annotated[list[str], typer.Option("--label", metavar="COLUMN", help="The label, 0/1. Repeatable.")],
    time: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="The column that orders the rows in time.")
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option("--time-format", metavar="FORMAT", help="Its format, such as %y%m%d%H, s or ms, if not plain."),
    ] = None,
    valid_from: Annotated[
        str | None, typer.Option("--valid-from", metavar="TIME", help="Rows from this time on validate.")
    ] = None,
    valid: Annotated[
        list[str], typer.Option("--valid", metavar="FILES", help="Validate on these files instead. Repeatable.")
    ] = [],  # noqa: B006  typer copies it
    format: Annotated[
        Literal["auto", "parquet", "csv", "tsv", "criteo"], typer.Option(help="auto: by the files' names.")
    ] = "auto",
    separator: Annotated[
        str | None, typer.Option("--separator", metavar="CHAR", help="Between the columns of a CSV file.")
    ] = None,
    null: Annotated[
        list[str], typer.Option("--null", metavar="TEXT", help="A text that means missing in a CSV file. Repeatable.")
    ] = [],  # noqa: B006
) -> None:
    """Infer a schema and print a run file.

    Every default is visible and may be changed: sfctr init logs/*.parquet --label click > run.toml
    """
    from sfctr.data.infer import infer_run_file
    from sfctr.spec.runfile_text import render_run_file

    run, comments = infer_run_file(
        files,
        label=label[0] if len(label) == 1 else label,
        time=time,
        time_format=time_format,
        valid=valid,
        valid_from=valid_from,
        format=format,
        separator=separator,
        null_values=null,
    )
    sys.stdout.write(render_run_file(run, comments))

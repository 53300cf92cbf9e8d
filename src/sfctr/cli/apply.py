"""`sfctr apply`: a base and the deltas of a run, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def apply(
    base: Annotated[Path, typer.Argument(help="RUN/deltas/base, or what this command wrote before.")],
    deltas: Annotated[list[Path], typer.Argument(metavar="DELTA...", help="RUN/deltas/000001 and so on, in order.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to write; BASE itself may be given.")],
) -> None:
    """Put a base and the deltas that follow it together.

    Writes the full export of the last delta's step, the same rows in the same order. A delta that BASE has already
    changes nothing; a gap, a wrong order and a delta of another base are refused.
    """
    from sfctr.export import apply_deltas

    print(*apply_deltas(base, deltas, out), sep="\n")

"""The argument and the option that commands on a run file share, and the run that they give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sfctr.spec.errors import ConfigError

if TYPE_CHECKING:
    from sfctr.spec.runfile import RunFile

RUN_FILE = typer.Argument(help="A run file; 'sfctr init' writes one.")
SET = typer.Option("--set", metavar="PATH=VALUE", help="Set one field, such as train.batch_size=8192. Repeatable.")


def read_run_file(path: Path, overrides: Sequence[str]) -> RunFile:
    """The run that a file describes, with fields overridden. Raises ConfigError, naming the file."""
    from sfctr.spec.runfile_text import decode_run_file

    return decode_run_file(_text_of(path), str(path), overrides)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "'sfctr init FILES... --label COLUMN > run.toml' writes one"
        raise ConfigError(f"{path}: there is no such run file; {hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; a run file is TOML, saved as UTF-8") from None

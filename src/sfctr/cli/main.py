"""The command `sfctr`: finds the command that was asked for, and turns what goes wrong into one line and an exit code.

0 done; 1 `verify` found a difference; 2 a mistake of the user's, said in one line on stderr; 130 interrupted; 141
nobody reads the output any more; 143 asked to end (SIGTERM) while it trained. Anything else that is raised is a mistake
of ours and keeps its traceback. stdout carries results alone.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, cast

import typer

from sfctr import __version__
from sfctr.spec.errors import SfctrError, Terminated
from sfctr.telemetry import Recorder

from .apply import apply
from .export import export
from .init import init
from .inspect import inspect
from .launch import launch
from .make import fetch, synth
from .report import report
from .score import evaluate, predict
from .trace import trace
from .train import train
from .verify import verify
from .world import note_mistake

# Typer carries click within it in some versions and depends on it in others; this finds the class in both.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])

app = typer.Typer(
    help="Train, evaluate and use click-through-rate models whose embedding tables are larger than memory.",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (init, train, evaluate, predict, export, apply, inspect, report, trace, verify, synth, fetch):
    app.command()(_command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(launch)


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # read by main
) -> None:
    if version:
        print(f"sfctr {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (by default the process's own arguments) asks for; the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        print("; ".join(["sfctr: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130
    except Terminated as terminated:
        print("; ".join(["sfctr: terminated", *map(str, terminated.args)]), file=sys.stderr)
        return 143
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 141
    except (SfctrError, OSError, _UsageError) as error:
        if "--debug" in arguments and not isinstance(error, _UsageError):
            traceback.print_exc()
        print(f"sfctr: error: {_one_line(error)}", file=sys.stderr)
        note_mistake(error)
        return 2


def _run(arguments: Sequence[str]) -> int:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # models of one's own, named in run files; last, so that they hide no module
    command = typer.main.get_command(app)
    try:
        with command.make_context("sfctr", list(arguments)) as context, Recorder(), _notices_on_stderr():
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, _UsageError):
        path = error.ctx.command_path if error.ctx else "sfctr"
        return f"{' '.join(error.format_message().split()).rstrip('.')}; see '{path} --help'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {str(error.strerror).lower()}"
    return " ".join(str(error).splitlines())


class _Stderr(logging.Handler):
    """Writes to whatever sys.stderr is at the moment, which a progress line may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"sfctr: {record.getMessage()}", file=sys.stderr)


@contextmanager
def _notices_on_stderr() -> Iterator[None]:
    log, handler = logging.getLogger("sfctr"), _Stderr()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)

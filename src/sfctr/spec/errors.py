"""The errors a user can cause. Each message says what was found, what was needed, where, and what to do.

The command line prints the message alone and exits with code 2; anything that is not a `SfctrError` is a bug of ours.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class SfctrError(Exception):
    """Root of every error that a user's input, options or machine can cause."""


class ConfigError(SfctrError):
    """An option or a run file is wrong: an unknown field, a value outside its range, two options at odds."""


class SchemaError(SfctrError):
    """Features, tables and columns do not fit together."""


class ModelError(SfctrError):
    """A model cannot take the features it is given, or returns something that is no logit per row and label."""


class CapacityError(SfctrError):
    """A bound on memory or disk is too small for what must be kept."""


class DiskError(SfctrError):
    """The disk that rows are kept on refuses, is full, or brings back other bytes than were written."""


class CheckpointError(SfctrError):
    """A saved model or checkpoint is missing, damaged, or belongs to another schema."""


class PeerError(SfctrError):
    """Another process of the run has ended, does not answer, or cannot go on; the message names its rank."""


def mark_agreed(error: BaseException) -> None:
    """All ranks raise this, or what came of it, at the same place: together they can still keep what was learnt."""
    error.__dict__["is_agreed"] = True


def is_agreed(error: BaseException) -> bool:
    return bool(error.__dict__.get("is_agreed", False))


class Terminated(SystemExit):
    """The process was asked to end (SIGTERM) while it trained; it leaves with exit code 143, as is usual then."""

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        self.code = 143


class DataError(SfctrError):
    """A value, a row or a file cannot be used.

    `row` counts the file's data rows from 1 (a header is not counted); for a frame or an iterable `file` is its kind.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        row: int | None = None,
        column: str | None = None,
        remedy: str = "",
    ) -> None:
        self.problem, self.file, self.row, self.column, self.remedy = problem, file, row, column, remedy
        place = ", ".join(
            part
            for part in (file, f"row {row}" if row is not None else "", f"column '{column}'" if column else "")
            if part
        )
        super().__init__((f"{place}: " if place else "") + problem + (f"; {remedy}" if remedy else ""))


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: os.PathLike[str] | str) -> Iterator[None]:
    """Turns the system's refusal to write `path` into an error that names it: CapacityError where there is no room for
    it, else ConfigError."""
    try:
        yield
    except OSError as error:
        # pyarrow's errors have the number of the system's, and words of their own.
        why = (os.strerror(error.errno) if error.errno is not None else str(error)).lower()
        if error.errno in _NO_ROOM:
            raise CapacityError(
                f"{path} could not be written: {why}; free space there, or choose another place"
            ) from None
        raise ConfigError(f"{path} cannot be written: {why}; choose another place") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """' (did you mean 'x'?)' for the known name closest to `name`, or '' where none is close."""
    names = list(known)
    begun = [longer for longer in names if len(name) > 2 and longer.startswith(name)]
    match = begun or get_close_matches(name, names, n=1, cutoff=0.6)
    return f" (did you mean '{match[0]}'?)" if match else ""

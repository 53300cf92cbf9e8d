"""The directory of a run: what it holds, whose it is while a run is trained in it, and how a run takes it over.

run.toml        the resolved run file
metrics.jsonl   see log.py
history.jsonl   see history.py
report.html     what `sfctr report` and the end of `sfctr train` make of these
best/ last/     saved models
checkpoints/    see docs/format/checkpoint.md
deltas/         see docs/format/deltas.md
job             of a run that several processes train: the launchers that had begun them
lock            the number of the process that trains here; locked as long as it lives, whatever its content
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sfctr.data.whole_directory import sync
from sfctr.spec.errors import ConfigError, writing
from sfctr.store import remove_left
from sfctr.telemetry import notice

RUN_FILE, METRICS_FILE, HISTORY_FILE, REPORT_FILE = "run.toml", "metrics.jsonl", "history.jsonl", "report.html"
CHECKPOINTS, DELTAS = "checkpoints", "deltas"
_MODELS = tuple(f"{name}{end}" for name in ("best", "last") for end in ("", ".old", ".new"))
"""Saved models, and what a save that was killed leaves of them."""
JOB = "job"
_FILES = (JOB, METRICS_FILE, HISTORY_FILE, REPORT_FILE)
_OWNED = (RUN_FILE, *_FILES, *_MODELS, CHECKPOINTS, DELTAS)
_LOCK = "lock"


@contextmanager
def claimed(run_dir: Path, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
    """The directory, made if needed, and locked.

    Raises ConfigError where another process trains there, and where a run is there already that is neither to go on
    (resume) nor to be replaced (overwrite). Where the run fails before it kept anything, nothing of it stays; one that
    was to be replaced is back then.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file and must be a directory; choose another (--run DIR, or run_dir=)")
    with writing(run_dir):
        _make(run_dir)
    try:
        with _locked(run_dir), _in_place(run_dir, resume=resume, overwrite=overwrite):
            yield
    except BaseException:
        with suppress(OSError):  # not empty
            run_dir.rmdir()
        raise


def _make(run_dir: Path) -> None:
    """With its parents, whose names then outlive a loss of power."""
    made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    run_dir.mkdir(parents=True, exist_ok=True)
    for path in made:
        sync(path.parent)


def began_here(run_dir: Path, job: str) -> bool:
    """Whether this job has begun the run that is in the directory.

    job: its launchers, a line each, one of which had a part in the run.
    """
    before = (run_dir / JOB).read_text(encoding="utf-8") if (run_dir / JOB).exists() else ""
    return bool(set(before.splitlines()) & set(job.splitlines()))


def next_run_dir(name: str, parent: Path = Path("runs")) -> Path:
    """The first of parent/name, parent/name-2, parent/name-3 ... that is not there yet."""
    candidate, number = parent / name, 1
    while candidate.exists():
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate


@contextmanager
def _in_place(run_dir: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    aside = run_dir / ".replaced"
    if aside.exists() and not (run_dir / RUN_FILE).exists():  # the process that replaced it was killed before it began
        _move_back(aside, run_dir)
    is_new = not _holds(run_dir, _OWNED)
    if not (is_new or resume or overwrite):
        raise ConfigError(
            f"{run_dir} already holds a run; choose another directory (--run DIR, or run_dir= in Python), go on with it"
            " (--resume, or resume=True), or remove it"
        )
    remove_left(run_dir)  # it may have had rows here, and have them elsewhere from now on
    shutil.rmtree(aside, ignore_errors=True)
    if overwrite and not is_new:
        aside.mkdir()
        for name in _OWNED:  # the run file first, and back last: where it is tells whose directory it is
            if (run_dir / name).exists():
                (run_dir / name).rename(aside / name)
    try:
        yield
    except BaseException:
        if is_new or overwrite:
            _remove_what_failed(run_dir)
        raise
    finally:
        if aside.exists() and not (run_dir / RUN_FILE).exists():
            _move_back(aside, run_dir)
        shutil.rmtree(aside, ignore_errors=True)


def _remove_what_failed(run_dir: Path) -> None:
    with suppress(OSError):  # not empty, or not there
        (run_dir / CHECKPOINTS).rmdir()
    if not _holds(run_dir, (*_MODELS, CHECKPOINTS)):
        for name in (RUN_FILE, *_FILES):
            (run_dir / name).unlink(missing_ok=True)


def _holds(directory: Path, names: tuple[str, ...]) -> bool:
    return any((directory / name).exists() for name in names)


def _move_back(aside: Path, run_dir: Path) -> None:
    for name in reversed(_OWNED):
        if not (aside / name).exists():
            continue
        if (run_dir / name).is_dir():  # of a run that did not begin
            shutil.rmtree(run_dir / name)
        (aside / name).rename(run_dir / name)


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    with writing(run_dir):
        file = _lock(run_dir / _LOCK)
    try:
        yield
    finally:
        (run_dir / _LOCK).unlink(missing_ok=True)
        os.close(file)


def _lock(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(file, 32, 0).decode(errors="replace") or "another"
            os.close(file)
            raise ConfigError(
                f"process {owner} trains in {path.parent}; wait until it has ended, or choose another directory (--run"
                " DIR, or run_dir= in Python)"
            ) from None
        except OSError as error:
            notice(f"{path.parent} cannot be locked ({error.strerror}): see to it that no other run writes there")
        if path.exists() and os.fstat(file).st_ino == path.stat().st_ino:
            os.truncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            return file
        os.close(file)  # its owner has ended, and removed it, since it was opened

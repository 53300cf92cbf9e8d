"""The directory that a store's rows on disk are in.

It is made when the store is, so that a disk that cannot be used is known before hours of training, and it is locked
(flock) for as long as the store lives. Directories of stores that nobody holds any more, because their process was
killed, are taken away by the next store that is made beside them. The lock is all that tells them apart: on a file
system that several machines share, flock must be one that they share as well.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import uuid4
from weakref import finalize

from sfctr.spec.errors import ConfigError
from sfctr.spec.tables import Tiers

PREFIX = "sfctr-rows-"


class Spill:
    """A directory of its own under `parent`, locked until close(), which takes it away with all that is in it.

    Raises OSError where it cannot be made, written to or locked.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_left(parent)
        self.path, lock = _make_locked(parent)
        self._end = finalize(self, _end, self.path, lock)
        with tempfile.TemporaryFile(dir=self.path) as file:
            file.write(bytes(4096))

    def __str__(self) -> str:
        return str(self.path)

    def close(self) -> None:
        """Take the directory away. Calling it again does nothing."""
        self._end()


def remove_left(parent: Path) -> None:
    """Take away the directories there of stores that nobody holds any more."""
    for path in parent.glob(PREFIX + "*"):
        _remove_if_left(path)


def open_spill(tiers: Tiers, directory: str | Path | None) -> Spill | None:
    """Where tiers say, or else in `directory`, or a temporary one; None where rows may not be on disk.

    Raises ConfigError where it cannot be used.
    """
    if tiers.disk is False:
        return None
    if isinstance(tiers.disk, str):
        parent = Path(tiers.disk)
    else:
        parent = Path(tempfile.gettempdir()) if directory is None else Path(directory)
    try:
        return Spill(parent)
    except OSError as error:
        raise ConfigError(
            f"rows that RAM has no room for cannot be kept in {parent}: {error.strerror or error}; set tiers.disk to a"
            " directory that can be written, or to false to keep all rows in RAM"
        ) from None


def _make_locked(parent: Path) -> tuple[Path, int]:
    """A new directory and the descriptor that locks it."""
    while True:
        path = parent / f"{PREFIX}{uuid4().hex[:12]}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError, BlockingIOError):  # another store's: it took this for one that was left
            lock = _lock(path)
            if path.exists():
                return path, lock
            os.close(lock)


def _lock(path: Path) -> int:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):  # held, another user's, or gone by now
        if path.stat().st_uid == os.getuid():
            _end(path, _lock(path))


def _end(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)

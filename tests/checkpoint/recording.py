"""A Disk that records every operation, and fails the one it is told to."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfctr.checkpoint.disk import Disk


@dataclass(frozen=True)
class Operation:
    """name: of the method. path: what it works on; target: of a link or rename; data: that was written."""

    name: str
    path: Path
    target: Path | None = None
    data: bytes = b""


class RecordingDisk(Disk):
    """fail_at: the number of the operation that fails, with `error`; a write may be torn: half of it is done before."""

    def __init__(self, fail_at: int | None = None, error: int = errno.ENOSPC, *, torn: bool = False) -> None:
        self.done: list[Operation] = []
        self.fail_at, self.error, self.torn = fail_at, error, torn
        self.tried = 0

    def _note(self, name: str, *args: Any) -> None:
        operation = Operation(name, *args)
        self.tried += 1
        if self.tried - 1 == self.fail_at:
            raise OSError(self.error, "by the test", str(operation.path))
        self.done.append(operation)

    def create(self, path):
        self._note("create", path)
        return super().create(path)

    def write(self, file, data):
        try:
            self._note("write", Path(file.name), None, bytes(data))
        except OSError:
            if self.torn:
                super().write(file, data[: len(data) // 2])
            raise
        super().write(file, data)

    def sync(self, file):
        self._note("sync", Path(file.name))
        super().sync(file)

    def make_directory(self, path):
        self._note("make_directory", path)
        super().make_directory(path)

    def sync_directory(self, path):
        self._note("sync_directory", path)
        super().sync_directory(path)

    def link(self, source, target):
        self._note("link", source, target)
        super().link(source, target)

    def rename(self, source, target):
        self._note("rename", source, target)
        super().rename(source, target)

    def remove(self, path):
        self._note("remove", path)
        super().remove(path)

    def remove_directory(self, path):
        self._note("remove_directory", path)
        super().remove_directory(path)

"""Every change that a save makes to the file system, one operation at a time: a test can record each, or have it fail.

What is durable: a file's bytes after sync(), a name after sync_directory() of the directory that holds it.
"""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}
PIECE_BYTES = 1 << 20


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a manifest says of a file."""

    bytes: int
    crc32: int


class Disk:
    """The file system. Every method raises OSError as the system does."""

    def create(self, path: Path) -> BinaryIO:
        """A new file, written without a buffer of ours."""
        return path.open("xb", buffering=0)

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Append all of `data`, bytes."""
        while data:
            data = data[file.write(data) :]

    def sync(self, file: BinaryIO) -> None:
        os.fsync(file.fileno())

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()


class OutFile:
    """A file that is written once, from front to back, and knows its size and CRC-32."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._file = disk.create(path)
        self._bytes = self._crc32 = 0

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data)
        if view.nbytes:  # one of nothing cannot be cast
            view = view.cast("B")
            self._disk.write(self._file, view)
            self._crc32 = zlib.crc32(view, self._crc32)
            self._bytes += view.nbytes
        return view.nbytes

    def finish(self) -> FileFacts:
        """Have it on disk for good."""
        self._disk.sync(self._file)
        self._file.close()
        return FileFacts(bytes=self._bytes, crc32=self._crc32)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def write_file(disk: Disk, path: Path, data: bytes | memoryview) -> FileFacts:
    with OutFile(disk, path) as file:
        file.write(data)
        return file.finish()


def link_or_copy(disk: Disk, source: Path, target: Path, facts: FileFacts) -> None:
    """Have the file under a second name. Raises OSError, with errno EIO where a copy is not what `facts` say."""
    try:
        disk.link(source, target)
    except OSError as error:
        if error.errno not in CANNOT_LINK:
            raise
        _copy(disk, source, target, facts)


def _copy(disk: Disk, source: Path, target: Path, facts: FileFacts) -> None:
    with source.open("rb") as read, OutFile(disk, target) as file:
        while piece := read.read(PIECE_BYTES):
            file.write(piece)
        if file.finish() != facts:
            raise OSError(errno.EIO, "has other bytes than were written", str(source))


def remove_tree(disk: Disk, path: Path) -> None:
    """A directory of a checkpoint: its manifest first, so that what is left is never taken for a whole one."""
    inside = sorted(path.iterdir(), key=lambda each: (each.name != "manifest.json", each.name))
    for each in inside:
        if each.is_dir() and not each.is_symlink():
            remove_tree(disk, each)
        else:
            disk.remove(each)
    disk.remove_directory(path)

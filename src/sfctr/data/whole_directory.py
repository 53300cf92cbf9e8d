"""A directory that is complete or absent: written beside its name, synced, and renamed; and the checksum of a file."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path


def beside(directory: Path) -> Path:
    """Where what is to be `directory` is written; without anything in it."""
    path = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def sync_all(directory: Path) -> None:
    """Have all that is in it on disk for good. Raises OSError."""
    for path in (*directory.rglob("*"), directory):
        sync(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(written: Path, directory: Path) -> None:
    """Give what was written and synced its name. One that is there is "<name>.old" until then. Raises OSError."""
    old = directory.with_name(f"{directory.name}.old")
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    written.rename(directory)
    sync(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def crc32_of(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return value

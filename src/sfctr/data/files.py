"""Paths, globs, directories and fsspec URLs to a list of files, each with its format.

The order is the one given, and by name within a glob or a directory. Names in directories that begin with "." or "_"
are passed over, as other readers do.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec
import pyarrow as pa

from sfctr.spec.errors import ConfigError, DataError, nearest
from sfctr.spec.runfile import Data

Format = Literal["parquet", "csv", "tsv", "criteo"]

_SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv"}
_KNOWN = ".parquet, .pq, .csv, .tsv, .csv.gz or .tsv.gz"


@dataclass(frozen=True, slots=True)
class File:
    """One file. `name` is what messages call it; filesystem None: a local path."""

    name: str
    path: str
    format: Format
    filesystem: Any = None

    @property
    def is_gzip(self) -> bool:
        return self.path.endswith(".gz")

    def open(self) -> Any:
        """A pyarrow file to read from. Raises DataError where it cannot be opened."""
        try:
            if self.filesystem is None:
                return pa.OSFile(self.path)
            return pa.PythonFile(self.filesystem.open(self.path, "rb"), mode="r")
        except FileNotFoundError:
            raise DataError("the file is gone", file=self.name, remedy="check the path") from None
        except (OSError, ValueError) as error:
            raise DataError(
                f"the file cannot be opened: {_reason(error)}", file=self.name, remedy="check its permissions"
            ) from None


def find_files(data: Iterable[str | os.PathLike[str]], options: Data) -> list[File]:
    """Every file that the paths name. Raises DataError where a path names none, ConfigError for an unknown format."""
    found: list[File] = []
    for entry in data:
        text = os.fspath(entry)
        matches = _remote(text) if "://" in text else [(path, None) for path in _local(text)]
        if not matches:
            raise DataError(
                f"no file matches {text!r}", remedy="check the path; quote a glob so that the shell leaves it alone"
            )
        for path, filesystem in matches:
            name = path if filesystem is None else filesystem.unstrip_protocol(path)
            found.append(File(name, path, _format(name, options), filesystem))
    if not found:
        raise DataError("no files are given", remedy="name at least one file, glob or directory")
    return found


def _local(text: str) -> list[str]:
    path = os.path.expanduser(text)
    if os.path.isdir(path):
        return sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if not _is_hidden(os.path.relpath(os.path.join(folder, name), path))
        )
    if os.path.exists(path):
        return [path]
    if globbing.has_magic(path):
        matches = sorted(globbing.glob(path, recursive=True))
        return [file for match in matches for file in (_local(match) if os.path.isdir(match) else [match])]
    folder = Path(path).parent
    names = os.listdir(folder) if folder.is_dir() else []
    hint = nearest(Path(path).name, names)
    raise DataError(f"there is no file {text!r}{hint}", remedy="check the path")


def _remote(text: str) -> list[tuple[str, Any]]:
    try:
        filesystem, path = fsspec.core.url_to_fs(text)
        if globbing.has_magic(path):
            matches = sorted(filesystem.glob(path))
        elif filesystem.isdir(path):
            matches = sorted(filesystem.find(path))
            matches = [m for m in matches if not _is_hidden(os.path.relpath(m, path))]
        else:
            matches = [path] if filesystem.exists(path) else []
        return [(match, filesystem) for match in matches if not filesystem.isdir(match)]
    except (ImportError, ValueError, OSError) as error:
        raise DataError(
            f"{text!r} cannot be looked up: {_reason(error)}",
            remedy="check the URL, and that its fsspec package is installed",
        ) from None


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in Path(relative).parts)


def _format(name: str, options: Data) -> Format:
    if options.format != "auto":
        return options.format
    bare = name.removesuffix(".gz").lower()
    for suffix, format in _SUFFIXES.items():
        if bare.endswith(suffix) and not (format == "parquet" and name.endswith(".gz")):
            return format
    raise ConfigError(f"the format of {name!r} does not follow from its name ({_KNOWN}); set data.format")


def _reason(error: BaseException) -> str:
    """One line of why, without what the operating system's message repeats."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]

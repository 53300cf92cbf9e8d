"""manifest.json: what a checkpoint is and which files it has, written last and checked first. Also how files of
checkpoints and saved models are checked.

The text has a CRC-32 of itself, so that a flipped digit of it is found as well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import msgspec

from sfctr.data.whole_directory import crc32_of
from sfctr.spec.errors import CheckpointError

from .disk import FileFacts
from .layout import RecordLayout
from .names import is_part, part_name, part_names

FORMAT = "sfctr.checkpoint"
READABLE = (1, 2)
"""Version 2 has rows, waiting keys or texts in files of several ranks; else it is version 1."""
NAME = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """chain: steps of the checkpoints whose rows files are here, the full one first and this one last.

    groups: in the order of the files in rows/. num_rows, membership: by table that is not dense; counters of those with
    such options. best_step: of the evaluation that was the best until then. facts: whatever else the run keeps.
    """

    format: str = FORMAT
    version: int = 1
    step: int
    kind: Literal["full", "changes"]
    chain: tuple[int, ...]
    groups: tuple[RecordLayout, ...]
    num_rows: dict[str, int]
    membership: dict[str, dict[str, int]]
    best_step: int | None
    facts: dict[str, Any]
    files: dict[str, FileFacts]


def rows_name(group: int, position: int, rank: int = 0) -> str:
    """Name of the rows file of a group, at a position in the chain, that a rank wrote."""
    return part_name(f"rows/{group:03}-{position:03}.rows", rank)


def rows_names(files: Collection[str], group: int, position: int) -> list[str]:
    """Of `files` those of all ranks, in their order; that of rank 0 is always one of them."""
    return part_names(files, rows_name(group, position))


def version_of(files: Collection[str]) -> int:
    """Of a checkpoint that has these files."""
    return 2 if any(is_part(name) for name in files) else 1


def manifest_bytes(manifest: Manifest) -> bytes:
    """Raises ValueError where the facts hold a number that JSON has no word for."""
    plain = json.loads(json.dumps(msgspec.to_builtins(manifest), allow_nan=False))
    return (json.dumps({**plain, "crc32": _own_crc32(plain)}, indent=1) + "\n").encode()


def _own_crc32(plain: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint, without a look at its files. Raises CheckpointError for one that is missing,
    damaged or of another version."""
    return _manifest_of(read_text(directory / NAME, json.loads), directory / NAME)


def parsed_manifest(text: bytes, directory: Path) -> Manifest:
    """What manifest_bytes() gave, in another process. directory: that it is of, for errors."""
    return _manifest_of(json.loads(text), directory / NAME)


def _manifest_of(plain: Any, path: Path) -> Manifest:
    if not isinstance(plain, dict) or plain.get("format") != FORMAT or plain.get("version") not in READABLE:
        found = plain if not isinstance(plain, dict) else f"{plain.get('format')!r} version {plain.get('version')!r}"
        raise CheckpointError(
            f"{path}: format {found} was found and '{FORMAT}' version {' or '.join(map(str, READABLE))} is needed; use"
            " the release that wrote it"
        )
    if plain.pop("crc32", None) != _own_crc32(plain):
        raise CheckpointError(f"{path} has another CRC-32 than it says; the checkpoint is damaged, use another one")
    try:
        return msgspec.convert(plain, Manifest)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: the checkpoint is damaged ({error})") from None


def is_of_another_version(directory: Path) -> bool:
    try:
        plain = json.loads((directory / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(plain, dict) and plain.get("format") == FORMAT and plain.get("version") not in READABLE


def check_files(directory: Path, files: dict[str, FileFacts]) -> None:
    """Read all of them. Raises CheckpointError for the first that is not as it was written."""
    for name, facts in files.items():
        check_file(directory / name, facts)


def check_file(path: Path, facts: FileFacts) -> None:
    try:
        found = path.stat().st_size if path.exists() else None
        is_sound = found == facts.bytes and crc32_of(path) == facts.crc32
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from None
    if not is_sound:
        what = "is missing" if found is None else f"has {found} bytes" if found != facts.bytes else "has other bytes"
        raise CheckpointError(
            f"{path} {what} and the manifest says {facts.bytes} bytes with CRC-32 {facts.crc32}; what was saved is"
            " damaged"
        )


def read_text(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: what was saved is damaged ({error})") from error

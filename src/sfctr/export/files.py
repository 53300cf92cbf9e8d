"""What an export's files are called, how they are told from damaged ones, and what its export.json says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from sfctr.data.whole_directory import crc32_of
from sfctr.spec.errors import CheckpointError, writing

FORMAT, VERSION = "sfctr.export", 1
MODEL_FILE, FACTS_FILE = "model.pt2", "export.json"


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said of a file."""

    bytes: int
    crc32: int


def rows_file(table: str) -> str:
    """Name of the file of a table's rows."""
    return f"{quote(table, safe=' ')}.parquet"


def facts_of(paths: Iterable[Path]) -> dict[str, FileFacts]:
    return {path.name: FileFacts(bytes=path.stat().st_size, crc32=crc32_of(path)) for path in paths}


def check_files(folder: Path, files: Mapping[str, FileFacts], remedy: str) -> None:
    """Raise CheckpointError for the first that is not as it was written."""
    for name, facts in files.items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != facts.bytes or crc32_of(path) != facts.crc32:
            raise CheckpointError(f"{path}: the file is {'missing' if found is None else 'damaged'}; {remedy}")


def read_facts(folder: Path) -> dict[str, Any]:
    """What export.json says, the files that it names checked. Raises CheckpointError."""
    path = folder / FACTS_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: there is no whole export ({FACTS_FILE} is missing); write one with 'sfctr export RUN --out DIR'"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: the export is damaged ({error})") from None
    if not isinstance(facts, dict) or (facts.get("format"), facts.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"{path}: this is no '{FORMAT}' of version {VERSION}; use the release that wrote it")
    files = {name: FileFacts(**what) for name, what in facts["files"].items()}
    check_files(folder, files, "export the run again")
    return facts


def write_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write export.json, which makes the directory whole."""
    part, path = folder / f".{FACTS_FILE}.part", folder / FACTS_FILE
    with writing(path):
        part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    return path

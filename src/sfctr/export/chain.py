"""What deltas follow each other by: a base has an id of its own, and a delta's is made of all that it says.

So a delta of the same content is the same delta, whoever wrote it, and a name tells whether one follows another:
two runs that went different ways from one point have other ids from there on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from sfctr.spec.errors import CheckpointError

from .files import FileFacts, check_files

FORMAT, VERSION = "sfctr.delta", 1
DELTA_FILE = "delta.json"


class Chain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an export is of. step: committed steps. ids: of the base, and of each delta applied to it, in order."""

    step: int
    ids: tuple[str, ...]

    @property
    def number(self) -> int:
        """Of the last delta; 0: it is the base."""
        return len(self.ids) - 1

    def followed_by(self, delta: Delta) -> Chain:
        return Chain(step=delta.step, ids=(*self.ids, delta.id))


class Delta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """delta.json: all but `files` says where in a chain it belongs.

    base: id of the base. after: id of the delta before, or of the base. changed, removed: rows by table.
    """

    format: str = FORMAT
    version: int = VERSION
    number: int
    step: int
    base: str
    after: str
    changed: dict[str, int]
    removed: dict[str, int]
    files: dict[str, FileFacts]
    id: str = ""

    def named(self) -> Delta:
        """With the id that follows from all else."""
        return msgspec.structs.replace(self, id=_id_of(msgspec.to_builtins(self)))


def _id_of(plain: dict[str, Any]) -> str:
    text = json.dumps({name: value for name, value in plain.items() if name != "id"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_delta(folder: Path, delta: Delta) -> None:
    text = json.dumps(msgspec.to_builtins(delta), indent=1) + "\n"
    (folder / DELTA_FILE).write_text(text, encoding="utf-8")


def read_delta(folder: Path, *, checks_files: bool = True) -> Delta:
    """What a delta says, its files checked. Raises CheckpointError where it is missing, damaged or of another
    version."""
    path = folder / DELTA_FILE
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: there is no whole delta ({DELTA_FILE} is missing); give directories such as RUN/deltas/000001"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: the delta is damaged ({error})") from None
    if not isinstance(plain, dict) or (plain.get("format"), plain.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"{path}: this is no '{FORMAT}' of version {VERSION}; use the release that wrote it")
    if plain.get("id") != _id_of(plain):
        raise CheckpointError(f"{path}: the delta is damaged: its id does not follow from what it says; copy it again")
    delta = msgspec.convert(plain, Delta)
    if checks_files:
        check_files(folder, delta.files, "the delta is damaged, copy it again")
    return delta

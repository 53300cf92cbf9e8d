"""Names of files that each rank writes one of: "rows/000-000.rows" of rank 0, "rows/000-000.rank-002.rows" of rank 2.

So a run of one process has the plain names alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_PART = re.compile(r"(.*)\.rank-(\d{3})(\.\w+)")


def part_name(name: str, rank: int) -> str:
    """Of the file that `rank` writes, where rank 0 writes `name`."""
    front, dot, ending = name.rpartition(".")
    return f"{front}.rank-{rank:03}{dot}{ending}" if rank else name


def is_part(name: str) -> bool:
    """Whether another rank than 0 wrote it."""
    return _PART.fullmatch(name) is not None


def part_names(files: Collection[str], name: str) -> list[str]:
    """`name`, whether it is there or not, and then those of `files` that other ranks wrote beside it, in order."""
    matches = filter(None, map(_PART.fullmatch, files))
    return [name, *sorted(match[0] for match in matches if match[1] + match[3] == name)]

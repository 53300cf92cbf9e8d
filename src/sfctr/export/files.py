"""What an export's files are called, and how they are told from damaged ones."""

from __future__ import annotations

import zlib
from pathlib import Path
from urllib.parse import quote

FORMAT, VERSION = "sfctr.export", 1
MODEL_FILE, FACTS_FILE = "model.pt2", "export.json"


def rows_file(table: str) -> str:
    """Name of the file of a table's rows."""
    return f"{quote(table, safe=' ')}.parquet"


def crc32_of(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value = zlib.crc32(piece, value)
    return value

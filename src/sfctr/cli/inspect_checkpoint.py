"""`sfctr inspect` of a checkpoint: what it holds, and whether its files are as they were written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sfctr.spec.errors import CheckpointError
from sfctr.spec.sizes import size_text

from .metrics import metrics_text
from .text import table_text

if TYPE_CHECKING:
    from sfctr.checkpoint import Checkpoint


def is_checkpoint(directory: Path) -> bool:
    """Whether its manifest says so."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == "sfctr.checkpoint"


def inspect_checkpoint(directory: Path) -> None:
    """Print it. Raises CheckpointError, at the end, where a file is missing or damaged."""
    from sfctr.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(directory, is_checked=True)
    print(table_text(list(_heads(checkpoint))))
    print(f"\n{table_text([('table', 'rows'), *checkpoint.manifest.num_rows.items()])}")
    files = list(checkpoint.files())
    lines = [(name, size_text(size), "damaged" if problem else "sound") for name, size, problem in files]
    print(f"\n{table_text([('file', 'size', 'as written'), *lines])}")
    problems = [problem for _, _, problem in files if problem]
    if problems:
        raise CheckpointError("; ".join(problems))
    facts = checkpoint.trainer["loop"]["facts"]
    if "evaluation" in facts:
        print(f"\n{metrics_text(facts['evaluation'])}")


def _heads(checkpoint: Checkpoint) -> Iterator[tuple[str, object]]:
    manifest = checkpoint.manifest
    yield "model", checkpoint.run.model.name
    yield "from", str(checkpoint.directory)
    yield "step", manifest.step
    changes = ", ".join(f"{step:,}" for step in manifest.chain[1:])
    yield "rows", f"all at step {manifest.chain[0]:,}" + (f", those changed until {changes}" if changes else "")
    yield "bytes", size_text(sum(facts.bytes for facts in manifest.files.values()))

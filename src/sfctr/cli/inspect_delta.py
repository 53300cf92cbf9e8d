"""`sfctr inspect` of a delta: what it follows, and what it changes."""

from __future__ import annotations

from pathlib import Path

from sfctr.spec.sizes import size_text

from .text import table_text


def is_delta(directory: Path) -> bool:
    return (directory / "delta.json").is_file()


def inspect_delta(directory: Path) -> None:
    """Print it. Raises CheckpointError where it is damaged."""
    from sfctr.export import read_delta

    delta = read_delta(directory)
    heads = [("delta", f"{delta.number:06}"), ("step", delta.step), ("of base", delta.base), ("after", delta.after)]
    size = size_text(sum(facts.bytes for facts in delta.files.values()))
    print(table_text([*heads, ("id", delta.id), ("bytes", size)]))
    counts = [(table, changed, delta.removed[table]) for table, changed in delta.changed.items()]
    print(f"\n{table_text([('table', 'changed', 'removed'), *counts])}")

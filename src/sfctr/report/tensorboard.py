"""The numbers of a run as TensorBoard's event files, each over the rows trained.

A run is a folder of its own, named after it. Scalars are named after where they lie in a line of metrics.jsonl:
train/loss, valid/auc, valid/labels/click/auc, train/stage_s/fetch, train/moved/item/hits. They are the lines' own, so
counts and seconds are those of a stretch. Writing a run again replaces what was written of it before, and leaves event
files of others that are in its folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfctr.spec.errors import ConfigError, writing

from .comparison_page import distinct_names
from .record import Record, number

_NO_SCALARS = ("kind", "step", "epoch", "rows", "seconds", "best", "undefined")
_SUFFIX = ".sfctr"
"""Ends the names of event files that are ours."""


def write_events(records: Sequence[Record], out_dir: Path) -> list[Path]:
    """Event files of each run; the folders. Raises ConfigError where the package tensorboard is missing, or the folder
    cannot be written."""
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise ConfigError(
            "event files are written by the package tensorboard, which is not installed; pip install tensorboard"
        ) from None
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    folders = []
    for name, record in zip(distinct_names(records), records, strict=True):
        folder = out_dir / name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                old.unlink()
            writer = EventFileWriter(str(folder), filename_suffix=_SUFFIX)
            for rows, seconds, values in scalars(record):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
                writer.add_event(Event(step=rows, wall_time=seconds, summary=summary))
            writer.close()
        folders.append(folder)
    return folders


def scalars(record: Record) -> Iterator[tuple[int, float, dict[str, float]]]:
    """(rows trained, seconds since the run began, name -> number) of each line that has any."""
    for line in record.lines:
        found: dict[str, float] = {}
        for name, value in line.items():
            if name not in _NO_SCALARS:
                _collect(value, f"{line.get('kind', 'line')}/{name}", found)
        if found:
            yield int(record.rows_at(line)), number(line.get("seconds")) or 0.0, found


def _collect(value: Any, name: str, found: dict[str, float]) -> None:
    if isinstance(value, Mapping):
        for inner, each in value.items():
            _collect(each, f"{name}/{inner}", found)
    elif (plain := number(value)) is not None:
        found[name] = plain

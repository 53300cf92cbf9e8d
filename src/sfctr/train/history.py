"""history.jsonl: when a run's directory was trained in, with what, and how that ended; one JSON object a line.

kind "begin": training began, or went on. at (UTC, ISO 8601), step and rows that were trained before; versions of what
decides a run's numbers; machine (name, system, processor, cores that this process may use, memory_bytes); processes.
kind "end": it ended. at, step, rows; seconds since its "begin"; beside_s, seconds of what was done beside steps
("evaluate", "save", "checkpoint", which is its pauses and waits for one that is being written, "delta"); how,
"finished" or what ended it, in words; notices, all that were given, those before its "begin" among them. A process that
is killed writes none.

Unlike metrics.jsonl it is not cut when a run goes on from a checkpoint: it says what happened, not what the model saw.
"""

from __future__ import annotations

import json
import os
import platform
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import torch

from sfctr import __version__
from sfctr.spec.errors import SfctrError, writing
from sfctr.telemetry import current

_BESIDE = {
    "evaluate": ("evaluate",),
    "save": ("save",),
    "checkpoint": ("checkpoint", "checkpoint wait"),
    "delta": ("delta",),
}
"""The spans of each; none lies in another."""


@contextmanager
def told(path: Path, position: Callable[[], Mapping[str, int]], *, processes: int = 1) -> Iterator[None]:
    """Writes both lines of what is trained inside. position: step and rows that are trained, when it is called.

    Raises CapacityError where the first cannot be written; the other one is then not missed.
    """
    began = monotonic()
    _append(path, {"kind": "begin", **_now(position), **_with_what(), "processes": processes})
    how = "finished"
    try:
        yield
    except BaseException as error:
        how = _words(error)
        raise
    finally:
        spent = current().seconds()
        beside = {name: round(sum(spent.get(span, 0.0) for span in spans), 6) for name, spans in _BESIDE.items()}
        line = {"kind": "end", **_now(position), "seconds": monotonic() - began, "beside_s": beside}
        line |= {"how": how, "notices": current().said()}
        with suppress(SfctrError, OSError):
            _append(path, line)


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The most memory that this process has had; where the system tells it, without that of the one which began it."""
    with suppress(OSError):
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _now(position: Callable[[], Mapping[str, int]]) -> dict[str, Any]:
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), **position()}


def _with_what() -> dict[str, Any]:
    versions = {
        "sfctr": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    machine = {
        "name": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    return {"versions": versions, "machine": machine}


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    with suppress(OSError):
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _words(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """A line of its own, also after one that a process which was killed, or a full disk, left without its end."""
    with writing(path), path.open("ab+") as file:
        is_torn = file.tell() > 0 and _last_byte(file) != b"\n"
        file.write(b"\n" * is_torn + json.dumps(line).encode() + b"\n")


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)

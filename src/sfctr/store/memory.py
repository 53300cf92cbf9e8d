"""How much memory this process may still take: what the machine has free, or less where a limit says so."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

LEAST = 32 << 20
"""What a store takes where next to nothing is left: better a slow run than none."""


def default_ram_bytes(sharers: int = 1) -> int:
    """Half of what this process may still take, or its share of that where several take it between them."""
    return max(LEAST, available_bytes() // 2 // sharers)


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes: the least of the machine's available memory, what the control groups leave, and the process's own limits.

    Page cache counts as available. Limits that cannot be read are none.
    """
    return max(0, min([_machine(proc), *_groups(proc, cgroups), *_process(proc)]))


def _machine(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each control group that the process is in leaves (version 2; version 1's memory controller)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = cgroups if controllers == "" else cgroups / "memory"
        names = ("memory.max", "memory.current") if controllers == "" else _VERSION_1
        directory = root / path.lstrip("/")
        for each in (directory, *directory.parents):
            yield from _left(each, *names)
            if each == root:
                break


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(directory: Path, limit: str, used: str) -> Iterator[int]:
    try:
        bound = int((directory / limit).read_text())
        yield bound - int((directory / used).read_text()) + _cached(directory / "memory.stat")
    except (OSError, ValueError):  # not there, or "max"
        return


def _cached(stat: Path) -> int:
    """Pages of files that the group would give up before it runs out."""
    found = dict(line.split() for line in stat.read_text().splitlines())
    return int(found.get("inactive_file", 0)) + int(found.get("active_file", 0))


def _process(proc: Path) -> Iterator[int]:
    """What the limits on address space and on data leave."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except OSError:
        return
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    for kind, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY and name in found:
            yield soft - int(found[name][0]) * 1024

"""Runs every benchmark that has rivals or a bound, one after the other, and prints one table of all that they found.

Each runs in a process of its own with its defaults, and hands over lines of measures.py. A benchmark that fails, hangs
or is missing becomes lines "not run" for its targets; what it had found before is lost. Ratios are of contenders that
took turns in one run; figures of different lines were taken minutes apart, and are not to be divided by each other. It
would measure something else on a machine with other work.

    python benchmarks/all.py [--only step keys ...] [--rounds N] [--save]

--save has each benchmark keep its own result, and where all ran writes benchmarks/results/table.md and table.json. The
other benchmarks, which show what else is promised, are listed by --others; `make bench` runs them first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import measures
import table
from measures import Measure
from origin import keep, origin

HERE = Path(__file__).resolve().parent
LIMIT_S = 1800
"""Of a benchmark, whose defaults take a few minutes."""

SCRIPTS: dict[str, tuple[str, ...]] = {
    "keys": ("unique", "index", "index-memory"),
    "step": ("step-rowwise", "step-sgd", "step-torch"),
    "end_to_end": ("end-to-end", "end-to-end-bag"),
    "planning": ("planning",),
    "cache": ("device-cache",),
    "disk": ("disk-reads", "write-back", "disk-training"),
    "reader": ("reader",),
    "growth": ("growth",),
}
"""bench_NAME.py -> the targets that it has lines for."""


@dataclass
class Found:
    """lines: of all that ran. failed: target -> why a benchmark has none for it. seconds: that each took."""

    lines: list[Measure] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def run(script: Path, more: Sequence[str], folder: Path) -> list[Measure]:
    """The lines of a benchmark, whose page goes to our stderr. Raises Failed."""
    if not script.exists():
        raise Failed(f"there is no {script.name}")
    file = folder / f"{script.stem}.json"
    try:
        # stderr is what a person watches; stdout is for the one table
        command = [sys.executable, str(script), "--measures", str(file), *more]
        status = wait_for(command, LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"{script.name} had not ended after {LIMIT_S} s") from None
    if status:
        raise Failed(f"{script.name} ended with status {status}; run it alone to see why")
    if not file.exists():
        raise Failed(f"{script.name} wrote no measures")
    lines = measures.read(file)
    if unknown := {line.target for line in lines} - measures.TARGETS.keys():
        raise Failed(f"{script.name} has lines for {', '.join(sorted(unknown))}, which measures.TARGETS has not")
    return lines


def wait_for(command: Sequence[str], limit_s: float) -> int:
    """The status of a command. Raises TimeoutExpired, and then no process that it began runs beside the next one."""
    with subprocess.Popen(command, stdout=sys.stderr, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except BaseException:  # Ctrl-C does not reach a session of its own
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


class Failed(Exception):
    """A benchmark gave no lines; the message says why."""


def run_all(names: Sequence[str], more: Sequence[str], folder: Path = HERE) -> Found:
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            print(f"== bench_{name}.py", file=sys.stderr, flush=True)
            began = time.monotonic()
            try:
                found.lines += run(folder / f"bench_{name}.py", more, Path(scratch))
            except Failed as error:
                found.failed |= dict.fromkeys(SCRIPTS[name], str(error))
            found.seconds[name] = time.monotonic() - began
    return found


def others() -> list[Path]:
    """The benchmarks that have no lines for the table."""
    return sorted(path for path in HERE.glob("bench_*.py") if path.stem.removeprefix("bench_") not in SCRIPTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = f"of {', '.join(SCRIPTS)}"
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=[*SCRIPTS], metavar="NAME", help=names)
    parser.add_argument("--rounds", type=int, help="of each benchmark, instead of its own number")
    parser.add_argument("--save", action="store_true", help="write results/table.md and .json, and have each one save")
    parser.add_argument("--others", action="store_true", help="list the benchmarks that are not in the table, and end")
    args = parser.parse_args()
    if args.others:
        print("\n".join(str(path) for path in others()))
        return
    more = [*(["--rounds", str(args.rounds)] if args.rounds else []), *(["--save"] if args.save else [])]
    facts = origin()
    found = run_all(args.only, more)
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found.seconds.items())
    facts |= {"took": f"{sum(found.seconds.values()) / 60:.1f} minutes: {took}"}
    lines = table.complete(found.lines, found.failed)
    page = table.page(lines, facts)
    print(page)
    if args.save and set(args.only) == set(SCRIPTS):
        keep("table", page, table.data(lines, facts))
    sys.exit(1 if found.failed else 0)


if __name__ == "__main__":
    main()

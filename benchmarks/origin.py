"""Where a result comes from, and where it is kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def origin(**more: object) -> dict[str, object]:
    """Date, machine and commit, and what else a benchmark says of itself."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {processor()}, Python {platform.python_version()}",
        "commit": commit(),
        **more,
    }


def keep(name: str, page: str, data: Mapping[str, Any]) -> None:
    """Write results/NAME.md and results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(page)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The checked-out commit, with a mark where tracked files differ from it."""
    try:
        words = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(words, cwd=RESULTS.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()

"""The rivals' environments, each made at its first use in benchmarks/.rivals, with the versions that load together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".rivals"

ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    # fbgemm-gpu-cpu 1.7 and 1.9 do not load with this torch; torchrec itself names FBGEMM's build for GPUs.
    "torchrec": (
        ("torch==2.13.0", "numpy"),
        ("fbgemm-gpu-cpu==1.8.0", "tensordict", "torchmetrics==1.0.3", "tqdm", "pyre-extensions"),
        ("--no-deps", "torchrec==1.8.0"),
    ),
    # deepctr-torch names a tensorflow that it does not use.
    "deepctr": (
        ("torch==2.13.0", "scikit-learn", "requests", "pandas", "pyarrow", "tqdm"),
        ("--no-deps", "deepctr-torch==0.3.0"),
    ),
    "disk": (("numpy", "rocksdict==0.3.29", "lmdb==3.0.0"),),
}
"""What pip installs, call by call; where torch is among it, the torch that we measure with."""


class NotInstalled(Exception):
    """A rival's environment cannot be made; the message says why."""


def python_of(name: str) -> Path:
    """The interpreter of a rival's environment. Raises NotInstalled."""
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join(" ".join(step) for step in ENVIRONMENTS[name])
    if not done.exists() or done.read_text() != wanted:
        _must(name, [sys.executable, "-m", "venv", "--clear", str(folder)])
        for step in ENVIRONMENTS[name]:
            _must(name, [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
        done.write_text(wanted)
    return python


def _must(name: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{name} cannot be installed: {error}") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise NotInstalled(f"{name} cannot be installed: {' '.join(command[2:])}: {words}")

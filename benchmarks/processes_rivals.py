"""The rivals of bench_processes.py: their scripts, and the environment of TorchRec, which is made at the first call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes_team import TeamFailed

HERE = Path(__file__).resolve().parent
PLAIN_TORCH = HERE / "baselines" / "dlrm_ddp.py"
TORCHREC = HERE / "baselines" / "dlrm_torchrec.py"
FOLDER = HERE / ".rivals" / "torchrec"

STEPS = (
    ("torch==2.13.0", "numpy"),
    ("fbgemm-gpu-cpu==1.8.0", "tensordict", "torchmetrics==1.0.3", "tqdm", "pyre-extensions"),
    ("--no-deps", "torchrec==1.8.0"),  # which names FBGEMM's build for GPUs
)
"""The one set of versions that load together: fbgemm-gpu-cpu 1.7 and 1.9 do not with this torch."""


def torchrec_python() -> Path:
    """Raises TeamFailed where it cannot be installed."""
    python, done = FOLDER / "bin" / "python", FOLDER / ".installed"
    wanted = "\n".join(" ".join(step) for step in STEPS)
    if not done.exists() or done.read_text() != wanted:
        _must([sys.executable, "-m", "venv", "--clear", str(FOLDER)])
        for step in STEPS:
            _must([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
        done.write_text(wanted)
    return python


def _must(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TeamFailed(f"TorchRec cannot be installed: {error}") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise TeamFailed(f"TorchRec cannot be installed: {' '.join(command[2:])}: {words}")

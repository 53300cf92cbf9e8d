"""One run file trained under a seed and tested, and rivals run beside it."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import torch
from quality_data import Split

from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file
from sfctr.train.fit import train_run

HERE = Path(__file__).resolve().parent
RUN_FILES = HERE / "quality"
BASELINES = HERE / "baselines"
RIVALS = HERE / ".rivals"

RIVAL_LIMIT_S = 1800

DEEPCTR_PACKAGES = ("scikit-learn", "requests", "pandas", "pyarrow", "tqdm")
"""What deepctr-torch 0.3.0 imports, and what its script reads data with; it is itself installed without dependencies,
since it names a tensorflow that it does not use."""


class NotRun(Exception):
    """A rival gave no figures; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What one training gave. auc, logloss: of the test rows, by the model that was best on the validation rows."""

    valid_auc: float
    auc: float
    logloss: float
    epochs: float
    seconds: float
    unseen: Mapping[str, float] = field(default_factory=dict)


FIGURES = ("valid_auc", "auc", "logloss", "epochs", "seconds")


def run_file(name: str) -> RunFile:
    path = RUN_FILES / f"{name}.toml"
    return decode_run_file(path.read_text(), path.name)


@functools.cache
def trained_file(name: str, split: Split, seed: int) -> Tested:
    """`trained` for a run file of benchmarks/quality; asked again, it gives what it found before."""
    return trained(run_file(name), split, seed)


def trained(run: RunFile, split: Split, seed: int) -> Tested:
    """Train `run` on the split's files under `seed`, and test its best model. The run's directory is thrown away."""
    run = msgspec.structs.replace(
        run,
        data=msgspec.structs.replace(run.data, train=(str(split.train),), valid=(str(split.valid),)),
        train=msgspec.structs.replace(run.train, seed=seed),
    )
    began = monotonic()
    with tempfile.TemporaryDirectory() as scratch, train_run(run, Path(scratch) / "run", quiet=True) as result:
        best, test = result.best, result.evaluate(str(split.test))
    assert best is not None
    return Tested(
        valid_auc=best["auc"],
        auc=test["auc"],
        logloss=test["logloss"],
        epochs=best["epoch"],
        seconds=monotonic() - began,
        unseen=test["unseen"],
    )


def median(tests: Sequence[Tested]) -> Tested:
    """Figure by figure; rates of unseen look-ups are alike for all seeds, and are the first's."""
    return Tested(**{n: statistics.median(getattr(t, n) for t in tests) for n in FIGURES}, unseen=tests[0].unseen)


def logistic(kind: str, split: Split) -> Tested:
    """scikit-learn's logistic regression on the same columns."""
    return _asked([sys.executable, str(BASELINES / "sklearn_logistic.py"), kind, *_files(split)])


def deepctr(run: RunFile, split: Split, seed: int) -> Tested:
    """deepctr-torch's DeepFM under the settings of `run`."""
    settings = json.dumps(deepctr_settings(run))
    command = [str(BASELINES / "deepctr_frappe.py"), *_files(split), "--settings", settings, "--seed", str(seed)]
    return _asked([str(_deepctr_python()), *command])


def deepctr_settings(run: RunFile) -> dict[str, Any]:
    (table,) = run.tables
    plateau, args = run.train.plateau, run.model.args
    assert plateau is not None
    return {
        **{name: getattr(table, name) for name in ("num_rows", "dim", "l2", "linear_l2")},
        "init_std": table.init.std,
        **{name: args[name] for name in ("hidden", "dropout", "batch_norm")},
        **{name: getattr(run.train, name) for name in ("batch_size", "epochs", "stop_after", "min_delta")},
        "lr": run.train.optimizer.lr,
        "plateau_factor": plateau.factor,
        "plateau_min_factor": plateau.min_factor,
    }


def _files(split: Split) -> list[str]:
    return [text for name, path in split._asdict().items() for text in (f"--{name}", str(path))]


def _deepctr_python() -> Path:
    """The interpreter of an environment with deepctr-torch, made at the first call, on the torch that we run on."""
    folder = RIVALS / "deepctr"
    python, done = folder / "bin" / "python", folder / ".installed"
    torch_version = f"torch=={torch.__version__.partition('+')[0]}"
    if not done.exists() or done.read_text() != torch_version:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _must([sys.executable, "-m", "venv", "--clear", str(folder)])
        _must([*pip, torch_version, *DEEPCTR_PACKAGES])
        _must([*pip, "--no-deps", "deepctr-torch==0.3.0"])
        done.write_text(torch_version)
    return python


def _asked(command: list[str]) -> Tested:
    *_, line = _must(command).splitlines()
    answer = {"epochs": 1, **json.loads(line)}
    return Tested(**{name: answer[name] for name in FIGURES})


def _must(command: list[str]) -> str:
    """What the command prints. Raises NotRun with its last words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RIVAL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRun(str(error)) from None
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NotRun(f"{Path(command[0]).name} {Path(command[1]).name} ended with {done.returncode}: {words}")
    return done.stdout

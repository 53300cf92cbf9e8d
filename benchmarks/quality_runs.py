"""One run file trained under a seed and tested, and rivals run beside it."""

from __future__ import annotations

import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pyarrow.parquet as pq
from quality_data import Split
from rivals import NotInstalled, python_of

from sfctr.spec.runfile import RunFile
from sfctr.spec.runfile_text import decode_run_file
from sfctr.train.fit import train_run
from sfctr.train.run import Run

HERE = Path(__file__).resolve().parent
RUN_FILES = HERE / "quality"
BASELINES = HERE / "baselines"

RIVAL_LIMIT_S = 1800


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
    began = monotonic()
    with _run(run, (split.train,), (split.valid,), seed) as result:
        best, test = result.best, result.evaluate(str(split.test))
    assert best is not None
    return _tested(best, test, began)


def refitted(run: RunFile, split: Split, seed: int) -> Tested:
    """As `trained`, but what is tested learnt from training and validation rows together.

    The first training finds how long to train; the second, from the start, takes as many steps for each row.
    """
    began = monotonic()
    with _run(run, (split.train,), (split.valid,), seed) as result:
        best = result.best
    assert best is not None
    fewer, more = (sum(pq.read_metadata(path).num_rows for path in paths) for paths in (split[:1], split[:2]))
    steps = max(1, round(best["step"] * more / fewer))
    length = msgspec.structs.replace(
        run.train, epochs=steps, max_steps=steps, evaluate_every=None, stop_after=None, plateau=None
    )
    with _run(msgspec.structs.replace(run, train=length), split[:2], (), seed) as result:
        test = result.evaluate(str(split.test))
    return _tested(best, test, began)


@contextmanager
def _run(run: RunFile, train: Sequence[Path], valid: Sequence[Path], seed: int) -> Iterator[Run]:
    """`run` trained on these files under `seed`, in a directory that is gone afterwards."""
    run = msgspec.structs.replace(
        run,
        data=msgspec.structs.replace(run.data, train=tuple(map(str, train)), valid=tuple(map(str, valid))),
        train=msgspec.structs.replace(run.train, seed=seed),
    )
    with tempfile.TemporaryDirectory() as scratch, train_run(run, Path(scratch) / "run", quiet=True) as result:
        yield result


def _tested(best: Mapping[str, Any], test: Mapping[str, Any], began: float) -> Tested:
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
    try:
        python = python_of("deepctr")
    except NotInstalled as error:
        raise NotRun(str(error)) from None
    return _asked([str(python), *command])


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

"""One run that nothing disturbs, and one that was stopped in the middle, with checkpoints of both kinds."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from stopped_run import StopAt, differences, end_of, run_of, trained, write_data

from sfctr.spec.errors import Terminated
from sfctr.spec.runfile import Checkpoints, RunFile
from sfctr.train import train_run

RUN = msgspec.structs.replace(run_of(), checkpoint=Checkpoints(every_steps=4, every_minutes=0, keep=9, full_every=2))
STOPPED_AT = 14  # with checkpoints of steps 4 (full), 8, 12 (full) and 14


@dataclass(frozen=True)
class Scene:
    """Works in the current directory, which has the data. `home` has the run that was stopped."""

    home: Path
    whole: dict[str, Any]
    run: RunFile = RUN

    def stopped(self, run_dir: str = "run") -> Path:
        """A copy of the stopped run."""
        shutil.copytree(self.home / "stopped", run_dir)
        return Path(run_dir)

    def train(self, run_dir: str = "run", **more) -> None:
        train_run(self.run, Path(run_dir), quiet=True, **more).close()

    def ends_as_if_undisturbed(self, run_dir: str = "run") -> bool:
        """After it has gone on."""
        self.train(run_dir, resume=True)
        found = differences(end_of(run_dir), self.whole)
        print(*found, sep="\n")
        return not found

    def checkpoints(self, run_dir: str = "run") -> list[int]:
        return sorted(int(path.name[-12:]) for path in Path(run_dir, "checkpoints").glob("step-" + 12 * "?"))


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        write_data()
        trained(RUN, "whole")
        StopAt(patch, STOPPED_AT)
        with pytest.raises(Terminated):
            train_run(RUN, Path("stopped"), quiet=True)
        yield home, end_of("whole")


@pytest.fixture
def scene(home, tmp_path, monkeypatch):
    directory, whole = home
    monkeypatch.chdir(tmp_path)
    for name in ("train", "valid"):
        shutil.copy(directory / f"{name}.parquet", ".")
    return Scene(directory, whole)

"""SIGKILL at twenty moments across a save, and a full disk: a run goes on as if nothing had been."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stopped_run import differences, end_of

from sfctr.checkpoint.disk import Disk
from sfctr.spec.errors import CheckpointError
from sfctr.spec.runfile_text import render_run_file

MOMENTS = 20

LIVES = """
# Forks a process for each life, so that torch is loaded once; argv: moments, of how many. Run "killed-N" is killed in
# its third save, before or in the middle of an operation on the file system, and goes on. How many operations a save
# takes depends on what is trained beside it: one that has fewer than the moment is killed as the next save begins.
import os, signal, sys
import pandas, pyarrow.parquet
import sfctr.train.fit
from sfctr.checkpoint import directory, disk
from sfctr.cli.main import main

SAVE = 3

class Killing(disk.Disk):
    kill_at = None

    def __init__(self):
        self.saves = self.done = 0

    def note(self, name, *args):
        if name == "make_directory" and args[0].name.endswith(".new"):
            self.saves += 1
        if self.saves == SAVE:
            self.done += 1
        if self.saves >= SAVE and self.kill_at:
            if self.done == self.kill_at or self.saves > SAVE:
                if name == "write":
                    super().write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)

def noting(name):
    def method(self, *args):
        self.note(name, *args)
        return getattr(disk.Disk, name)(self, *args)
    return method

for name in [name for name in vars(disk.Disk) if not name.startswith("_")]:
    setattr(Killing, name, noting(name))

def life(run_dir, kill_at=None):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{run_dir}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        made = []
        def make():
            made.append(Killing())
            made[-1].kill_at = kill_at
            return made[-1]
        directory.Disk = make
        code = main(["train", "run.toml", "--run", run_dir, "--resume"])
        os.write(tell, str(max(each.done for each in made)).encode())
        os._exit(code)
    os.close(tell)
    status = os.waitpid(pid, 0)[1]
    return status, os.read(told, 20)

status, done = life("whole")
assert status == 0 and int(done) > 40, (status, done)
moments, of = [int(n) for n in sys.argv[1].split(",")], int(sys.argv[2])
for moment in moments:
    run_dir = f"killed-{moment}"
    status, _ = life(run_dir, 1 + moment * (int(done) - 1) // (of - 1))
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, open(f"{run_dir}.log").read()
    status, _ = life(run_dir)
    assert status == 0, open(f"{run_dir}.log").read()
"""


def killed_at(scene, moments) -> None:
    Path("run.toml").write_text(render_run_file(scene.run))
    command = [sys.executable, "-c", LIVES, ",".join(map(str, moments)), str(MOMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert list(Path("rows").iterdir()) == []
    for moment in moments:
        assert differences(end_of(f"killed-{moment}"), scene.whole) == []
        assert not [path for path in Path(f"killed-{moment}", "checkpoints").iterdir() if "." in path.name]


@pytest.mark.processes
@pytest.mark.slow
def test_sigkill_at_some_moments_of_a_save(scene):
    killed_at(scene, (7, MOMENTS - 1))


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(1000)
def test_sigkill_at_twenty_moments_of_a_save(scene):
    killed_at(scene, range(MOMENTS))


class FullDisk(Disk):
    """Has no room left once `bytes_left` have been written, until there is an end to that."""

    bytes_left = 0

    def write(self, file, data):
        FullDisk.bytes_left -= data.nbytes
        if FullDisk.bytes_left < 0:
            super().write(file, data[: data.nbytes // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.name))
        super().write(file, data)


@pytest.mark.parametrize(("bytes_left", "kept"), [(0, []), (150_000, [4]), (250_000, [4, 8])])
def test_a_full_disk_in_a_checkpoint(scene, monkeypatch, bytes_left, kept):
    monkeypatch.setattr("sfctr.checkpoint.directory.Disk", FullDisk)
    monkeypatch.setattr(FullDisk, "bytes_left", bytes_left)
    with pytest.raises(CheckpointError, match=r"the checkpoint could not be saved .*No space left on device.*intact"):
        scene.train()
    assert scene.checkpoints() == kept
    monkeypatch.setattr(FullDisk, "bytes_left", 1 << 40)
    assert scene.ends_as_if_undisturbed()


FULL_ROWS = """
import sys
from sfctr.cli.main import main
sys.exit(main(["train", "run.toml", "--run", "run", "--resume"]))
"""


@pytest.mark.processes
def test_a_full_disk_in_a_segment_write(scene):
    """On a file system of its own, which other processes do not see."""
    Path("run.toml").write_text(render_run_file(scene.run))
    Path("rows").mkdir()
    mounted = "mount -t tmpfs -o size=64k none rows && "
    in_space = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"]), "bash", "-c"]
    if subprocess.run([*in_space, mounted + "true"], capture_output=True).returncode != 0:
        pytest.skip("no file system may be mounted here")
    command = [*in_space, f'{mounted} exec "$0" -c "$1"', sys.executable, FULL_ROWS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "rows" in done.stderr and "o space left on device" in done.stderr, done.stderr
    assert scene.checkpoints() != []
    assert scene.ends_as_if_undisturbed()

"""A run that is killed again and again, at any moment, ends with the bits of one that was not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from stopped_run import differences, end_of, run_of, write_data

from sfctr.export import apply_deltas
from sfctr.spec.runfile import Export
from sfctr.spec.runfile_text import render_run_file
from sfctr.train import Run

LIVES = """
# Forks a process for each life, so that torch is loaded once; argv: seed, kills.
import json, os, random, signal, sys, time
import pandas, pyarrow.parquet
import sfctr.train.fit
from sfctr.cli.main import main
from sfctr.train.trainer import Trainer

train = Trainer.run

def life(run_dir, kill_after):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(f"{run_dir}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        Trainer.run = lambda trainer: (os.write(tell, b"x"), train(trainer))
        os._exit(main(["train", "run.toml", "--run", run_dir, "--resume"]))
    os.close(tell)
    os.read(told, 1)  # it trains now, or has ended
    os.close(told)
    began = time.monotonic()
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    return status, time.monotonic() - began

draw, kills, runs = random.Random(int(sys.argv[1])), int(sys.argv[2]), ["whole"]
status, whole_s = life("whole", None)
assert status == 0
while kills > 0:
    runs.append(f"killed-{len(runs)}")
    while (status := life(runs[-1], draw.uniform(0, whole_s) if kills > 0 else None)[0]) != 0:
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, open(f"{runs[-1]}.log").read()
        kills -= 1
print(json.dumps(runs))
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_ten_kills_at_random_moments_change_no_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data()
    Path("run.toml").write_text(render_run_file(msgspec.structs.replace(run_of(), export=Export(delta_every=3))))
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    command = [sys.executable, "-c", LIVES, str(seed), "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert list(Path("rows").iterdir()) == []
    whole, *killed = json.loads(done.stdout.splitlines()[-1])
    for run_dir in killed:
        assert differences(end_of(run_dir), end_of(whole)) == []
        assert not list(Path(run_dir, "checkpoints").glob("*.new"))
        assert base_and_deltas(run_dir) == full(run_dir)


def base_and_deltas(run_dir: str) -> dict[str, bytes]:
    base, deltas = Path(run_dir, "deltas", "base"), sorted(Path(run_dir, "deltas").glob("0*"))
    apply_deltas(base, deltas, Path("applied"))
    return {path.name: path.read_bytes() for path in Path("applied").glob("*.p*")}


def full(run_dir: str) -> dict[str, bytes]:
    with Run.load(run_dir, "last") as run:
        run.export("full")
    return {path.name: path.read_bytes() for path in Path("full").glob("*.p*")}

"""Files of a checkpoint that are damaged, torn or missing: the newest sound one is used, and the rest is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfctr.telemetry import Recorder

NEWEST = "step-000000000014"
FULL, CHANGES = 12, 14
KINDS = {
    "manifest": ("manifest.json", FULL),
    "run file": ("run.toml", FULL),
    "dense part": ("dense.safetensors", FULL),
    "state": ("state.json", FULL),
    "rows, full": ("rows/000-000.rows", 8),  # the checkpoint before has the same file
    "rows, changes": ("rows/000-001.rows", FULL),
    "waiting": ("waiting/*.parquet", FULL),
    "clock": ("clock.parquet", FULL),
    "strings": ("strings/*.parquet", FULL),
}


def same_files(scene, run: Path, pattern: str) -> list[Path]:
    """Of the newest checkpoint in the copy, and of all that share its bytes in what was copied."""
    [name, *_] = (
        str(p.relative_to(run / "checkpoints" / NEWEST)) for p in (run / "checkpoints" / NEWEST).glob(pattern)
    )
    source = scene.home / "stopped" / "checkpoints"
    sharing = [path for path in source.glob(f"*/{name}") if path.samefile(source / NEWEST / name)]
    return [run / path.relative_to(scene.home / "stopped") for path in sharing]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def check(scene, caplog, damaged: str, goes_on_from: int) -> None:
    with Recorder():
        assert scene.ends_as_if_undisturbed()
    assert f"run: going on from step {goes_on_from}" in caplog.text
    assert f"{NEWEST}/{damaged}" in caplog.text and "an older checkpoint is used" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_byte(scene, caplog, kind):
    pattern, goes_on_from = KINDS[kind]
    files = same_files(scene, scene.stopped(), pattern)
    for path in files:
        flip(path)
    check(scene, caplog, str(files[0]).partition("checkpoints/")[2].partition("/")[2], goes_on_from)


@pytest.mark.parametrize("kind", ["manifest", "rows, changes"])
def test_a_torn_last_file(scene, caplog, kind):
    run = scene.stopped()
    tear(run / "checkpoints" / NEWEST / KINDS[kind][0])
    check(scene, caplog, KINDS[kind][0], FULL)


@pytest.mark.parametrize("kind", ["rows, full", "rows, changes"])
def test_a_missing_segment(scene, caplog, kind):
    run = scene.stopped()
    (run / "checkpoints" / NEWEST / KINDS[kind][0]).unlink()
    check(scene, caplog, KINDS[kind][0], FULL)
    end = json.loads((run / "history.jsonl").read_text().splitlines()[-1])  # what its report shows
    assert any("an older checkpoint is used" in notice for notice in end["notices"])

"""Checkpoints are complete or absent; the newest sound one is found, and only those that are kept stay."""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress

import pytest
from recording import RecordingDisk
from small_run import SmallRun, SnapshotTwin

from sfctr.checkpoint import CheckpointDirectory, Checkpointer, open_checkpoint
from sfctr.checkpoint.disk import Disk, FileFacts, link_or_copy, remove_tree
from sfctr.checkpoint.manifest import read_manifest
from sfctr.spec.errors import CheckpointError


@pytest.fixture
def saved(tmp_path):
    """A directory with the checkpoints of steps 1 to 3."""
    return CheckpointDirectory(save_steps(tmp_path / "c", (1, 2, 3)))


def save_steps(path, steps, **options):
    run = SmallRun()
    with Checkpointer(path, SnapshotTwin(run.store), **({"keep": 9} | options)) as checkpointer:
        for step in steps:
            run.train(step)
            checkpointer.save(run.state(best_step=1))
    run.close()
    return path


def flip(path, at=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.unlink()  # other names of the file keep what it was
    path.write_bytes(data)


FILES = ("run.toml", "dense.safetensors", "state.json", "clock.parquet", "waiting/002.parquet", "rows/000-002.rows")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_file_is_named_and_the_one_before_used(saved, name, damage):
    damage(saved.of_step(3) / name)
    newest = saved.newest()
    assert newest.path == saved.of_step(2)
    [why] = newest.skipped
    assert f"step-000000000003/{name}" in why
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(saved.of_step(3))


def test_every_flipped_bit_of_a_manifest_is_found_or_means_nothing(saved):
    path = saved.of_step(1) / "manifest.json"
    whole, meant = path.read_bytes(), read_manifest(saved.of_step(1))
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 7
        path.write_bytes(damaged)
        with suppress(CheckpointError):
            assert read_manifest(saved.of_step(1)) == meant


def test_damage_to_a_linked_file_is_damage_to_all_that_have_it(saved):
    flip_in_place = saved.of_step(2) / "rows/000-000.rows"
    data = bytearray(flip_in_place.read_bytes())
    data[-1] ^= 1
    flip_in_place.write_bytes(data)
    newest = saved.newest()
    assert newest.path is None and len(newest.skipped) == 3


def test_files_are_listed_with_what_is_wrong_with_each(saved):
    flip(saved.of_step(3) / "state.json")
    files = open_checkpoint(saved.of_step(3), is_checked=True).files()
    listed = {name: (size, problem) for name, size, problem in files}
    assert {*FILES, "rows/000-000.rows"} < listed.keys()
    assert [name for name, (_, problem) in listed.items() if problem] == ["state.json"]
    assert "has other bytes" in listed["state.json"][1]
    assert all((saved.of_step(3) / name).stat().st_size == size for name, (size, _) in listed.items())


def test_a_damaged_one_gives_way_to_a_sound_one_of_its_step_that_was_set_aside(saved):
    shutil.copytree(saved.of_step(3), saved.path / "step-000000000003.old")
    flip(saved.of_step(3) / "state.json")
    assert saved.newest().path == saved.path / "step-000000000003.old"
    saved.recover()
    assert (saved.newest().path, saved.newest().skipped) == (saved.of_step(3), ())


def test_a_later_version_is_refused(saved):
    path = saved.of_step(3) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    with pytest.raises(
        CheckpointError, match=r"'sfctr\.checkpoint' version 3 was found and .* version 1 or 2 is needed"
    ):
        open_checkpoint(saved.of_step(3))


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    assert directory.newest().path is None and CheckpointDirectory(tmp_path / "none").newest().path is None
    for name in ("step-1", "other", "step-000000000001.txt"):
        (tmp_path / name).mkdir()
    directory.recover()
    assert (directory.newest().path, directory.steps(), len(list(tmp_path.iterdir()))) == (None, [], 3)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        open_checkpoint(tmp_path / "none")


def test_the_last_and_the_best_are_kept(tmp_path):
    path = save_steps(tmp_path / "c", (1, 2, 3, 4, 5), keep=2)
    assert CheckpointDirectory(path).steps() == [1, 4, 5]
    assert sorted(each.name for each in path.iterdir()) == [f"step-{step:012}" for step in (1, 4, 5)]
    for step in (1, 4, 5):
        open_checkpoint(path / f"step-{step:012}")


def test_newer_ones_of_a_course_that_was_left_go_when_the_next_is_saved(saved):
    flip(saved.of_step(3) / "state.json")
    run = SmallRun()
    run.train(2)
    with Checkpointer(saved.path, SnapshotTwin(run.store), keep=1) as checkpointer:
        checkpointer.save(run.state())
    run.close()
    assert saved.steps() == [2]
    assert open_checkpoint(saved.of_step(2)).manifest.kind == "full"


def test_what_a_killed_process_left_is_put_in_order(saved):
    saved.of_step(3).rename(saved.path / "step-000000000003.old")
    saved.of_step(1).rename(saved.path / "step-000000000001.old")
    (saved.path / "step-000000000001.old" / "manifest.json").unlink()
    (saved.path / "step-000000000007.new").mkdir()
    assert saved.newest().path == saved.path / "step-000000000003.old"
    saved.recover()
    assert saved.newest().path == saved.of_step(3)
    assert sorted(each.name for each in saved.path.iterdir()) == [f"step-{step:012}" for step in (2, 3)]


def test_a_step_saved_again_replaces_what_was_saved_of_it(tmp_path):
    run = SmallRun()
    run.train(1)
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store), keep=1) as checkpointer:
        for facts in ({"n": 1}, {"n": 2}):
            checkpointer.save(run.state(facts=facts))
    run.close()
    [path] = (tmp_path / "c").iterdir()
    assert open_checkpoint(path).facts == {"n": 2}


class NoLinks(Disk):
    def link(self, source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")


def test_rows_are_copied_where_they_cannot_be_linked(tmp_path):
    path = save_steps(tmp_path / "c", (1, 2), disk=NoLinks())
    first, second = (path / f"step-{step:012}" / "rows/000-000.rows" for step in (1, 2))
    assert first.read_bytes() == second.read_bytes() and not first.samefile(second)
    assert open_checkpoint(path / "step-000000000002").manifest.chain == (1, 2)


def test_a_copy_of_damaged_rows_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"rows")
    with pytest.raises(OSError, match="has other bytes than were written"):
        link_or_copy(NoLinks(), tmp_path / "a", tmp_path / "b", FileFacts(bytes=4, crc32=1))


def test_a_tree_loses_its_manifest_first(saved):
    disk = RecordingDisk()
    remove_tree(disk, saved.of_step(3))
    assert disk.done[0].path.name == "manifest.json"
    assert saved.steps() == [1, 2]

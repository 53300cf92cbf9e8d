"""After a loss of power at any moment of a save there is a sound checkpoint: the one before, or the new one."""

from __future__ import annotations

import shutil

import pytest
from power import crashes, write_tree
from recording import Operation, RecordingDisk
from small_run import SmallRun, SnapshotTwin

from sfctr.checkpoint import CheckpointDirectory, Checkpointer
from sfctr.checkpoint.disk import Disk
from sfctr.checkpoint.manifest import read_manifest


class WithoutSync(Disk):
    """No power goes here."""

    def sync_directory(self, path):
        pass


class Scene:
    """A checkpoint of step 1, and the operations of the save after it."""

    def __init__(self, tmp_path, last_step: int, *, full: bool, keep: int = 1) -> None:
        run = SmallRun()
        snapshot, disk, self.root = SnapshotTwin(run.store), RecordingDisk(), tmp_path / "root"
        self.root.mkdir()
        path = self.root / "checkpoints"
        run.train(1)
        with Checkpointer(path, snapshot, keep=keep, full_every=1 if full else 8, disk=disk) as checkpointer:
            checkpointer.save(run.state())
            checkpointer.wait()
            self.first = read_manifest(checkpointer.last_saved.path)
            shutil.copytree(self.root, tmp_path / "before")
            begin = len(disk.done)
            run.train(last_step)
            checkpointer.save(run.state(facts={"second": True}))
            checkpointer.wait()
            self.second = read_manifest(checkpointer.last_saved.path)
        run.close()
        shutil.rmtree(self.root)
        (tmp_path / "before").rename(self.root)
        self.operations: list[Operation] = disk.done[begin:]


@pytest.mark.parametrize(("last_step", "full", "keep"), [(3, False, 1), (3, True, 2), (1, False, 1)])
def test_one_of_the_two_is_there_whole_whatever_was_lost(tmp_path, last_step, full, keep):
    scene = Scene(tmp_path, last_step, full=full, keep=keep)
    assert scene.second.kind == ("full" if full else "changes")
    found = []
    for length, tree in crashes(scene.root, scene.operations):
        left = write_tree(tree, tmp_path / "left")
        directory = CheckpointDirectory(left / "checkpoints", WithoutSync())
        newest = directory.newest()
        assert newest.path is not None, f"none after {length} operations: {newest.skipped}"
        manifest = read_manifest(newest.path)
        assert manifest in (scene.first, scene.second)
        directory.recover()
        assert read_manifest(directory.newest().path) == manifest
        assert all("." not in each.name for each in directory.path.iterdir())
        found.append((length, manifest == scene.second))
        shutil.rmtree(left)
    assert {is_second for _, is_second in found} == {False, True}
    assert all(is_second for length, is_second in found if length == len(scene.operations))
    assert len(scene.operations) > 30 and len(found) > 100


def test_the_model_tells_a_save_that_does_not_sync(tmp_path):
    scene = Scene(tmp_path, 3, full=True)
    for name in ("sync", "sync_directory"):
        careless = [operation for operation in scene.operations if operation.name != name]
        assert any(is_lost(tree, tmp_path) for _, tree in crashes(scene.root, careless))


def is_lost(tree, tmp_path):
    left = write_tree(tree, tmp_path / "left")
    newest = CheckpointDirectory(left / "checkpoints").newest()
    shutil.rmtree(left)
    return newest.path is None

"""After a loss of power at any moment of a save there is a sound checkpoint: the one before, or the new one."""

from __future__ import annotations

import shutil

import pytest
from power import crashes, write_tree
from ranked import RankOfRun, in_turn
from ranks import in_ranks
from recording import Operation, RecordingDisk
from small_run import TABLES, SmallRun, SnapshotTwin

import sfctr
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


class SceneOfRanks:
    """The same of a run that two ranks hold, with what the disk did for both of them, in its order."""

    def __init__(self, tmp_path, last_step: int) -> None:
        whole, self.root = SmallRun(), tmp_path / "root"
        self.root.mkdir()
        disk, path = RecordingDisk(), self.root / "checkpoints"

        def body(peers):
            with sfctr.Store(TABLES, seed=5) as store:
                rank = RankOfRun(whole, peers, store=store)
                with Checkpointer(path, store, keep=1, peers=peers, disk=disk) as checkpointer:
                    rank.follow()
                    checkpointer.save(rank.state())
                    checkpointer.wait()
                    first = read_manifest(checkpointer.last_saved.path)
                    in_turn(peers, go_on)
                    rank.follow()
                    checkpointer.save(rank.state(facts={"second": True}))
                    checkpointer.wait()
                    return first, read_manifest(checkpointer.last_saved.path)

        def go_on():
            shutil.copytree(self.root, tmp_path / "before")
            self.begin = len(disk.done)
            whole.train(last_step)

        whole.train(1)
        self.first, self.second = in_ranks(2, body)[0]
        whole.close()
        shutil.rmtree(self.root)
        (tmp_path / "before").rename(self.root)
        self.operations: list[Operation] = disk.done[self.begin :]


def test_the_same_where_two_ranks_save_whichever_has_come_how_far(tmp_path):
    scene = SceneOfRanks(tmp_path, 3)
    assert (scene.second.kind, scene.second.version) == ("changes", 2)
    check(scene, tmp_path)


@pytest.mark.parametrize(("last_step", "full", "keep"), [(3, False, 1), (3, True, 2), (1, False, 1)])
def test_one_of_the_two_is_there_whole_whatever_was_lost(tmp_path, last_step, full, keep):
    scene = Scene(tmp_path, last_step, full=full, keep=keep)
    assert scene.second.kind == ("full" if full else "changes")
    check(scene, tmp_path)


def check(scene, tmp_path) -> None:
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

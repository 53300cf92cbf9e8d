"""Whatever the disk refuses of a checkpoint is named, those before stay, and the next one is whole."""

from __future__ import annotations

import errno
import shutil
import threading

import pytest
from recording import RecordingDisk
from small_run import SmallRun, SnapshotTwin, Watched
from test_checkpoints import resumed

from sfctr.checkpoint import CheckpointDirectory, Checkpointer
from sfctr.spec.errors import CheckpointError


class SecondSave:
    """A run whose first checkpoint was saved, and that was trained on: the second can be saved again and again."""

    def __init__(self, tmp_path) -> None:
        self.run = SmallRun()
        self.snapshot = SnapshotTwin(self.run.store)
        self.run.train(1)
        with Checkpointer(tmp_path / "first", self.snapshot) as checkpointer:
            checkpointer.save(self.run.state())
        self.first, self.rows = tmp_path / "first", [group.now for group in self.snapshot.groups]
        self.run.train(2)

    def checkpointer(self, path, disk) -> Checkpointer:
        shutil.copytree(self.first, path)
        self.snapshot.needs_full = False
        for group, rows in zip(self.snapshot.groups, self.rows, strict=True):
            group.before = rows
        return Checkpointer(path, self.snapshot, base=path / "step-000000000001", disk=disk)


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    second = SecondSave(tmp_path_factory.mktemp("second"))
    yield second
    second.run.close()


@pytest.mark.parametrize(("error", "torn"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_every_operation_may_fail(tmp_path, second, error, torn):
    with second.checkpointer(tmp_path / "c", whole := RecordingDisk()) as checkpointer:
        checkpointer.save(second.run.state())
    begin = next(number for number, operation in enumerate(whole.done) if operation.name == "make_directory")
    assert whole.tried - begin > 40
    for fail_at in range(begin, whole.tried):
        path, disk = tmp_path / str(fail_at), RecordingDisk(fail_at, error, torn=torn)
        checkpointer = second.checkpointer(path, disk)
        checkpointer.save(second.run.state())
        with pytest.raises(CheckpointError, match=r"step-000000000002: the checkpoint could not be .*by the test"):
            checkpointer.wait()
        newest = CheckpointDirectory(path).newest()
        renamed = disk.done[-1].name == "rename"  # whether its name lasts is not known, but it is whole
        assert (newest.path.name, newest.skipped) == (f"step-{2 if renamed else 1:012}", ())
        assert [each.name for each in path.iterdir() if "." in each.name] == []
        checkpointer.save(second.run.state())
        checkpointer.close()
        assert checkpointer.last_saved.kind == "full"
        newest = CheckpointDirectory(path).newest()
        assert (newest.path.name, newest.skipped) == (f"step-{2:012}", ())
    last, _ = resumed(newest.path)
    assert last.contents() == second.run.contents()
    last.close()


def test_rows_that_cannot_be_read_back_are_named_and_training_is_let_go_on(tmp_path):
    run = SmallRun()
    run.train(1)
    snapshot = SnapshotTwin(run.store)

    def refuse(group):
        if group == 1:
            raise OSError(errno.EIO, "Input/output error", "segment-1.rows")

    watched = Watched(snapshot, refuse)
    with Checkpointer(tmp_path / "c", watched) as checkpointer:
        checkpointer.save(run.state())
        with pytest.raises(CheckpointError, match=r"segment-1\.rows: Input/output error"):
            checkpointer.wait()
        assert snapshot.needs_full and not snapshot.is_open
        watched.taking = lambda group: None
        checkpointer.save(run.state())
    assert CheckpointDirectory(tmp_path / "c").steps() == [1]
    run.close()


def test_after_a_failed_write_the_next_save_is_tried_and_says_so(tmp_path, caplog):
    run = SmallRun()
    run.train(1)
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store), disk=RecordingDisk(3)) as checkpointer:
        checkpointer.save(run.state())
        checkpointer.save(run.state())
        checkpointer.wait()
        assert checkpointer.last_saved is not None and checkpointer.last_saved.kind == "full"
    assert "by the test" in caplog.text and "the next one is being tried" in caplog.text
    run.close()


def test_two_failed_writes_in_a_row_are_raised(tmp_path, monkeypatch):
    run = SmallRun()
    run.train(1)

    def refuse(*_args):
        raise OSError(errno.ENOSPC, "no space, says the test")

    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        with monkeypatch.context() as patched:
            patched.setattr("sfctr.checkpoint.writer.finish_checkpoint", refuse)
            checkpointer.save(run.state())
            checkpointer.save(run.state())
            with pytest.raises(CheckpointError, match="no space, says the test"):
                checkpointer.save(run.state())
        checkpointer.save(run.state())
    assert CheckpointDirectory(tmp_path / "c").steps() == [1]
    run.close()


def test_a_snapshot_that_cannot_begin_is_ended(tmp_path, monkeypatch):
    run = SmallRun()
    run.train(1)
    snapshot = SnapshotTwin(run.store)

    def refuse(*_args):
        raise RuntimeError("can't start new thread")

    with Checkpointer(tmp_path / "c", snapshot) as checkpointer:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                checkpointer.save(run.state())
        assert snapshot.needs_full and not snapshot.is_open
    run.close()


def test_an_error_of_the_run_is_not_hidden_by_one_of_the_writer(tmp_path):
    run = SmallRun()
    run.train(1)
    with (
        pytest.raises(ZeroDivisionError),
        Checkpointer(tmp_path / "c", SnapshotTwin(run.store), disk=RecordingDisk(3)) as checkpointer,
    ):
        checkpointer.save(run.state())
        raise ZeroDivisionError
    run.close()


def test_an_old_one_that_cannot_be_removed_is_said_and_no_error(tmp_path, caplog):
    run = SmallRun()

    class KeepsAll(RecordingDisk):
        def remove(self, path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store), keep=1, disk=KeepsAll()) as checkpointer:
        for step in (1, 2):
            run.train(step)
            checkpointer.save(run.state())
    run.close()
    assert "an older checkpoint could not be removed (Read-only file system)" in caplog.text
    assert CheckpointDirectory(tmp_path / "c").steps() == [2]

"""Saved while training goes on, a run comes back bit for bit, into any tiers, and goes on as if unbroken."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import small_run
import torch
from small_run import SmallRun, SnapshotTwin, Watched

import sfctr
from sfctr.checkpoint import CheckpointDirectory, Checkpointer, open_checkpoint, require_savable, rows_file
from sfctr.spec.errors import CheckpointError, ModelError
from sfctr.telemetry import Recorder


def the_store_itself(store):
    """Is a snapshot by the native core."""
    return store


SNAPSHOTS = pytest.mark.parametrize("snapshot_of", [SnapshotTwin, the_store_itself])
RAM = sfctr.Tiers(disk=False)
SPILLING = sfctr.Tiers(ram=8000)
DEVICE = sfctr.Tiers(device="64kB")


def resumed(path, tiers=RAM):
    """A new run filled from a checkpoint."""
    run, checkpoint = SmallRun(tiers=tiers), open_checkpoint(path)
    with torch.no_grad():
        run.model[0].weight.add_(1)
    checkpoint.load_store(run.store)
    checkpoint.load_model(run.model)
    checkpoint.load_optimizer(run.optimizer, run.model, run.store)
    checkpoint.restore_random_states()
    return run, checkpoint


@SNAPSHOTS
@pytest.mark.parametrize(
    ("before", "after"),
    [(RAM, RAM), (RAM, SPILLING), (SPILLING, RAM), (SPILLING, SPILLING), (RAM, DEVICE), (DEVICE, RAM)],
)
def test_a_resumed_run_ends_as_the_unbroken_one(tmp_path, snapshot_of, before, after):
    run = SmallRun(tiers=before)
    with Checkpointer(tmp_path / "c", snapshot_of(run.store), keep=9) as checkpointer:
        for step in (3, 6, 9, 12):
            run.train(step)
            checkpointer.save(run.state(trainer={"step": step, "loss": 0.1 + 0.2}, facts={"auc": 0.5}))
    at_12 = run.contents()
    run.train(20)
    again, checkpoint = resumed(tmp_path / "c" / "step-000000000012", after)
    assert again.contents() == at_12
    assert checkpoint.trainer == {"step": 12, "loss": 0.1 + 0.2}
    assert checkpoint.facts == {"auc": 0.5}
    assert checkpoint.run == run.run
    assert (checkpoint.step, checkpoint.manifest.kind, checkpoint.manifest.chain) == (12, "changes", (3, 6, 9, 12))
    again.train(20)
    assert again.contents() == run.contents()
    for each, tiers in ((run, before), (again, after)):
        assert all(group.native.is_spilling for group in each.store.groups) == (tiers is SPILLING)
        assert (each.store.counters()["device_rows"] > 0) == (tiers is DEVICE)
        each.close()
    counts = open_checkpoint(checkpoint.directory).manifest.membership["user"]
    assert min(counts["removed"] + counts["expired"], counts["waiting"], counts["refused"]) > 0


@SNAPSHOTS
def test_every_checkpoint_stands_alone(tmp_path, snapshot_of):
    run, states = SmallRun(), {}
    with Checkpointer(tmp_path / "c", snapshot_of(run.store), keep=9, full_every=3) as checkpointer:
        for step in range(1, 8):
            run.train(step)
            states[step] = run.contents()
            checkpointer.save(run.state())
    run.close()
    for step in range(1, 8):
        (tmp_path / "c" / f"step-{step:012}").rename(tmp_path / "alone")
        again, checkpoint = resumed(tmp_path / "alone")
        assert again.contents() == states[step]
        assert checkpoint.manifest.chain == tuple(range((step - 1) // 3 * 3 + 1, step + 1))
        again.close()
        for path in sorted((tmp_path / "alone").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "alone").rmdir()


@SNAPSHOTS
def test_a_resumed_run_adds_changes_to_what_it_came_from(tmp_path, snapshot_of):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", snapshot_of(run.store)) as checkpointer:
        run.train(3)
        checkpointer.save(run.state())
    run.close()
    base = tmp_path / "c" / "step-000000000003"
    again, _ = resumed(base)
    snapshot = snapshot_of(again.store)
    snapshot.mark_saved()
    with Checkpointer(tmp_path / "c", snapshot, base=base) as checkpointer:
        again.train(5)
        checkpointer.save(again.state())
        checkpointer.wait()
        assert checkpointer.last_saved.kind == "changes"
    third, checkpoint = resumed(tmp_path / "c" / "step-000000000005")
    assert third.contents() == again.contents()
    assert checkpoint.manifest.chain == (3, 5)
    again.close(), third.close()


@SNAPSHOTS
def test_rows_of_earlier_checkpoints_are_links_and_only_changed_rows_are_written(tmp_path, snapshot_of):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", snapshot_of(run.store)) as checkpointer:
        run.train(8)
        checkpointer.save(run.state())
        checkpointer.wait()
        first = checkpointer.last_saved
        run.train(9)
        checkpointer.save(run.state())
        checkpointer.wait()
        second = checkpointer.last_saved
    num_rows = sum(run.store.num_rows(t.name) for t in small_run.TABLES if not t.dense)
    run.close()
    assert (first.kind, first.step, second.kind, second.step) == ("full", 8, "changes", 9)
    assert 0 < second.num_rows < first.num_rows < num_rows
    assert second.num_bytes < first.num_bytes
    assert (first.path / "rows/000-000.rows").samefile(second.path / "rows/000-000.rows")


def test_what_is_saved_is_the_run_as_it_was_though_training_went_on(tmp_path):
    run = SmallRun()
    run.train(4)
    go_on = threading.Event()
    snapshot = Watched(SnapshotTwin(run.store), lambda _group: go_on.wait(60))
    with Checkpointer(tmp_path / "c", snapshot) as checkpointer:
        saved, memory = run.contents(), run.store.waiting("user").keys.tolist()
        assert checkpointer.save(run.state())
        assert not checkpointer.save(run.state(), skip_if_busy=True)
        run.train(7)
        assert checkpointer.is_busy and not CheckpointDirectory(tmp_path / "c").steps()
        go_on.set()
    assert run.contents() != saved and run.store.waiting("user").keys.tolist() != memory
    again, _ = resumed(tmp_path / "c" / "step-000000000004")
    assert again.contents() == saved
    run.close(), again.close()


def test_groups_are_taken_in_turn(tmp_path, monkeypatch):
    """An update of any of them may wait for room."""
    monkeypatch.setattr(rows_file, "BLOCK_BYTES", 200)
    run, turns = SmallRun(), []
    run.train(4)
    with Checkpointer(tmp_path / "c", Watched(SnapshotTwin(run.store), turns.append)) as checkpointer:
        checkpointer.save(run.state())
    run.close()
    assert turns[:9] == [0, 1, 2] * 3


def test_pause_and_writing_are_spans_of_the_run(tmp_path):
    run = SmallRun()
    with Recorder() as recorder, Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state())
        checkpointer.wait()
        spans = ("checkpoint", "checkpoint write", "checkpoint wait")
        assert [recorder.counts()[name] for name in spans] == [1, 1, 1]
        assert checkpointer.last_saved.pause_s > 0
    run.close()


@SNAPSHOTS
def test_a_key_that_went_and_came_back_has_its_new_row(tmp_path, snapshot_of):
    run = SmallRun()
    keys = np.arange(60, dtype=np.uint64)
    with Checkpointer(tmp_path / "c", snapshot_of(run.store), keep=9) as checkpointer:
        run.train(3)
        checkpointer.save(run.state())
        checkpointer.wait()
        assert run.store.remove("item", keys) > 0
        checkpointer.save(run.state())
        checkpointer.wait()
        run.train(4)
        checkpointer.save(run.state())
        checkpointer.wait()
        assert run.store.remove("item", keys[:20]) > 0
        wanted = run.contents()
        checkpointer.save(run.state())
    again, checkpoint = resumed(tmp_path / "c" / "step-000000000004")
    assert again.contents() == wanted
    assert checkpoint.manifest.chain == (3, 3, 4, 4)
    run.close(), again.close()


def test_an_optimizer_with_a_parameter_of_its_own_is_refused(tmp_path):
    run = SmallRun()
    stranger = torch.nn.Parameter(torch.zeros(3))
    run.optimizer.add_param_group({"params": [stranger]})
    stranger.grad = torch.ones(3)
    run.optimizer.step()
    with (
        Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer,
        pytest.raises(CheckpointError, match=r"shape \(3,\) that belongs neither to the model nor to a dense table"),
    ):
        checkpointer.save(run.state())
    run.close()


def test_the_text_of_keys_comes_back(tmp_path):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state(strings=lambda: {"shop": {7: "a", 2**64 - 1: "é"}}))
    run.close()
    checkpoint = open_checkpoint(tmp_path / "c" / "step-000000000001")
    assert checkpoint.strings() == {"shop": {7: "a", 2**64 - 1: "é"}}


def test_tensors_of_the_trainer_come_back(tmp_path):
    run = SmallRun()
    window = torch.arange(4, dtype=torch.float64)
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state(tensors={"window": window}, trainer={"last": float("nan"), "least": -0.0}))
        window += 1
    run.close()
    checkpoint = open_checkpoint(tmp_path / "c" / "step-000000000001")
    assert checkpoint.trainer_tensors["window"].tolist() == [0, 1, 2, 3]
    assert repr(checkpoint.trainer) == "{'last': nan, 'least': -0.0}"


def test_what_the_optimizer_is_given_is_its_own(tmp_path):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state())
    run.close()
    again, checkpoint = resumed(tmp_path / "c" / "step-000000000001")
    wanted = again.contents()
    again.train(2)
    checkpoint.load_optimizer(again.optimizer, again.model, again.store)
    found = again.contents()
    assert {key: found[key] for key in wanted if key[0] == "optimizer"} == {
        key: row for key, row in wanted.items() if key[0] == "optimizer"
    }
    again.close()


def test_rows_that_are_missing_or_were_there_before_are_noticed(tmp_path):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state())
    run.close()
    other = SmallRun()
    other.train(3)
    with pytest.raises(CheckpointError, match=r"rows of table 'item' were found, and the manifest says \d+"):
        open_checkpoint(tmp_path / "c" / "step-000000000001").load_store(other.store)
    other.close()


def test_a_store_of_other_tables_is_refused(tmp_path):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        run.train(1)
        checkpointer.save(run.state())
    run.close()
    with sfctr.Store(small_run.TABLES[1:]) as other, pytest.raises(CheckpointError, match="rows of other tables"):
        open_checkpoint(tmp_path / "c" / "step-000000000001").load_store(other)


def test_a_buffer_that_is_not_persistent_comes_back(tmp_path):
    run, again = SmallRun(), SmallRun()
    for each, value in ((run, 3.0), (again, 0.0)):
        each.model.register_buffer("seen", torch.tensor([value]), persistent=False)
    run.train(1)
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        checkpointer.save(run.state())
    open_checkpoint(tmp_path / "c" / "step-000000000001").load_model(again.model)
    assert again.model.seen.tolist() == [3.0]
    run.close(), again.close()


def test_what_no_checkpoint_could_hold_is_refused_before_training():
    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    run = SmallRun()
    require_savable(run.model, run.store, run.optimizer)
    with pytest.raises(ModelError, match=r"its state has '_extra_state', a dict, and only tensors are saved"):
        require_savable(Extra(1, 1), run.store, None)
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    with pytest.raises(CheckpointError, match=r"shape \(3,\) that belongs neither"):
        require_savable(run.model, run.store, run.optimizer)
    run.close()


def test_one_of_a_newer_release_is_neither_passed_over_nor_removed(tmp_path):
    run = SmallRun()
    with Checkpointer(tmp_path / "c", SnapshotTwin(run.store)) as checkpointer:
        for _ in range(2):
            run.train(1)
            checkpointer.save(run.state())
    directory = CheckpointDirectory(tmp_path / "c")
    manifest = directory.of_step(directory.steps()[-1]) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 3}))
    with pytest.raises(CheckpointError, match=r"version 3 was found .* use the release that wrote"):
        directory.newest()
    run.close()

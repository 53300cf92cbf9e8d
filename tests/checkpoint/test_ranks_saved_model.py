"""Several ranks save one model: one process loads it, and any number of ranks do, each its own rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from ranked import Owned, RankOfRun, contents, has_only_its_own, union
from ranks import in_ranks
from small_run import RUN, TABLES, SmallRun

import sfctr
from sfctr.checkpoint import open_model, save_model
from sfctr.checkpoint import saved_model as module
from sfctr.spec.errors import CheckpointError


@pytest.fixture(scope="module")
def whole():
    np.random.seed(3)
    whole = SmallRun()
    whole.train(9)
    yield whole
    whole.close()


def save_by(size, whole, directory):
    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            RankOfRun(whole, peers, store=store).follow()
            texts = {"shop": {peers.rank: f"seen by {peers.rank}", 99: "seen by all"}}
            model = whole.model if peers.rank == 0 else torch.nn.Linear(1, 1)
            save_model(directory, run=RUN, store=store, model=model, facts={"auc": 0.5}, strings=texts, peers=peers)

    in_ranks(size, body)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_one_process_has_all_that_the_ranks_had(tmp_path, whole, size):
    save_by(size, whole, tmp_path / "best")
    saved = open_model(tmp_path / "best")
    with sfctr.Store(TABLES, seed=1) as store:
        saved.load_rows(store)
        assert contents(store) == contents(whole.store)
        assert store.membership() == whole.store.membership()
    other = SmallRun()
    saved.load_model(other.model)
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), whole.model.parameters(), strict=True))
    other.close()
    assert saved.strings() == {"shop": {99: "seen by all", **{rank: f"seen by {rank}" for rank in range(size)}}}
    assert saved.facts == {"auc": 0.5}
    manifest = json.loads((tmp_path / "best" / "manifest.json").read_text())
    assert manifest["version"] == (2 if size == 1 else 3)
    on_disk = {str(path.relative_to(tmp_path / "best")) for path in (tmp_path / "best").rglob("*") if path.is_file()}
    assert on_disk == {*manifest["files"], "manifest.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 3), (4, 3), (2, 2)])
def test_ranks_load_their_own_rows(tmp_path, whole, saved_by, loaded_by):
    save_by(saved_by, whole, tmp_path / "best")

    def body(peers):
        with sfctr.Store(TABLES, seed=1) as store:
            open_model(tmp_path / "best", peers).load_rows(store, owns := Owned(peers))
            assert has_only_its_own(store, owns)
            return contents(store), store.membership()["user"]

    parts = in_ranks(loaded_by, body)
    assert union([part for part, _ in parts]) == contents(whole.store)
    counts = whole.store.membership()["user"]
    assert {name: sum(found[name] for _, found in parts) for name in counts} == counts


def test_damage_that_rank_0_finds_all_raise(tmp_path, whole):
    save_by(2, whole, tmp_path / "best")
    path = tmp_path / "best" / "rows" / "000.rank-001.parquet"
    path.write_bytes(path.read_bytes()[:-1])

    def body(peers):
        with pytest.raises(CheckpointError, match=r"000\.rank-001\.parquet has \d+ bytes"):
            open_model(tmp_path / "best", peers)
        peers.gather("test", np.empty(0, np.uint8))

    in_ranks(2, body)


@pytest.mark.parametrize("failing", ["_write_part", "_write_rest"])
def test_what_one_rank_cannot_write_leaves_the_model_before(tmp_path, whole, monkeypatch, failing):
    save_by(2, whole, tmp_path / "best")
    before = (tmp_path / "best" / "manifest.json").read_bytes()
    write = getattr(module, failing)

    def refuse(*args):
        if failing == "_write_rest" or args[-1] == 1:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(module, failing, refuse)

    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            with pytest.raises(CheckpointError, match=r"the model could not be saved \(No space left on device\)"):
                save_model(tmp_path / "best", run=RUN, store=store, model=whole.model, facts={}, peers=peers)
            peers.gather("test", np.empty(0, np.uint8))

    in_ranks(2, body)
    assert (tmp_path / "best" / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["best"]

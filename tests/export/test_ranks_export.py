"""What several ranks export, and the deltas that they write, have the bytes that one that held all rows would write."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from followed import Followed
from ranked import RankOfRun, in_turn
from ranks import in_ranks
from test_deltas import KINDS

import sfctr
from sfctr.export import Deltas, Trained, apply_deltas, export_model, export_rows
from sfctr.export import deltas as module
from sfctr.export.keys import hashes
from sfctr.spec.errors import CapacityError, ConfigError

SIZES = (2, 3, 4)
NOTHING = np.empty(0, np.uint8)


@pytest.fixture(autouse=True)
def same_ids_and_small_blocks(monkeypatch):
    monkeypatch.setattr(module, "uuid4", lambda: SimpleNamespace(hex="the base"))
    monkeypatch.setattr("sfctr.store.store.rows_of_block", lambda _: 7)


class Rank(RankOfRun):
    """One rank of a run that is followed."""

    def __init__(self, run: Followed, peers, store) -> None:
        super().__init__(run, peers, store=store)
        self.deltas = Deltas(run.directory.parent / "ranks" / "deltas", store, peers)

    def trained(self) -> Trained:
        """Rank 0 alone has the model and the texts."""
        model, texts = (self.whole.model, self.whole.texts) if self.peers.rank == 0 else (None, {})
        return Trained(
            run=self.whole.run, store=self.store, model=model, labels=["y"], log_odds_shift=0.5, strings=texts
        )


def run_of(tmp_path, kind) -> Followed:
    tables, more = KINDS[kind]
    return Followed(tmp_path / "run", tables, **{name: what for name, what in more.items() if name != "tiers"})


def train(run: Followed, step: int) -> None:
    """One step, before which keys go: so each key has a row, or has gone, as one who looks at the end of it sees."""
    random = np.random.default_rng(step)
    names = run.store.tables
    if step % 2:
        for name, table in names.items():
            if not table.dense:
                run.store.remove(name, random.integers(0, 200, 40).astype(np.uint64))
    run.train(
        **{
            name: [None if random.random() < 0.1 else int(key) for key in (random.zipf(1.3, 40) + 3 * step) % 200]
            for name in names
        }
    )


def all_files(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["several", "membership"])
def test_an_export_has_the_bytes_of_one_rank(tmp_path, kind, size):
    run = run_of(tmp_path, kind)
    for step in range(4):
        train(run, step)
    export_model(tmp_path / "alone", run.trained())

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            rank.follow()
            export_model(tmp_path / "ranks", rank.trained(), peers=peers)
            return max(store.num_rows(name) for name, table in store.tables.items() if not table.dense)

    assert max(in_ranks(size, body)) > 7  # several blocks of a rank
    assert all_files(tmp_path / "ranks") == all_files(tmp_path / "alone")
    run.store.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["several", "membership"])
def test_deltas_have_the_bytes_of_one_rank(tmp_path, kind, size):
    run, chains = run_of(tmp_path, kind), []

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            for step in range(4):
                in_turn(peers, lambda step=step: (train(run, step), run.write()))
                rank.follow()
                path = rank.deltas.write(rank.trained())
                assert path.name == (f"{step:06}" if step else "base")
            chains.append(rank.deltas.chain)

    in_ranks(size, body)
    found, wanted = all_files(run.directory.parent / "ranks" / "deltas"), all_files(run.directory)
    assert found.keys() == wanted.keys() and len(found) > 12
    assert [name for name in wanted if found[name] != wanted[name]] == []
    assert chains == [run.deltas.chain] * size
    removed = json.loads(found["000003/delta.json"])["removed"]
    assert sum(count > 0 for count in removed.values()) > 1
    run.store.close()


def test_deltas_go_on_with_another_number_of_ranks(tmp_path):
    run = run_of(tmp_path, "several")
    kept = {}

    def begin(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            for step in (0, 2, 3):
                in_turn(peers, lambda step=step: train(run, step))
                rank.follow()
                if step < 3:
                    in_turn(peers, run.write)
                    rank.deltas.write(rank.trained())
            unsent = rank.deltas.unsent()
            if peers.rank == 0:
                kept.update(unsent)
            assert bool(unsent) == (peers.rank == 0)
            return rank.deltas.chain

    def go_on(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            rank.follow()
            rank.deltas.go_on(chain, kept, rank.owns)
            in_turn(peers, run.write)
            rank.deltas.write(rank.trained())

    chain = in_ranks(3, begin)[0]
    alone = run.deltas.unsent()
    for name, unsent in kept.items():
        for field in ("keys", "beside", "gone"):
            assert np.array_equal(getattr(unsent, field), getattr(alone[name], field)), (name, field)
    assert sum(unsent.gone.size for unsent in kept.values()) > 9 and kept["item"].beside.size
    in_ranks(2, go_on)
    assert all_files(run.directory.parent / "ranks" / "deltas") == all_files(run.directory)
    apply_deltas(run.directory / "base", run.numbered(), tmp_path / "out")
    run.store.close()


@pytest.mark.parametrize("failing", [0, 1])
def test_what_cannot_be_written_is_raised_by_all_and_the_next_has_it_again(tmp_path, monkeypatch, failing):
    run = run_of(tmp_path, "several")
    write, is_full, sent = module.write_rows, [False], []

    def full(*args):
        if is_full[0] and failing == 0:
            raise CapacityError("no room, says the test")
        return write(*args)

    monkeypatch.setattr(module, "write_rows", full)

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            in_turn(peers, lambda: (train(run, 0), run.write()))
            rank.follow()
            rank.deltas.write(rank.trained())
            in_turn(peers, lambda: (train(run, 1), is_full.__setitem__(0, True)))
            rank.follow()
            if peers.rank == failing == 1:
                monkeypatch.setattr(store, "unsent", refuse)
            with pytest.raises(CapacityError, match="no room, says the test"):
                rank.deltas.write(rank.trained())
            in_turn(peers, lambda: (is_full.__setitem__(0, False), run.write(), sent.append(1)))
            if peers.rank == failing == 1:
                monkeypatch.undo()
                monkeypatch.setattr(module, "uuid4", lambda: SimpleNamespace(hex="the base"))
            rank.deltas.write(rank.trained())

    def refuse(_name):
        raise CapacityError("no room, says the test")

    in_ranks(2, body)
    assert all_files(run.directory.parent / "ranks" / "deltas") == all_files(run.directory)
    run.store.close()


def test_all_begin_anew_where_the_base_has_gone(tmp_path, caplog):
    run = run_of(tmp_path, "plain")
    train(run, 0)

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            rank.follow()
            rank.deltas.write(rank.trained())
            chain, unsent = rank.deltas.chain, rank.deltas.unsent()
            in_turn(peers, (rank.deltas.directory / "base" / "export.json").unlink)
            rank.deltas.go_on(chain, unsent, rank.owns)
            assert rank.deltas.chain is None and (peers.rank or not rank.deltas.directory.exists())
            return rank.deltas.write(rank.trained()).name

    assert in_ranks(2, body) == ["base", "base"]
    assert caplog.text.count("they begin anew") == 1
    run.store.close()


def test_all_write_a_base_where_one_of_them_needs_it(tmp_path, monkeypatch):
    run = run_of(tmp_path, "plain")
    train(run, 0)

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            rank.follow()
            rank.deltas.write(rank.trained())
            if peers.rank == 1:
                monkeypatch.setattr(store, "needs_base", lambda: True)
            assert rank.deltas.unsent() == {}
            return rank.deltas.write(rank.trained()).name

    assert in_ranks(2, body) == ["base", "base"]
    run.store.close()


def test_a_place_that_cannot_be_written_into_is_raised_by_all(tmp_path):
    run = run_of(tmp_path, "plain")
    train(run, 0)
    (tmp_path / "out").write_text("a file")

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            rank = Rank(run, peers, store)
            rank.follow()
            with pytest.raises(ConfigError, match="is a file and a directory is needed"):
                export_rows(store, run.schema, tmp_path / "out", peers=peers)
            peers.gather("test", NOTHING)

    in_ranks(2, body)
    run.store.close()


def test_rows_that_do_not_lie_in_the_order_of_hashes_are_a_fault(tmp_path):
    """Of whoever chose the owners."""
    run = run_of(tmp_path, "plain")

    def body(peers):
        with sfctr.Store(run.run.tables) as store:
            keys = np.arange(20, dtype=np.uint64)
            keys = keys[np.argsort(hashes(keys))][:10] if peers.rank else keys[np.argsort(hashes(keys))][10:]
            store.set_vectors("item", keys, np.zeros((10, 3), np.float32))
            export_rows(store, run.schema, tmp_path / "out", peers=peers)

    with pytest.raises(AssertionError, match="in the order of hashes"):
        in_ranks(2, body)
    run.store.close()

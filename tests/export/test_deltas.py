"""A base and its deltas are the full export, to the byte, whatever came and went in between; what does not follow is
refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from followed import Followed, files, rows

import sfctr
from sfctr.export import apply_deltas, read_delta
from sfctr.export.keys import hashes
from sfctr.spec.errors import CheckpointError, ConfigError
from sfctr.store import Unsent

ONES = sfctr.Uniform(1.0, 1.0)
BY_HAND = sfctr.Table("item", dim=1, init=ONES, optimizer=sfctr.SGD(lr=0.25))
RATE = sfctr.Adagrad(lr=0.1)


def followed(tmp_path: Path, table: sfctr.Table = BY_HAND, name: str = "run", **more: object) -> Followed:
    return Followed(tmp_path / name, [table], **more)  # type: ignore[arg-type]


def by_key(some: list[dict[str, object]]) -> dict[object, object]:
    return {row["key"]: None if row.get("removed") else row["vector"][0] for row in some}  # type: ignore[index]


def test_a_delta_has_what_was_trained_and_what_was_removed_since_the_one_before(tmp_path):
    run = followed(tmp_path)
    run.model.weight.requires_grad_(False)
    run.train(item=[1, 2, 3, None])
    assert run.write().name == "base"
    assert by_key(rows(run.directory / "base" / "item.parquet")) == {1: 0.75, 2: 0.75, 3: 0.75, None: 0.75}
    run.train(item=[2, 4, None, 2])
    run.store.remove("item", np.array([1, 99]))
    path = run.write()
    assert path.name == "000001"
    changed = rows(path / "item.parquet")
    assert by_key(changed) == {1: None, 2: 0.25, 4: 0.75, None: 0.5}
    assert [row for row in changed if row["removed"]] == [{"key": 1, "vector": None, "removed": True}]
    delta = read_delta(path)
    assert (delta.number, delta.step, delta.changed, delta.removed) == (1, 2, {"item": 3}, {"item": 1})
    run.train(item=[1, 5])  # the first comes back, and begins anew
    run.store.remove("item", np.array([5]))
    assert by_key(rows(run.write() / "item.parquet")) == {1: 0.75, 5: None}
    run.applied(tmp_path / "out")
    assert by_key(rows(tmp_path / "out" / "item.parquet")) == {1: 0.75, 2: 0.25, 3: 0.75, 4: 0.75, None: 0.5}


TEXTS = {"word": {key: f"word {key}" for key in range(200)}}
KINDS = {
    "plain": ([sfctr.Table("item", dim=3, optimizer=RATE)], {}),
    "several": (
        [
            sfctr.Table("item", dim=3, optimizer=RATE, linear=sfctr.FTRL(lr=0.1)),
            sfctr.Table("weights", dim=0, linear=RATE),
            sfctr.Table("hashed", dim=2, buckets=17, optimizer=RATE),
            sfctr.Table("half", dim=3, dtype="bf16", optimizer=RATE),
            sfctr.Table("hour", dim=2, dense=True, num_rows=200),
            sfctr.Table("word", dim=2, optimizer=RATE),
            sfctr.Table("other", dim=2, optimizer=RATE),
        ],
        {"texts": TEXTS, "dtypes": {"word": "string", "other": "string", "weights": "uint64"}},
    ),
    "membership": (
        [
            sfctr.Table("item", dim=3, optimizer=RATE, capacity=40, admit_after=2, unseen="rare"),
            sfctr.Table("old", dim=3, optimizer=RATE, expire_after_steps=3),
            sfctr.Table("word", dim=2, optimizer=RATE, capacity=30),
        ],
        {"texts": TEXTS, "dtypes": {"word": "string"}},
    ),
    "on disk": (
        [sfctr.Table("item", dim=8, optimizer=RATE), sfctr.Table("old", dim=8, optimizer=RATE, capacity=50)],
        {"tiers": sfctr.Tiers(ram=12_000, disk=True)},
    ),
    "on a device": (
        [sfctr.Table("item", dim=8, optimizer=RATE)],
        {"tiers": sfctr.Tiers(device=4_000, ram=20_000, disk=True)},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_base_and_deltas_are_the_full_export_to_the_byte(tmp_path, kind):
    tables, options = KINDS[kind]
    run = Followed(tmp_path / "run", tables, **options)
    random = np.random.default_rng(7)
    removed = dict.fromkeys((table.name for table in tables), 0)
    for turn in range(6):
        for _ in range(int(random.integers(1, 4))):
            draws = {table.name: random.zipf(1.3, 40) % 200 for table in tables}
            keys = {name: [int(key) if key else None for key in some] for name, some in draws.items()}
            run.train(**keys)
        if turn % 2:
            for table in tables:
                if not table.dense:
                    run.store.remove(table.name, random.integers(0, 17 if table.buckets else 200, 12))
        path = run.write()
        if path.name != "base":
            for name, count in read_delta(path).removed.items():
                removed[name] += count
        assert run.applied(tmp_path / f"applied-{turn}") == run.full(tmp_path / f"full-{turn}")
    assert all(count for name, count in removed.items() if name != "hour")
    if kind == "on disk":
        assert run.store.counters()["evicted"] > 100
    if kind == "on a device":
        assert run.store.counters()["lifted"] > 100


def test_an_applied_directory_scores_as_the_full_export_does(tmp_path):
    run = followed(tmp_path, sfctr.Table("item", dim=3, optimizer=RATE))
    for keys in ([1, 2, None], [2, 3, 9]):
        run.train(item=keys)
        run.write()
    run.applied(tmp_path / "applied")
    run.full(tmp_path / "full")
    data = [{"item": key} for key in (1, 2, 3, 4, None)]
    scores = [sfctr.load_export(tmp_path / name).predict(data) for name in ("applied", "full")]
    assert scores[0] == scores[1]
    assert json.loads((tmp_path / "applied" / "export.json").read_text())["chain"]["step"] == 2


def test_an_interval_without_a_step_gives_an_empty_delta(tmp_path):
    run = followed(tmp_path)
    run.train(item=[1, 2])
    run.write()
    path = run.write()
    assert rows(path / "item.parquet") == []
    assert read_delta(path).changed == read_delta(path).removed == {"item": 0}
    assert run.applied(tmp_path / "out") == run.full(tmp_path / "full")


def test_rows_are_ordered_as_a_store_has_them(tmp_path):
    run = followed(tmp_path)
    keys = np.unique(np.random.default_rng(0).integers(0, 2**63, 500))
    run.train(item=[int(key) for key in keys])
    stored = np.concatenate([block.keys for block in run.store.rows("item")])
    assert (keys[np.argsort(hashes(keys.astype(np.uint64)))] == stored).all()


@pytest.fixture
def four(tmp_path: Path) -> list[Path]:
    """A base, and three deltas."""
    run = followed(tmp_path)
    for key in (1, 2, 3, 4):
        run.train(item=[key, 100])
        run.write()
    return [run.directory / "base", *run.numbered()]


def test_a_delta_that_is_left_out_is_named(tmp_path, four):
    base, one, two, three = four
    with pytest.raises(CheckpointError, match=r"000003 is delta 000003 and .* is at 000000; give 000001, 000002 bef"):
        apply_deltas(base, [three], tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"000003 is delta 000003 and .* is at 000001; give 000002 before it"):
        apply_deltas(base, [one, three], tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"000002 is delta 000002 .* give 000001 before it"):
        apply_deltas(base, [two, one], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_delta_of_another_base_is_refused(tmp_path, four):
    other = followed(tmp_path, name="other")
    other.train(item=[1, 100])
    other.write()
    with pytest.raises(CheckpointError, match=r"000001 follows base \w+ and .*other.deltas.base is of base \w+"):
        apply_deltas(other.directory / "base", [four[1]], tmp_path / "out")
    other.full(tmp_path / "full")
    with pytest.raises(CheckpointError, match="full: no delta follows this export"):
        apply_deltas(tmp_path / "full", [four[1]], tmp_path / "out")


def test_a_delta_may_be_applied_twice_and_one_after_the_other(tmp_path, four):
    base, one, two, three = four
    apply_deltas(base, [one, two, three], tmp_path / "at once")
    apply_deltas(base, [one, one], tmp_path / "out")
    for path in (two, two, one, three):
        apply_deltas(tmp_path / "out", [path], tmp_path / "out")  # in place
    assert files(tmp_path / "out") == files(tmp_path / "at once")
    facts = [(tmp_path / name / "export.json").read_text() for name in ("out", "at once")]
    assert facts[0] == facts[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["at once", "out", "run"]


def test_a_run_that_goes_another_way_has_deltas_that_do_not_follow_those_before(tmp_path):
    run = followed(tmp_path)
    run.train(item=[1, 2])
    run.write()
    run.train(item=[1, 3])
    run.write()
    unsent, chain = run.deltas.unsent(), run.deltas.chain
    run.train(item=[4, 5])
    old = shutil.copytree(run.write(), tmp_path / "old")
    run.deltas.go_on(chain, unsent)
    assert [path.name for path in run.numbered()] == ["000001"]  # what came later was taken away
    run.store.mark_unsent("item", Unsent(keys=np.array([4], np.uint64), beside=EMPTY, gone=EMPTY))
    new, after = run.write(), run.write()
    base, one = run.directory / "base", run.directory / "000001"
    apply_deltas(base, [one, old], tmp_path / "out")
    for path in (new, after):
        with pytest.raises(CheckpointError, match=f"{path.name} is delta {path.name} of another course of the run"):
            apply_deltas(tmp_path / "out", [path], tmp_path / "out")
    apply_deltas(base, [one, new, after], tmp_path / "out")


EMPTY = np.empty(0, np.uint64)


def test_what_is_not_there_any_more_cannot_be_gone_on_from(tmp_path, caplog):
    run = followed(tmp_path)
    run.train(item=[1, 2])
    run.write()
    run.train(item=[1, 3])
    run.write()
    unsent, chain = run.deltas.unsent(), run.deltas.chain
    shutil.rmtree(run.directory / "000001")
    run.deltas.go_on(chain, unsent)
    assert "they begin anew, with a new base" in caplog.text
    assert run.write().name == "base"
    assert run.deltas.chain.ids[0] != chain.ids[0]
    assert run.applied(tmp_path / "out") == run.full(tmp_path / "full")


def test_more_removed_keys_than_are_worth_a_list_make_a_new_base(tmp_path, caplog):
    run = followed(tmp_path)
    run.train(item=[1, 2])
    run.write()
    run.train(item=[1, 3])
    run.write()
    run.store.mark_unsent("item", Unsent(keys=EMPTY, beside=EMPTY, gone=np.arange(200_000, dtype=np.uint64)))
    assert run.write().name == "base"
    assert "too many rows were removed to list them" in caplog.text
    assert run.numbered() == []
    run.train(item=[1, 4])
    run.write()
    assert run.applied(tmp_path / "out") == run.full(tmp_path / "full")


def test_one_that_could_not_be_written_is_followed_by_one_with_all_of_it(tmp_path, monkeypatch):
    run = followed(tmp_path)
    run.train(item=[1, 2])
    run.write()
    run.train(item=[1, 3])
    run.store.remove("item", np.array([2]))
    with monkeypatch.context() as patch:
        patch.setattr("sfctr.export.deltas.put_in_place", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(sfctr.CapacityError, match="000001 could not be written: no space left"):
            run.write()
    assert run.numbered() == []
    run.train(item=[4, 4])
    run.write()
    assert run.applied(tmp_path / "out") == run.full(tmp_path / "full")


@pytest.mark.parametrize("name", ["item.parquet", "model.pt2", "delta.json"])
def test_a_flipped_byte_is_found(tmp_path, four, name):
    base, one, *_ = four
    bytes_ = bytearray((one / name).read_bytes())
    bytes_[bytes_.index(b'"step": ') + 8 if name == "delta.json" else len(bytes_) // 2] ^= 1
    (one / name).write_bytes(bytes_)
    with pytest.raises(CheckpointError, match=rf"000001.{name}: .*damaged"):
        apply_deltas(base, [one], tmp_path / "out")


def test_what_is_no_delta_is_named(tmp_path, four):
    base, *_ = four
    with pytest.raises(CheckpointError, match="nowhere: there is no whole delta"):
        apply_deltas(base, [tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(CheckpointError, match="base: there is no whole delta"):
        apply_deltas(base, [base], tmp_path / "out")


def test_only_an_export_is_replaced(tmp_path, four):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="out is there already and is no export"):
        apply_deltas(four[0], [four[1]], tmp_path / "out")

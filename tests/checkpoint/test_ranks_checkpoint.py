"""Several ranks save one checkpoint, and any number of ranks load it: each has its own rows, and together all of them,
bit for bit."""

from __future__ import annotations

import errno
import shutil

import msgspec
import numpy as np
import pytest
from ranked import Owned, RankOfRun, contents, has_only_its_own, in_turn, union
from ranks import in_ranks
from recording import RecordingDisk
from small_run import RUN, TABLES, SmallRun

import sfctr
from sfctr.checkpoint import CheckpointDirectory, Checkpointer, open_checkpoint
from sfctr.checkpoint.manifest import read_manifest
from sfctr.spec.errors import CheckpointError
from sfctr.train.checkpoint_files import newest_checkpoint

SIZES = (1, 2, 3, 4)


def save_by(size, whole, path, steps, base=None, **options):
    """By `size` ranks, from `base` on, a checkpoint at each of the steps."""

    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            rank = RankOfRun(whole, peers, store=store)
            if base is not None:
                open_checkpoint(base).load_store(store, rank.owns, peers)
                store.mark_saved()
            with Checkpointer(path, store, base=base, peers=peers, **options) as checkpointer:
                for step in steps:
                    in_turn(peers, lambda step=step: whole.train(step))
                    rank.follow()
                    checkpointer.save(rank.state(trainer={"step": step}))
                    checkpointer.wait()
                return checkpointer.last_saved

    return in_ranks(size, body)


def load_by(size, path):
    """What each of `size` ranks has of a checkpoint: contents and counters."""

    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            open_checkpoint(path).load_store(store, owns := Owned(peers), peers)
            assert has_only_its_own(store, owns)
            return contents(store), store.membership()

    return in_ranks(size, body)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """By how many ranks each was saved -> a checkpoint of three positions; and what all of it is."""
    path, wanted = tmp_path_factory.mktemp("ranks"), None
    for size in SIZES:
        np.random.seed(3)
        whole = SmallRun()
        save_by(size, whole, path / str(size), (4, 8, 12), keep=9)
        found = contents(whole.store), whole.store.membership()
        assert wanted in (None, found)
        wanted = found
        whole.close()
    return {size: path / str(size) / "step-000000000012" for size in SIZES}, wanted


@pytest.mark.parametrize("loaded_by", SIZES)
@pytest.mark.parametrize("saved_by", SIZES)
def test_what_some_ranks_saved_any_number_of_ranks_has_again(saved, saved_by, loaded_by):
    paths, (rows, membership) = saved
    parts = load_by(loaded_by, paths[saved_by])
    assert union([part for part, _ in parts]) == rows
    if loaded_by > 1:
        assert all(len(part) < len(rows) for part, _ in parts)
    for name, counts in membership.items():
        summed = {count: sum(found[name][count] for _, found in parts) for count in counts}
        assert summed == counts
    assert min(membership["user"][count] for count in ("admitted", "refused", "waiting", "live")) > 0


def test_the_manifest_is_of_all_ranks_and_the_format_tells_of_them(saved):
    paths, _ = saved
    alone, three = (read_manifest(paths[size]) for size in (1, 3))
    assert (alone.version, three.version) == (1, 2)
    assert (three.num_rows, three.membership, three.chain) == (alone.num_rows, alone.membership, alone.chain)
    names = {name for name in three.files if name.startswith("rows/000-001")}
    assert names == {"rows/000-001.rows", "rows/000-001.rank-001.rows", "rows/000-001.rank-002.rows"}
    assert {name for name in three.files if "rank" not in name} == set(alone.files)


def test_a_chain_goes_on_with_another_number_of_ranks(tmp_path):
    whole, path = SmallRun(), tmp_path / "c"
    [full, *_] = save_by(4, whole, path, (5,), keep=9)
    keys = np.arange(6, 30, dtype=np.uint64)
    assert whole.store.remove("item", keys) > 0
    [changed, _] = save_by(2, whole, path, (7,), base=full.path, keep=9)
    [last, _, _] = save_by(3, whole, path, (9, 10), base=changed.path, keep=9)
    manifest = read_manifest(last.path)
    assert (last.kind, manifest.chain) == ("changes", (5, 7, 9, 10))
    wanted = contents(whole.store)
    for size in SIZES:
        assert union([part for part, _ in load_by(size, last.path)]) == wanted
    alone = sfctr.Store(TABLES, seed=5)
    open_checkpoint(last.path).load_store(alone)
    assert contents(alone) == wanted
    alone.close(), whole.close()


def test_all_write_all_rows_where_one_must(tmp_path):
    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            rank = RankOfRun(whole, peers, store=store)
            with Checkpointer(tmp_path / "c", store, peers=peers) as checkpointer:
                kinds = []
                for loses in (False, False, True):
                    rank.follow()
                    if loses and peers.rank == 1:
                        store.begin_snapshot(False)
                        store.end_snapshot(False)
                    checkpointer.save(rank.state())
                    checkpointer.wait()
                    kinds.append(checkpointer.last_saved.kind)
                return kinds

    whole = SmallRun()
    whole.train(3)
    assert in_ranks(3, body) == [["full", "changes", "full"]] * 3
    whole.close()


class Faulty:
    """Two ranks and the second checkpoint of a run, in which one rank's disk fails at some operation."""

    def __init__(self, tmp_path) -> None:
        self.path, self.tmp_path = tmp_path / "first", tmp_path
        self.whole = SmallRun()
        save_by(2, self.whole, self.path, (1,))
        self.before = contents(self.whole.store)
        self.whole.train(2)
        self.after = contents(self.whole.store)

    def save(self, failing, fail_at, name, error=errno.ENOSPC):
        """By rank what its disk did, what was raised, and the kind of the checkpoint tried after that."""
        path = self.tmp_path / name
        shutil.copytree(self.path, path)

        def body(peers):
            with sfctr.Store(TABLES, seed=5) as store:
                rank = RankOfRun(self.whole, peers, store=store)
                base = path / "step-000000000001"
                open_checkpoint(base).load_store(store, rank.owns, peers)
                store.mark_saved()
                rank.follow()
                disk = RecordingDisk(fail_at if peers.rank == failing else None, error)
                checkpointer = Checkpointer(path, store, base=base, peers=peers, disk=disk)
                checkpointer.save(rank.state())
                words = raised(checkpointer.wait)
                peers.gather("test", np.empty(0, np.uint8))
                newest = CheckpointDirectory(path).newest()
                left = [each.name for each in path.iterdir() if each.name.endswith(".new")]
                peers.gather("test", np.empty(0, np.uint8))
                checkpointer.save(rank.state())
                checkpointer.close()
                names = [operation.name for operation in disk.done]
                last = max(at for at, name in enumerate(names) if name == "sync")
                assert "sync_directory" in names[last:]  # a file's name is there for good, whoever made its directory
                return disk.tried, words, newest.path.name, left, checkpointer.last_saved.kind

        return path, in_ranks(2, body)


def raised(call) -> str:
    try:
        call()
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    faulty = Faulty(tmp_path_factory.mktemp("faulty"))
    yield faulty
    faulty.whole.close()


@pytest.mark.parametrize("failing", [0, 1])
def test_what_one_rank_cannot_write_none_keeps_and_the_next_is_full(faulty, failing):
    _, results = faulty.save(None, None, f"whole {failing}")
    tried = [result[0] for result in results]
    assert [result[1] for result in results] == ["", ""] and min(tried) > 15
    # a recovery of nothing is one operation; the second save is as long as the first
    first = range(1 if failing == 0 else 0, 12)
    for fail_at in first:
        path, results = faulty.save(failing, fail_at, f"{failing} {fail_at}")
        words = [result[1] for result in results]
        assert all("by the test" in each and "the checkpoint could not be saved" in each for each in words)
        assert [each.startswith(f"rank {failing}: ") for each in words] == [rank != failing for rank in (0, 1)]
        assert [result[2:] for result in results] == [("step-000000000001", [], "full")] * 2
        newest = CheckpointDirectory(path).newest()
        assert (newest.path.name, newest.skipped) == ("step-000000000002", ())
    assert union([part for part, _ in load_by(2, newest.path)]) == faulty.after


def test_one_notice_and_two_failures_in_a_row_are_raised_by_all(tmp_path, caplog, monkeypatch):
    class Full(RecordingDisk):
        def create(self, path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            rank = RankOfRun(whole, peers, store=store)
            rank.follow()
            checkpointer = Checkpointer(tmp_path / "c", store, peers=peers, disk=Full() if peers.rank == 2 else None)
            checkpointer.save(rank.state())
            checkpointer.save(rank.state())
            with pytest.raises(CheckpointError, match="No space left"):
                checkpointer.save(rank.state())

    whole = SmallRun()
    whole.train(1)
    in_ranks(3, body)
    assert caplog.text.count("the next one is being tried") == 1
    assert "rank 2: " in caplog.text
    whole.close()


def test_damage_in_one_ranks_file_has_all_fall_back(tmp_path, caplog):
    whole, path = SmallRun(), tmp_path / "c"
    save_by(3, whole, path, (2, 4), keep=9)
    file = path / "step-000000000004" / "rows/001-001.rank-002.rows"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    found = in_ranks(3, lambda peers: newest_checkpoint(path, peers).step)
    assert found == [2, 2, 2]
    assert caplog.text.count("an older checkpoint is used") == 1
    whole.close()


def test_none_is_sound_is_raised_by_all(tmp_path):
    (tmp_path / "c" / "step-000000000001").mkdir(parents=True)

    def body(peers):
        with pytest.raises(CheckpointError, match="no checkpoint is sound"):
            newest_checkpoint(tmp_path / "c", peers)

    in_ranks(2, body)


def test_no_checkpoint_is_none_for_all(tmp_path):
    assert in_ranks(2, lambda peers: newest_checkpoint(tmp_path / "c", peers)) == [None, None]


def test_a_directory_that_not_all_ranks_share_is_named(tmp_path):
    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store:
            rank = RankOfRun(whole, peers, store=store)
            checkpointer = Checkpointer(tmp_path / str(peers.rank), store, peers=peers)
            checkpointer.save(rank.state())
            with pytest.raises(CheckpointError, match=r"rank 1 does not see .*must be on a file system that all"):
                checkpointer.close()

    whole = SmallRun()
    in_ranks(2, body)
    whole.close()


def test_rows_of_others_are_passed_over_and_a_missing_one_is_noticed(saved):
    """Ranks that leave a range of keys to nobody have fewer rows than the manifest says."""
    paths, _ = saved

    class Forgets(Owned):
        def __call__(self, table, keys, *, is_null=False):
            return super().__call__(table, keys, is_null=is_null) & (keys != 13)

    def body(peers):
        with (
            sfctr.Store(TABLES, seed=5) as store,
            pytest.raises(CheckpointError, match=r"rows of table '\w+' were found, and the manifest says"),
        ):
            open_checkpoint(paths[2]).load_store(store, Forgets(peers), peers)

    in_ranks(2, body)


def test_damage_that_one_rank_finds_all_raise(saved, tmp_path):
    paths, _ = saved
    shutil.copytree(paths[2], tmp_path / "c")
    file = tmp_path / "c" / "rows/000-000.rank-001.rows"
    file.write_bytes(file.read_bytes()[:-30])

    def body(peers):
        with sfctr.Store(TABLES, seed=5) as store, pytest.raises(CheckpointError, match=r"rank-001\.rows"):
            open_checkpoint(tmp_path / "c", is_checked=True).load_store(store, Owned(peers), peers)

    in_ranks(2, body)


def test_rows_are_taken_into_a_run_that_differs_by_their_owners(saved):
    """Under another name, with another optimizer: vectors come over, to the rank that owns them."""
    paths, (rows, _) = saved
    tables = (sfctr.Table("thing", dim=3, linear=sfctr.FTRL(lr=0.1), optimizer=sfctr.SGD(lr=0.1)), *TABLES[1:])
    features = [sfctr.Categorical(t.name, dtype="int64") for t in tables]
    schema = sfctr.Schema(label="y", features=features, time=sfctr.TimeColumn("at"))
    run = msgspec.structs.replace(RUN, schema=schema, tables=tables)

    def body(peers):
        other = SmallRun()
        with sfctr.Store(tables, seed=9) as store:
            fitted = open_checkpoint(paths[2]).fitted(
                run, other.model, store, allow=("tables.thing",), renamed={"item": "thing"}
            )
            fitted.load_store(store, Owned(peers), peers)
            other.close()
            return [block for name in ("thing", "shop") for block in store.rows(name)]

    found = {}
    for blocks in in_ranks(3, body):
        for block in blocks:
            for key, null, vector in zip(block.keys.tolist(), block.nulls.tolist(), block.vectors, strict=True):
                size = "thing" if block.state.shape[1] < 8 else "shop"
                assert found.setdefault((size, key, null), vector.tobytes()) == vector.tobytes()
    wanted = {
        ("thing" if name[0] == "item" else "shop", *name[1:]): bits[:12]
        for name, bits in rows.items()
        if name[0] in ("item", "shop")
    }
    assert found == wanted

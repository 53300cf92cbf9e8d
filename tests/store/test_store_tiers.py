"""What a store does where its rows do not fit: where they go, what is said, and which limits it finds by itself."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sfctr
from sfctr import _native
from sfctr.store.group import staging_bytes
from sfctr.store.memory import available_bytes

GIB = 1 << 30


def proc_with(tmp_path: Path, available_kb: int, cgroup: str) -> Path:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {available_kb} kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    (proc / "self" / "status").write_text("Name:\tpython\nVmSize:\t 0 kB\nVmData:\t 0 kB\n")
    return proc


def limit(directory: Path, bound: str, used: int, files: int, names: tuple[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names[0]).write_text(f"{bound}\n")
    (directory / names[1]).write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\ninactive_file {files}\nactive_file 0\n")


V2 = ("memory.max", "memory.current")


def test_what_is_left_is_the_least_of_machine_and_every_control_group_above(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, 8 << 20, "0::/a/b\n")
    assert available_bytes(proc, tmp_path / "none") == 8 * GIB
    groups = tmp_path / "cgroup"
    limit(groups / "a" / "b", "max", 0, 0, V2)
    assert available_bytes(proc, groups) == 8 * GIB
    limit(groups / "a", str(2 * GIB), GIB, GIB // 4, V2)  # pages of files are given up where need be
    assert available_bytes(proc, groups) == GIB + GIB // 4
    limit(groups / "a" / "b", str(GIB), 2 * GIB, 0, V2)
    assert available_bytes(proc, groups) == 0


def test_a_control_group_of_the_first_version_counts_too(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, 8 << 20, "5:cpu:/x\n4:memory:/job\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit(tmp_path / "cgroup" / "memory" / "job", str(3 * GIB), GIB, 0, names)
    assert available_bytes(proc, tmp_path / "cgroup") == 2 * GIB


def test_the_limits_of_the_process_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = proc_with(tmp_path, 8 << 20, "0::/\n")
    (proc / "self" / "status").write_text("Name:\tpython\nVmSize:\t 4194304 kB\nVmData:\t 1048576 kB\n")
    bounds = {resource.RLIMIT_AS: 7 * GIB, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (bounds[kind], resource.RLIM_INFINITY))
    assert available_bytes(proc, tmp_path / "none") == 3 * GIB
    bounds[resource.RLIMIT_DATA] = 2 * GIB
    assert available_bytes(proc, tmp_path / "none") == GIB


def test_buffers_of_the_disk_are_a_small_share_of_ram() -> None:
    assert [staging_bytes(n, 200) for n in (1, 64 << 20, GIB, 1 << 40)] == [64 << 10, 1 << 20, 8 << 20, 8 << 20]
    assert staging_bytes(1, 48 << 10) == 4 * ((52 << 10) + 8192)  # a unit of thirteen sectors, and a page at each end


# ------------------------------------------------------------------------------------------------------------- spilling


def train(store: sfctr.Store, keys: np.ndarray) -> None:
    """One SGD step of rate 1 with a gradient of 1 for each of the unique keys."""
    [group] = store.groups
    ws = _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys)])
    assert store.plan((ws,))
    store.fetch((ws,))
    group.native.backward(ws, 0, keys.size, [np.ones(keys.size * group.plan.dim, dtype=np.float32)], [])
    store.commit((ws,))


def tables() -> list[sfctr.Table]:
    return [sfctr.Table("item", dim=4, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.SGD(lr=1.0))]


def values(store: sfctr.Store) -> dict[int, float]:
    return {int(k): float(v[0]) for block in store.rows("item", 100) for k, v in zip(block.keys, block.vectors)}  # noqa: B905


@pytest.mark.parametrize("disk", [None, True, "elsewhere"])
def test_rows_that_fill_ram_go_to_disk_and_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, disk: str | bool | None
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    keys = np.arange(1000, dtype=np.uint64)
    with sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000, disk=disk), directory=run) as store:
        assert not caplog.records
        for _ in range(2):
            for part in np.split(keys, 10):
                train(store, part)
        assert values(store) == dict.fromkeys(range(1000), -1.0)
        [record] = [r for r in caplog.records if "tiers.ram" in r.getMessage()]
        kept = tmp_path / "elsewhere" if disk == "elsewhere" else run
        assert "30,000 bytes of tiers.ram" in record.getMessage() and str(kept.name) in record.getMessage()
        assert store.counters()["disk_rows"] > 500
        assert len(list(kept.iterdir())) == 1
    assert not list(kept.iterdir())


def test_where_rows_may_not_leave_a_full_ram_is_named_and_nothing_is_lost() -> None:
    with sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000, disk=False)) as store:
        train(store, np.arange(400, dtype=np.uint64))
        words = r"tiers.ram is 30,000 bytes and the rows .* need .* at step 2; raise tiers.ram, or let rows go to disk"
        with pytest.raises(sfctr.CapacityError, match=words):
            train(store, np.arange(1000, dtype=np.uint64))
        assert store.steps == 1 and values(store) == dict.fromkeys(range(400), 0.0)


def test_an_index_that_outgrows_ram_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    with sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000), directory=tmp_path) as store:
        train(store, np.arange(1250, dtype=np.uint64))
        words = (
            r"the index alone needs 30024 bytes of RAM at step 2; raise tiers.ram, or give table 'item' \(1,250 rows\)"
        )
        with pytest.raises(sfctr.CapacityError, match=words):
            train(store, np.arange(1251, dtype=np.uint64))
        assert values(store) == dict.fromkeys(range(1250), 0.0)


@pytest.mark.parametrize("parent", ["file", "file/below", "/proc/none"])
def test_a_disk_that_cannot_be_used_is_named_before_training(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("")
    words = rf"cannot be kept in .*{parent}: .*; set tiers.disk to a directory that can be written, or to false"
    with pytest.raises(sfctr.ConfigError, match=words):
        sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000, disk=str(tmp_path / parent)))


def test_a_disk_that_fails_later_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    words = "group-0.*every row trained so far is still in RAM"
    with sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000), directory=tmp_path) as store:
        [spill] = tmp_path.iterdir()
        (spill / "group-0").write_text("")
        train(store, np.arange(400, dtype=np.uint64))
        with pytest.raises(sfctr.DiskError, match=words):
            train(store, np.arange(400, 700, dtype=np.uint64))
        assert values(store) == dict.fromkeys(range(400), 0.0)
        train(store, np.arange(1000, dtype=np.uint64))  # larger than RAM: what it reached cannot go to disk, and stays
        with pytest.raises(sfctr.DiskError, match=words):
            train(store, np.arange(10, dtype=np.uint64))
        assert values(store) == dict.fromkeys(range(400), -1.0) | dict.fromkeys(range(400, 1000), 0.0)


def test_rows_larger_than_the_usual_buffers_go_to_disk(tmp_path: Path) -> None:
    wide = sfctr.Table("item", dim=4096, init=sfctr.Uniform(1.0, 1.0), optimizer=sfctr.Adam(lr=1.0))
    with sfctr.Store([wide], tiers=sfctr.Tiers(ram="2MB"), directory=tmp_path) as store:
        for key in range(60):
            train(store, np.array([key], dtype=np.uint64))
        assert store.counters()["disk_rows"] > 0 and len(values(store)) == 60


KILLED = """
import os, sys, numpy as np, sfctr
store = sfctr.Store([sfctr.Table("item", dim=4)], tiers=sfctr.Tiers(ram=30_000), directory=sys.argv[1])
keys = np.arange(1000, dtype=np.uint64)
store.set_vectors("item", keys, np.zeros((1000, 4), dtype=np.float32))
assert store.counters()["disk_rows"] > 500
os.kill(os.getpid(), 9)
"""


@pytest.mark.processes
def test_what_a_killed_store_left_is_taken_away_by_the_next_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    with sfctr.Store(tables(), directory=tmp_path):
        [live] = tmp_path.iterdir()
        for _ in range(2):
            assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False).returncode == -9
            assert len([path for path in tmp_path.iterdir() if path != live]) == 1
        with sfctr.Store(tables(), directory=tmp_path):
            assert live.exists() and len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_forgotten_leaves_no_directory(tmp_path: Path) -> None:
    store = sfctr.Store(tables(), directory=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    del store
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_rows_loaded_beyond_ram_lie_on_disk(tmp_path: Path) -> None:
    keys = np.arange(1000, dtype=np.uint64)
    with sfctr.Store(tables(), tiers=sfctr.Tiers(ram=30_000), directory=tmp_path) as store:
        for _ in range(2):
            store.set_vectors("item", keys, np.repeat(keys[:, None], 4, axis=1).astype(np.float32))
        assert values(store) == {k: float(k) for k in range(1000)}
        assert store.counters()["disk_rows"] > 500
        train(store, keys[::3].copy())
        assert values(store) == {k: float(k) - (k % 3 == 0) for k in range(1000)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ram": "lots"}, "tiers.ram is 'lots'"),
        ({"device": 0}, "tiers.device is 0 and must be at least one byte"),
        ({"disk": ""}, "tiers.disk is empty"),
    ],
)
def test_wrong_tiers_are_refused_in_words(options: dict[str, object], words: str) -> None:
    with pytest.raises(sfctr.SfctrError, match=words):
        sfctr.Tiers(**options)  # type: ignore[arg-type]

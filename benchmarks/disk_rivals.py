"""One process for bench_disk.py that keeps rows in RocksDB, in LMDB or in a plain file, and reads batches of them.

Runs in the environment "disk" of rivals.py. A job names what to do; the answer is seconds and what they cost. RocksDB
reads around the page cache, and its cache of the plan's size, of blocks or of rows, stays warm from round to round.
LMDB and the mapped file are read through the page cache: before a round all their pages are dropped from it, and those
that an LRU cache of the plan's size would hold are read again; what a round reads then stays to its end, more than that
cache would keep. LMDB is read one key at a time by its Python binding, whose calls bound its line: a round that is read
"again", off the page cache alone, shows how many rows they can give. Called from C it would have no such bound. Every
row is copied to its place in an array, and its number is checked.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from disk_rows import ROW_BYTES, Array, Plan, Wanted, chunks, io_counts, row_values

WARMING, WARMERS = 20, 16
"""Batches, which read more than a cache of 7 % holds, and threads that read them."""
KEY = ">u8"  # so that the order of bytes is that of numbers
PAGE = 4096


class Rocks:
    """No compression, 4 KiB blocks, one sorted run, its index blocks in memory beside the cache.

    The cache has "blocks", or "rows" alone, without blocks beside them: it is as large either way.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path, self._plan = str(folder / "rocksdb"), plan
        self._db: Any = None

    def _open(self, *, is_loading: bool, caches: str = "blocks") -> None:
        from rocksdict import AccessType, BlockBasedOptions, Cache, DBCompressionType, Options, Rdict

        options, table = Options(raw_mode=True), BlockBasedOptions()
        if caches == "rows":
            options.set_row_cache(Cache(self._plan.cache_bytes))
            table.disable_cache()
        else:
            table.set_block_cache(Cache(self._plan.cache_bytes))
        table.set_block_size(PAGE)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.none())
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)
        options.set_max_open_files(-1)
        if is_loading:
            options.create_if_missing(True)
            options.prepare_for_bulk_load()
        access = AccessType.read_write() if is_loading else AccessType.read_only()
        families = {"default": options}  # which otherwise has a block cache of its own, of 8 MiB
        self._db = Rdict(self._path, options=options, column_families=families, access_type=access)
        capacity = int(self._db.property_value("rocksdb.block-cache-capacity") or 0)
        if caches == "blocks" and capacity != self._plan.cache_bytes:
            raise ValueError(f"RocksDB has a block cache of {capacity} bytes, not of {self._plan.cache_bytes}")

    def load(self) -> None:
        from rocksdict import WriteBatch

        shutil.rmtree(self._path, ignore_errors=True)
        self._open(is_loading=True)
        for first, values in chunks(self._plan):
            batch = WriteBatch(raw_mode=True)
            for key, value in zip(_keys(np.arange(first, first + len(values))), values, strict=True):
                batch.put(key, value.tobytes())
            self._db.write(batch)
        self._db.flush()
        self._db.compact_range(None, None)

    def cache(self, what: str, wanted: Wanted, number: int) -> None:
        """Begin with an empty cache of "blocks" or of "rows", and warm it with what was read before a round."""
        self._db.close()
        self._open(is_loading=False, caches=what)
        with ThreadPoolExecutor(WARMERS) as pool:
            for rows in wanted.before(number, WARMING):
                list(pool.map(lambda part, rows=rows: self._db.get(_keys(rows[part])), _parts(len(rows), WARMERS)))

    def begin(self, wanted: Wanted, number: int) -> None:
        pass

    def read(self, rows: Array, out: Array) -> None:
        out[:] = np.frombuffer(b"".join(self._db.get(_keys(rows))), np.uint8).reshape(out.shape)

    def end(self) -> None:
        pass


class Lmdb:
    """Rows appended in the order of keys, so that its pages are full; no read-ahead."""

    rows_a_page = 14

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path, self._plan = str(folder / "lmdb"), plan
        self._env: Any = None

    def _open(self, *, is_loading: bool) -> None:
        import lmdb

        size = 3 * self._plan.rows * ROW_BYTES + (64 << 20)
        self._env = lmdb.open(
            self._path,
            map_size=size,
            readahead=False,
            readonly=not is_loading,
            lock=False,
            sync=not is_loading,
            max_spare_txns=64,
        )

    def load(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        self._open(is_loading=True)
        for first, values in chunks(self._plan):
            keys = _keys(np.arange(first, first + len(values)))
            pairs = [(key, value.tobytes()) for key, value in zip(keys, values, strict=True)]
            with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(pairs, append=True)
        self._env.sync(True)
        self._env.close()

    def begin(self, wanted: Wanted, number: int) -> None:
        drop_pages(Path(self._path) / "data.mdb")
        self._open(is_loading=False)
        warm = wanted.last_used(number, self.rows_a_page, self._plan.cache_bytes // PAGE)
        with self._env.begin(buffers=True) as transaction:
            for key in _keys(warm):
                transaction.get(key)[0]

    def read(self, rows: Array, out: Array) -> None:
        with self._env.begin(buffers=True) as transaction:
            get = transaction.get
            for place, key in enumerate(_keys(rows)):
                out[place] = np.frombuffer(get(key), np.uint8)

    def end(self) -> None:
        self._env.close()


class Mapped:
    """Row i at byte 256 i of a file, which is mapped with MADV_RANDOM."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._path, self._plan = folder / "flat.rows", plan

    def load(self) -> None:
        with self._path.open("wb") as file:
            for _, values in chunks(self._plan):
                file.write(values.tobytes())
            os.fsync(file.fileno())

    def begin(self, wanted: Wanted, number: int) -> None:
        drop_pages(self._path)
        with self._path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._rows = np.frombuffer(self._map, np.uint8).reshape(-1, ROW_BYTES)
        self._rows[wanted.last_used(number, PAGE // ROW_BYTES, self._plan.cache_bytes // PAGE), 0].sum()

    def read(self, rows: Array, out: Array) -> None:
        np.take(self._rows, rows, axis=0, out=out, mode="clip")  # clip: straight into out, without the GIL

    def end(self) -> None:
        del self._rows
        self._map.close()


CONTENDERS: dict[str, Callable[[Path, Plan], Any]] = {"RocksDB": Rocks, "LMDB": Lmdb, "mmap": Mapped}


def _keys(rows: Array) -> list[bytes]:
    raw = rows.astype(KEY).tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


def drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read_round(contender: Any, wanted: Wanted, number: int, num_threads: int, *, again: bool = False) -> dict[str, Any]:
    """All batches, each cut among the threads; cuts of a batch follow those before without waiting for its end.

    again: they were all read once before the clock runs.
    """
    batches = wanted.round(number)
    out = [np.zeros((len(rows), ROW_BYTES), np.uint8) for rows in batches]
    cuts = [(b, part) for b, rows in enumerate(batches) for part in _parts(len(rows), num_threads)]

    def read(cut: tuple[int, slice]) -> None:
        b, part = cut
        contender.read(batches[b][part], out[b][part])

    contender.begin(wanted, number)
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(lambda _: time.sleep(0.01), range(num_threads)))  # they are there before the clock runs
        if again:
            list(pool.map(read, cuts))
        used, moved = resource.getrusage(resource.RUSAGE_SELF), io_counts()
        began = time.perf_counter()
        list(pool.map(read, cuts))
        seconds = time.perf_counter() - began
        done, read_bytes = resource.getrusage(resource.RUSAGE_SELF), io_counts()["read"] - moved["read"]
    contender.end()
    for rows, values in zip(batches, out, strict=True):
        if (values[:, :8].copy().view(np.int64)[:, 0] != rows).any():
            raise ValueError("rows are not those that were asked for")
    return {
        "rows": sum(len(rows) for rows in batches),
        "seconds": seconds,
        "cpu_s": done.ru_utime + done.ru_stime - used.ru_utime - used.ru_stime,
        "disk_bytes": read_bytes,
    }


def _parts(size: int, count: int) -> list[slice]:
    bounds = [size * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if a < b]


def write_in_place(folder: Path, rows: Array, sync: str) -> dict[str, Any]:
    """Rows at their places in the flat file: each on the disk when its write returns ("each"), or all when a last
    fdatasync does ("batch")."""
    values = [value.tobytes() for value in row_values(rows)]
    descriptor = os.open(folder / "flat.rows", os.O_WRONLY | (os.O_DSYNC if sync == "each" else 0))
    try:
        began = time.perf_counter()
        for row, value in zip(rows.tolist(), values, strict=True):
            os.pwrite(descriptor, value, row * ROW_BYTES)
        os.fdatasync(descriptor)
        seconds = time.perf_counter() - began
    finally:
        os.close(descriptor)
    return {"rows": len(rows), "seconds": seconds}


def main() -> None:
    folder = Path(sys.argv[4])
    plan = Plan.read(folder)
    wanted = Wanted(folder, plan)
    contender: Any = None
    for line in sys.stdin:
        job = json.loads(line)
        answer: dict[str, Any] = {}
        if job["do"] == "load":
            contender = CONTENDERS[job["what"]](folder, plan)
            contender.load()
        elif job["do"] == "cache":
            contender.cache(job["what"], wanted, job["round"])
        elif job["do"] == "read":
            answer = read_round(contender, wanted, job["round"], job["threads"], again=job.get("again", False))
        elif job["do"] == "write":
            drop_pages(folder / "flat.rows")
            answer = write_in_place(folder, wanted.scattered(job["rows"], job["round"]), job["sync"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

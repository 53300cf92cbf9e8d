"""A file that is written whole is there with all of its rows, or as it was before."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfctr.data.parquet_writer import WholeParquet
from sfctr.spec.errors import CapacityError, ConfigError

TABLE = pa.table({"x": [1, 2, 3]})
LONG = pa.table({"x": list(range(10_000))})


@contextmanager
def disk_full(free_bytes: int):
    """No file of this process can grow above `free_bytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path, *tables):
    with WholeParquet(path, TABLE.schema) as writer:
        for table in tables:
            writer.write(table)


def test_tables_become_one_file_in_order_in_a_folder_made_for_it(tmp_path):
    path = tmp_path / "new" / "x.parquet"
    write(path, TABLE, LONG)
    assert pq.read_table(path)["x"].to_pylist() == [1, 2, 3, *range(10_000)]
    assert os.listdir(path.parent) == ["x.parquet"]


def test_until_the_end_the_old_file_is_there(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_text("old")
    with WholeParquet(path, TABLE.schema) as writer:
        writer.write(TABLE)
        assert path.read_text() == "old"
    assert pq.read_table(path).equals(TABLE)


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_text("old")

    def fail():
        with WholeParquet(path, TABLE.schema) as writer:
            writer.write(TABLE)
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == ["x.parquet"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("free_bytes", [0, 100, 2_000], ids=["at the start", "at the end", "in between"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, free_bytes):
    path = tmp_path / "x.parquet"
    table = LONG if free_bytes == 2_000 else TABLE
    with disk_full(free_bytes), pytest.raises(CapacityError) as error:
        write(path, table)
    assert str(error.value) == f"{path} could not be written: file too large; free space there, or choose another place"
    assert os.listdir(tmp_path) == []


def test_a_directory_is_no_place_for_a_file(tmp_path):
    with pytest.raises(ConfigError) as error:
        write(tmp_path, TABLE)
    assert str(error.value) == f"{tmp_path} cannot be written: it is a directory; choose another place"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: (not a directory|file exists); choose another place"):
        write(tmp_path / "file" / "x.parquet", TABLE)

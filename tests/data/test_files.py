"""Paths, globs, directories, URLs and Parquet files: which are read, in which order, and what is refused."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfctr.data import open_source
from sfctr.spec.errors import ConfigError, DataError
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Bag, Categorical, Dense, Schema

A = Categorical("a", dtype="int64")


def ids(data, **more) -> list[int]:
    schema = Schema(label="no", features=[A])
    with open_source(data, schema, labels="none", **more) as source:
        return [key for batch in source for key in batch.keys["a"].keys.tolist()]


@pytest.fixture
def folder(tmp_path, parquet, text_file):
    """Four files of one row each, numbered by their names' order, and some that are passed over."""
    (tmp_path / "sub").mkdir()
    parquet({"a": [1]}, "1.parquet")
    text_file("a,b\n2,\n", "2.csv")
    parquet({"a": [3]}, "3.pq")
    text_file("a,b\n4,\n", "sub/4.csv")
    text_file("", "_SUCCESS")
    text_file("", ".hidden.csv")
    text_file("", "sub/.crc")
    return tmp_path


def test_a_directory_is_read_by_name_and_passes_over_hidden_files(folder):
    assert ids(str(folder)) == ids(folder) == [1, 2, 3, 4]


def test_globs_are_read_by_name_and_lists_as_given(folder):
    assert ids(f"{folder}/*.p*") == [1, 3]
    assert ids(f"{folder}/**/*.csv") == [2, 4]
    assert ids([f"{folder}/3.pq", f"{folder}/*.csv", folder / "1.parquet"]) == [3, 2, 1]


def test_a_name_that_looks_like_a_glob_is_a_name_first(parquet):
    assert ids(parquet({"a": [5]}, "rows[1].parquet")) == [5]


def test_fsspec_urls_globs_and_directories_are_read(folder):
    memory = fsspec.filesystem("memory")
    for name in ("1.parquet", "2.csv", "3.pq"):
        memory.pipe(f"/box/{name}", (folder / name).read_bytes())
    try:
        assert ids("memory://box/2.csv") == [2]
        assert ids("memory://box/*.p*") == [1, 3]
        assert ids("memory://box") == [1, 2, 3]
        assert ids([f"file://{folder}/1.parquet", "memory://box/3.pq"]) == [1, 3]
        with pytest.raises(DataError, match=r"no file matches 'memory://box/9.csv'"):
            ids("memory://box/9.csv")
        memory.pipe("/box/cut.parquet", (folder / "1.parquet").read_bytes()[:-20])
        with pytest.raises(DataError, match=r"memory://.*/cut.parquet: no whole Parquet file"):
            ids("memory://box/cut.parquet")
    finally:
        memory.rm("/box", recursive=True)


def test_the_order_of_positions_runs_over_all_files(folder):
    with open_source(str(folder), Schema(label="no", features=[A]), labels="none") as source:
        assert np.concatenate([b.rows for b in source]).tolist() == [0, 1, 2, 3]


def test_missing_paths_are_refused_with_the_nearest_name(folder):
    with pytest.raises(DataError, match=r"there is no file '.*/2.cvs' \(did you mean '2.csv'\?\); check the path"):
        ids(f"{folder}/2.cvs")
    with pytest.raises(DataError, match=r"no file matches '.*xyz.*'; check the path; quote a glob"):
        ids(f"{folder}/*.xyz")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"no file matches '.*empty'"):
        ids(f"{folder}/empty")
    with pytest.raises(DataError, match="no files are given"):
        ids([])
    with pytest.raises(DataError, match="'nosuch://x/y' cannot be looked up"):
        ids("nosuch://x/y")


def test_a_file_of_unknown_format_is_refused(folder, text_file):
    path = text_file("a,b\n5,\n", "rows.dat")
    with pytest.raises(
        ConfigError, match=r"the format of '.*rows.dat' does not follow from its name \(.*\); set data.format"
    ):
        ids(path)
    assert ids(path, options=Data(format="csv")) == [5]


def test_a_file_without_permission_is_refused(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(pa, "OSFile", refuse)
    with pytest.raises(
        DataError, match=r"1.parquet: the file cannot be opened: Permission denied; check its permissions"
    ):
        ids(f"{folder}/1.parquet")


def test_a_truncated_parquet_is_refused(tmp_path, parquet):
    path = parquet({"a": np.arange(100_000)})
    whole = Path(path).read_bytes()
    for name, content in {"tail": whole[:-50], "empty": b"", "middle": whole[:1000] + whole[200_000:]}.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.parquet: no whole Parquet file: .*it may be truncated"):
            ids(f"{tmp_path}/{name}.parquet")


def test_a_damaged_page_is_refused_when_it_is_read(tmp_path, parquet):
    path = parquet({"a": np.random.default_rng(0).integers(0, 2**60, 100_000)}, compression="gzip")
    content = bytearray(Path(path).read_bytes())
    content[200_000:200_100] = bytes(100)
    (tmp_path / "bad.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"bad.parquet: no whole Parquet file"):
        ids(f"{tmp_path}/bad.parquet")


def test_row_groups_and_pages_of_any_size_give_the_same_rows(parquet):
    values = np.random.default_rng(0).integers(0, 50, 40_000)
    texts = pa.array([f"t{v}" for v in values])
    lists = pa.array([[int(v)] * (v % 3) for v in values])
    schema = Schema(label="no", features=[Categorical("a"), Categorical("s"), Bag("l")])
    found = []
    for number, options in enumerate(
        [{}, {"row_group_size": 777}, {"row_group_size": 16_385}, {"use_dictionary": False, "data_page_size": 1000}]
    ):
        path = parquet({"a": values, "s": texts, "l": lists}, f"{number}.parquet", **options)
        with open_source(path, schema, labels="none", batch_size=1000) as source:
            batches = list(source)
            assert source.num_rows == 40_000 and {b.size for b in batches} == {1000}
            found.append(b"".join(k.keys.tobytes() for b in batches for k in b.keys.values()))
    assert len(set(found)) == 1


def test_a_later_file_of_another_type_is_refused_by_its_name(parquet, tmp_path):
    parquet({"a": pa.array([1], pa.int32())}, "1.parquet")
    parquet({"a": pa.array([2], pa.int64())}, "2.parquet")
    assert ids(str(tmp_path)) == [1, 2]
    parquet({"a": ["3"]}, "3.parquet")
    with pytest.raises(DataError, match=r"3.parquet, column 'a': holds strings, and int64 keys were needed"):
        ids(str(tmp_path))


def test_a_missing_column_is_refused_with_the_nearest_name(parquet):
    schema = Schema(label="clik", features=[Dense("price")])
    path = parquet({"click": [1], "pirce": [2.0]})
    with pytest.raises(DataError, match=r"column 'clik': there is no such column \(did you mean 'click'\?\)"):
        open_source(path, schema)
    with pytest.raises(DataError, match=r"column 'price': there is no such column \(did you mean 'pirce'\?\)"):
        open_source(path, schema, labels="none")


def test_columns_that_no_schema_names_are_ignored_with_one_line(parquet, notices):
    path = parquet({"a": [1], "label": [0], "x": [1], "y": [2]})
    for _ in range(2):
        with open_source(path, Schema(label="label", features=[A])) as source:
            list(source)
    assert notices() == [f"{path}: columns that the schema does not name are ignored: x, y"]
    with open_source(
        parquet({"a": [1], "label": [0]}, "2.parquet"), Schema(label="label", features=[A]), labels="none"
    ):
        pass
    assert len(notices()) == 1


def test_nothing_is_open_between_passes(folder, open_handles):
    before = open_handles()
    source = open_source(str(folder), Schema(label="no", features=[A]), labels="none")
    assert open_handles() == before
    list(source)
    assert open_handles() == before
    source.close()
    assert pq.read_table(folder / "1.parquet").num_rows == 1

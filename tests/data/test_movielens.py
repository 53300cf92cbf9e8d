"""The demo's rows come from the known wheel alone, and none of them sees its own time or later."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfctr.data import movielens
from sfctr.data.movielens import prepare_movielens
from sfctr.spec.errors import ConfigError, DataError

USERS = (
    "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\ttechnician\t85711\n2\t53\tF\tother\t0\n"
)
ITEMS = (
    "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "7\tFace/Off, The\t1997\tAction Sci-Fi\n8\tTwelve Monkeys\t1995\tDrama\n9\tUnheard Of\t1996\t\n"
)
RATINGS = [  # user, item, rating, seconds
    (1, 8, 3, 300),
    (1, 7, 5, 100),
    (2, 7, 4, 150),
    (1, 9, 4, 100),
    (1, 7, 5, 301),
    (2, 9, 4, 20),
]


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "recbole.whl"
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    with zipfile.ZipFile(path, "w") as archive:
        folder = "recbole/dataset_example/ml-100k/ml-100k"
        archive.writestr(f"{folder}.inter", header + "".join("\t".join(map(str, r)) + "\n" for r in RATINGS))
        archive.writestr(f"{folder}.user", USERS)
        archive.writestr(f"{folder}.item", ITEMS)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_rows_are_in_time_order_with_what_the_user_liked_strictly_before(
    wheel: tuple[Path, str], tmp_path: Path
) -> None:
    path, sha256 = wheel
    rows = pq.read_table(prepare_movielens(tmp_path / "out", path, sha256=sha256).ratings).to_pylist()
    assert [(r["user"], r["item"], r["label"], r["history"]) for r in rows] == [
        (2, 9, 1, []),
        (1, 7, 1, []),
        (1, 9, 1, []),
        (2, 7, 1, [9]),
        (1, 8, 0, [7, 9]),
        (1, 7, 1, [7, 9]),
    ]
    first = rows[0]
    assert (first["age"], first["gender"], first["occupation"]) == (53, "F", "other")
    assert (first["genres"], first["title"]) == ([], ["unheard", "of"])
    assert (rows[1]["genres"], rows[1]["title"]) == (["Action", "Sci-Fi"], ["face", "off", "the"])
    assert first["timestamp"].timestamp() == 20


def test_csv_holds_the_same_with_lists_as_text(wheel: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = wheel
    files = prepare_movielens(tmp_path / "out", path, format="csv", sha256=sha256)
    rows = pyarrow.csv.read_csv(files.ratings).to_pylist()
    assert [r["history"] for r in rows] == ["", "", "", "9", "7 9", "7 9"]
    assert rows[1]["genres"] == "Action Sci-Fi"
    assert rows[0]["timestamp"].timestamp() == 20


def test_the_terms_lie_beside_the_rows(wheel: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = wheel
    terms = prepare_movielens(tmp_path / "out", path, sha256=sha256).terms.read_text()
    assert "must not be passed on" in terms and "Harper and Joseph A. Konstan. 2015" in terms


def test_files_that_are_there_already_are_kept(wheel: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = wheel
    first = prepare_movielens(tmp_path / "out", path, sha256=sha256)
    assert prepare_movielens(tmp_path / "out", tmp_path / "no.whl") == first


def test_another_wheel_is_refused(wheel: tuple[Path, str], tmp_path: Path) -> None:
    path, sha256 = wheel
    with pytest.raises(DataError) as refused:
        prepare_movielens(tmp_path / "out", path)
    assert str(refused.value) == (
        f"{path}: its SHA-256 is {sha256} and must be {movielens.WHEEL_SHA256}; give the wheel of recbole==1.2.1"
    )
    assert not (tmp_path / "out").exists()


def test_a_wheel_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no.whl: cannot be read \(No such file or directory\)"):
        prepare_movielens(tmp_path / "out", tmp_path / "no.whl")


def test_a_download_that_fails_says_why_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")

    monkeypatch.setattr(movielens.subprocess, "run", no_network)
    with pytest.raises(
        DataError, match=r"could not be downloaded \(ERROR: No matching distribution found\); try again"
    ):
        prepare_movielens(tmp_path / "out")


def test_pip_is_asked_for_the_wheel_alone(
    wheel: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        target = Path(command[command.index("--dest") + 1]) / "recbole.whl"
        target.write_bytes(wheel[0].read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(movielens.subprocess, "run", download)
    prepare_movielens(tmp_path / "out", sha256=wheel[1])
    assert {"--no-deps", "--only-binary=:all:", "recbole==1.2.1"} <= set(asked[0])


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'format is "json" and must be "parquet" or "csv"'):
        prepare_movielens(tmp_path, format="json")  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(1, 5), st.integers(0, 6)), max_size=60))
def test_a_history_is_the_last_liked_items_of_earlier_timestamps(rows: list[tuple[int, int, int, int]]) -> None:
    rows.sort(key=lambda r: r[3])
    names = ("user_id", "item_id", "rating", "timestamp")
    found = list(movielens._histories([dict(zip(names, map(str, r), strict=True)) for r in rows]))
    for (user, _, _, now), history in zip(rows, found, strict=True):
        before = [item for u, item, rating, then in rows if u == user and then < now and rating >= 4]
        assert history == before[-movielens.HISTORY_LENGTH :]

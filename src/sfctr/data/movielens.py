"""MovieLens-100K as a click log: real rows to try a model on, taken from a package of the Python package index.

The ratings of GroupLens' data set are read from three text files inside the wheel of RecBole 1.2.1; its code is never
imported. Rows are in time order, and nothing in a row comes from its own time or later: `history` holds what the user
had liked strictly before, so rows of one user with one timestamp do not see each other.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.csv

from sfctr.spec.errors import ConfigError, DataError, writing
from sfctr.telemetry import notice

from .parquet_writer import WholeParquet

PACKAGE = "recbole==1.2.1"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
HISTORY_LENGTH = 20
LIKED_FROM = 4.0
"""Ratings of at least this (of 5) count as a click."""

TERMS = """\
movielens.* in this folder is derived from the MovieLens 100K data set of GroupLens Research at the University of
Minnesota (https://grouplens.org/datasets/movielens/100k/). The terms of the data set, in short:

- It is for research. Commercial or revenue-bearing use needs permission from a faculty member of GroupLens.
- It must not be passed on to others without separate permission, and that holds for this folder too.
- Do not state or imply that the University of Minnesota or GroupLens endorses you.
- Publications that use it acknowledge it by citing:
  F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. ACM Transactions on
  Interactive Intelligent Systems 5, 4, Article 19. https://doi.org/10.1145/2827872

The full terms are in the README of the data set.
"""

_FOLDER = "recbole/dataset_example/ml-100k"
_WORD = re.compile(r"[\w']+")

Rows = list[dict[str, str]]


class MovieLensFiles(NamedTuple):
    """What `prepare_movielens` wrote."""

    ratings: Path
    terms: Path


def prepare_movielens(
    out_dir: str | os.PathLike[str],
    wheel: str | os.PathLike[str] | None = None,
    *,
    format: Literal["parquet", "csv"] = "parquet",
    sha256: str = WHEEL_SHA256,
) -> MovieLensFiles:
    """Write movielens.parquet (or .csv) and TERMS.txt into `out_dir`; files that are there already are kept.

    Columns: label (1 where the rating is at least 4), user, item, age int64, gender, occupation text, genres and title
    lists of text, history list of int64 (items liked before, oldest first, at most 20), timestamp in UTC. In CSV a list
    is text separated by blanks. Without `wheel` pip downloads it. Raises DataError where the wheel cannot be had or is
    not the one known.
    """
    if format not in ("parquet", "csv"):
        raise ConfigError(f'movielens: format is "{format}" and must be "parquet" or "csv"')
    folder = Path(out_dir)
    files = MovieLensFiles(folder / f"movielens.{format}", folder / "TERMS.txt")
    notice(
        f"MovieLens 100K (GroupLens): for research, not to be passed on; cite Harper and Konstan 2015; {files.terms}"
    )
    if files.ratings.exists() and files.terms.exists():
        return files
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(wheel) if wheel is not None else _downloaded(Path(scratch))
        table = _table(*_texts(source, sha256))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.terms.write_text(TERMS)
    _write(table, files.ratings)
    return files


def _downloaded(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise DataError(
            f"{PACKAGE}, which carries MovieLens, could not be downloaded ({reason})",
            remedy=f"try again with a network, or run 'pip download --no-deps {PACKAGE}' elsewhere and give the wheel",
        )
    return wheels[0]


def _texts(wheel: Path, sha256: str) -> tuple[Rows, Rows, Rows]:
    """Rows of the ratings, users and items files of the wheel."""
    try:
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=str(wheel)) from None
    if found != sha256:
        raise DataError(
            f"its SHA-256 is {found} and must be {sha256}", file=str(wheel), remedy=f"give the wheel of {PACKAGE}"
        )
    with zipfile.ZipFile(wheel) as archive:
        ratings, users, items = (
            _rows(archive.read(f"{_FOLDER}/ml-100k.{name}").decode()) for name in ("inter", "user", "item")
        )
    return ratings, users, items


def _rows(text: str) -> Rows:
    """Tab-separated lines under a header such as "user_id:token\\trating:float"."""
    header, *lines = text.splitlines()
    names = [name.partition(":")[0] for name in header.split("\t")]
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def _table(ratings: Rows, users: Rows, items: Rows) -> pa.Table:
    ratings = sorted(ratings, key=lambda r: float(r["timestamp"]))
    user_of = {user["user_id"]: user for user in users}
    item_of = {item["item_id"]: item for item in items}
    who = [user_of[r["user_id"]] for r in ratings]
    what = [item_of[r["item_id"]] for r in ratings]
    seconds = pa.array([int(float(r["timestamp"])) for r in ratings], pa.int64())
    return pa.table(
        {
            "label": pa.array([int(_liked(r)) for r in ratings], pa.int8()),
            "user": pa.array([int(r["user_id"]) for r in ratings], pa.int64()),
            "item": pa.array([int(r["item_id"]) for r in ratings], pa.int64()),
            "age": pa.array([int(user["age"]) for user in who], pa.int64()),
            "gender": pa.array([user["gender"] for user in who]),
            "occupation": pa.array([user["occupation"] for user in who]),
            "genres": pa.array([item["class"].split() for item in what]),
            "title": pa.array([_WORD.findall(item["movie_title"].lower()) for item in what]),
            "history": pa.array(list(_histories(ratings)), pa.list_(pa.int64())),
            "timestamp": seconds.cast(pa.timestamp("s", "UTC")).cast(pa.timestamp("ms", "UTC")),
        }
    )


def _liked(rating: dict[str, str]) -> bool:
    return float(rating["rating"]) >= LIKED_FROM


def _histories(ratings: Rows) -> Iterator[list[int]]:
    """For each rating, in time order: the last items that its user liked at an earlier timestamp, oldest first."""
    liked: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=HISTORY_LENGTH))
    waiting: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for rating in ratings:
        user, now = rating["user_id"], rating["timestamp"]
        if waiting[user] and waiting[user][0][0] != now:
            liked[user].extend(item for _, item in waiting.pop(user))
        yield list(liked[user])
        if _liked(rating):
            waiting[user].append((now, int(rating["item_id"])))


def _write(table: pa.Table, path: Path) -> None:
    """At once or not at all: a half-written file never has the final name."""
    if path.suffix == ".parquet":
        with WholeParquet(path, table.schema) as writer:
            writer.write(table)
        return
    beside = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            pyarrow.csv.write_csv(_with_text_lists(table), beside)
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _with_text_lists(table: pa.Table) -> pa.Table:
    for name in ("genres", "title", "history"):
        texts = [" ".join(map(str, entries)) for entries in table[name].to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(texts))
    return table

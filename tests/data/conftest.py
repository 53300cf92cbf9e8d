"""Small inputs written in one line, and what a source makes of them."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfctr.data import open_source
from sfctr.data.rows import joined
from sfctr.spec.schema import Schema
from sfctr.telemetry import Recorder

SCHEMA_WORDS = ("label", "weight", "time", "keep")


@pytest.fixture
def parquet(tmp_path):
    """parquet({"a": [1, 2]}) writes a file and gives its path; values may be Arrow arrays."""

    def write(columns, name="rows.parquet", **options) -> str:
        path = tmp_path / name
        pq.write_table(pa.table(columns), path, **options)
        return str(path)

    return write


@pytest.fixture
def text_file(tmp_path):
    """text_file("a,b\\n1,2\\n") writes a file and gives its path; so does text_file([["a", "b"], [1, None]])."""

    def write(content, name="rows.csv") -> str:
        path = tmp_path / name
        if isinstance(content, list):
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerows([["" if v is None else v for v in row] for row in content])
            content = out.getvalue()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def notices(caplog):
    """The notices given during the test, as if none had been given before."""
    with Recorder(), caplog.at_level(logging.INFO, logger="sfctr"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "sfctr"]


@pytest.fixture
def read():
    """read(data, *features) gives all rows in file order as one batch; labels are read where label= names them."""

    def read_all(data, *features, **more):
        words = {word: more.pop(word) for word in SCHEMA_WORDS if word in more}
        more.setdefault("labels", "required" if "label" in words else "none")
        more.setdefault("shuffle", False)
        schema = Schema(features=features, **{"label": "no such label", **words})
        with open_source(data, schema, **more) as source:
            return joined(list(source))

    return read_all


@pytest.fixture
def keys_of():
    """Keys of a one-key feature of a batch, None where missing."""

    def keys(batch, feature) -> list[int | None]:
        found = batch.keys[feature]
        assert found.offsets is None
        nulls = [0] * len(found.keys) if found.nulls is None else found.nulls.tolist()
        return [None if null else key for key, null in zip(found.keys.tolist(), nulls, strict=True)]

    return keys


@pytest.fixture
def lists_of():
    """Keys of a bag or sequence of a batch (or its weights), a list for each row."""

    def lists(batch, feature, part="keys") -> list[list]:
        found = batch.keys[feature]
        assert found.nulls is None
        bounds = found.offsets.tolist()
        return [getattr(found, part)[a:b].tolist() for a, b in itertools.pairwise(bounds)]

    return lists


@pytest.fixture
def open_handles():
    """How many file descriptors this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))

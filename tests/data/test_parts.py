"""Ranges of rows that ranks read, one each: together the source, in order, in equally many batches."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfctr.data import open_source, open_training
from sfctr.data.taking import part_of
from sfctr.spec.runfile import Data
from sfctr.spec.schema import Categorical, Schema

SCHEMA = Schema(label="y", features=[Categorical("id", dtype="int64")])


def table(rows: int) -> pa.Table:
    return pa.table({"id": np.arange(rows) * 3, "y": np.arange(rows) % 2})


def rows_of_ranks(make, size: int) -> tuple[list[list[int]], set[int]]:
    """The rows of each rank, and how many batches they gave."""
    rows, counts = [], set()
    for rank in range(size):
        with make((rank, size)) as source:
            batches = list(source)
            assert all(np.array_equal(b.keys["id"].keys, b.rows.astype(np.uint64) * 3) for b in batches)
            assert not any(b.size == 0 and c.size for b, c in itertools.pairwise(batches))
            rows.append([row for batch in batches for row in batch.rows.tolist()])
            counts.add(len(batches))
    return rows, counts


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["parquet", "csv", "table", "dicts", "generator"])
def test_ranks_read_the_source_in_turn_and_give_equally_many_batches(kind, size, parquet, text_file):
    rows = table(103)

    def make(part):
        data = {
            "parquet": lambda: parquet(rows, row_group_size=9),
            "csv": lambda: text_file([rows.column_names, *zip(*rows.to_pydict().values(), strict=True)]),
            "table": lambda: rows,
            "dicts": lambda: rows.to_pylist(),
            "generator": lambda: iter(rows.to_pylist()),
        }[kind]()
        return open_source(data, SCHEMA, batch_size=10, shuffle=False, labels="none", part=part)

    found, counts = rows_of_ranks(make, size)
    assert [row for of_rank in found for row in of_rank] == list(range(103))
    assert counts == {-(-max(len(of_rank) for of_rank in found) // 10)}
    assert max(len(of_rank) for of_rank in found) - 103 / size < 9


def test_ranks_without_rows_give_empty_batches():
    found, counts = rows_of_ranks(lambda part: open_source(table(2), SCHEMA, shuffle=False, part=part), 4)
    assert found == [[], [0], [], [1]] and counts == {1}


def test_held_out_rows_are_read_in_parts_too(parquet):
    def make(part, **options):
        train, held_out = open_training(
            Data(train=(parquet(table(300)),), **options), SCHEMA, batch_size=16, seed=0, part=part
        )
        train.close()
        return held_out

    for options in ({"valid_fraction": 0.3}, {"valid": (parquet(table(200), "valid.parquet", row_group_size=10),)}):
        with make(None, **options) as source:
            whole = [row for batch in source for row in batch.rows.tolist()]
        found, counts = rows_of_ranks(lambda part, options=options: make(part, **options), 3)
        assert [row for of_rank in found for row in of_rank] == whole and len(counts) == 1 and all(found)


def test_no_row_group_is_read_by_two_ranks_where_there_are_enough(parquet, monkeypatch):
    path = parquet(table(1000), row_group_size=30)
    read: list[list[int]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def recording(self, size, *, row_groups, **more):
        read.append(list(row_groups))
        return iter_batches(self, size, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recording)
    for rank in range(4):
        with open_source(path, SCHEMA, shuffle=False, part=(rank, 4)) as source:
            list(source)
    assert [group for groups in read for group in groups] == list(range(34)) and all(len(groups) > 6 for groups in read)


@given(
    num_rows=st.integers(0, 1000),
    size=st.integers(1, 9),
    batch_size=st.integers(1, 50),
    edges=st.sets(st.integers(0, 1000), max_size=12),
)
def test_ranges_are_nearly_equal_and_end_at_edges_near_by(num_rows, size, batch_size, edges):
    known = sorted({0, *(edge for edge in edges if edge < num_rows)}) if edges else []
    parts = [part_of(rank, size, num_rows=num_rows, batch_size=batch_size, edges=known) for rank in range(size)]
    assert parts[0].start == 0 and parts[-1].stop == num_rows
    assert all(one.stop == other.start for one, other in itertools.pairwise(parts))
    lengths = [part.stop - part.start for part in parts]
    assert min(lengths) >= 0 and max(lengths) <= 1.5 * num_rows / size + 1
    assert {part.num_batches for part in parts} == {-(-max(lengths) // batch_size)}
    for rank, part in enumerate(parts[1:], start=1):
        even = rank * num_rows // size
        nearest = min((abs(edge - even) for edge in [*known, num_rows]), default=num_rows)
        assert abs(part.start - even) == (nearest if known and nearest * 4 * size <= num_rows else 0)

"""A rows file gives back what was written, and refuses everything else."""

from __future__ import annotations

import numpy as np
import pytest

from sfctr.checkpoint import rows_file
from sfctr.checkpoint.disk import Disk, OutFile
from sfctr.checkpoint.layout import RecordLayout
from sfctr.checkpoint.rows_file import Header, Rows, RowsFile, RowsWriter
from sfctr.spec.errors import CheckpointError

PARTS = {"vector": (0, 2), "linear": (2, 0), "vector_state": (2, 1), "linear_state": (3, 0)}


def layout(has_last=True, **more):
    options = {"dim": 2, "dtype": "fp32", "vector_rule": "rowwise_adagrad", "linear_rule": None}
    return RecordLayout(tables=("a", "b"), record_floats=3, parts=PARTS, has_last=has_last, **(options | more))


def written(path, has_last=True, keys=5):
    """A file with one tombstone and two spaces' rows."""
    rows = [
        Rows(
            space=space,
            keys=np.uint64(2**64 - 1) - np.arange(keys, dtype=np.uint64) - np.uint64(9 * space),
            last=np.arange(keys, dtype=np.uint32) if has_last else None,
            records=np.arange(3 * keys, dtype=np.float32).reshape(keys, 3) + space,
        )
        for space in (0, 3)
    ]
    with OutFile(Disk(), path) as file:
        writer = RowsWriter(file, Header(step=7, since=4, layout=layout(has_last)))
        writer.tombstones(2, np.array([9], np.uint64))
        for each in rows:
            writer.rows(each)
        writer.finish()
    return rows


def read(path):
    file = RowsFile(path)
    try:
        return file.header, list(file.blocks())
    finally:
        file.close()


@pytest.mark.parametrize("has_last", [True, False])
@pytest.mark.parametrize("block_bytes", [8 << 20, 64, 1])
def test_rows_and_tombstones_come_back_in_order_whatever_the_blocks(tmp_path, monkeypatch, has_last, block_bytes):
    monkeypatch.setattr(rows_file, "BLOCK_BYTES", max(block_bytes, 8))
    wanted = written(tmp_path / "x.rows", has_last)
    header, blocks = read(tmp_path / "x.rows")
    assert header == Header(step=7, since=4, layout=layout(has_last))
    assert (blocks[0].space, blocks[0].keys.tolist()) == (2, [9])
    for rows in wanted:
        found = [block for block in blocks[1:] if block.space == rows.space]
        assert np.concatenate([b.keys for b in found]).tolist() == rows.keys.tolist()
        assert np.concatenate([b.records for b in found]).tobytes() == rows.records.tobytes()
        assert all((b.last is not None) == has_last for b in found)
        if has_last:
            assert np.concatenate([b.last for b in found]).tolist() == rows.last.tolist()
    assert len(blocks) == 1 + {8 << 20: 2, 64: 6 if has_last else 4, 1: 10}[block_bytes]


def test_a_file_without_rows_is_whole(tmp_path):
    with OutFile(Disk(), tmp_path / "x.rows") as file:
        RowsWriter(file, Header(step=1, since=None, layout=layout())).finish()
    assert read(tmp_path / "x.rows")[1] == []


def test_every_flipped_bit_is_found_and_named(tmp_path):
    written(tmp_path / "x.rows", keys=2)
    whole = (tmp_path / "x.rows").read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "x.rows").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"x\.rows(, byte [\d,]+)?: ") as error:
            read(tmp_path / "x.rows")
        assert 8 <= at < 12 or ", byte " in str(error.value)


def test_every_torn_end_is_found(tmp_path):
    written(tmp_path / "x.rows", keys=2)
    whole = (tmp_path / "x.rows").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "x.rows").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=rf"byte {size:,}: the file ends where [\d,]+ bytes more are needed"):
            read(tmp_path / "x.rows")


def test_what_follows_the_end_is_refused(tmp_path):
    written(tmp_path / "x.rows")
    with (tmp_path / "x.rows").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CheckpointError, match="bytes follow the end"):
        read(tmp_path / "x.rows")


def test_a_later_version_and_a_missing_file_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_file, "VERSION", 2)
    written(tmp_path / "x.rows")
    monkeypatch.setattr(rows_file, "VERSION", 1)
    with pytest.raises(CheckpointError, match="version 2 was found and version 1 is needed"):
        read(tmp_path / "x.rows")
    with pytest.raises(CheckpointError, match=r"y\.rows cannot be read \(No such file"):
        read(tmp_path / "y.rows")


def test_a_block_that_was_left_out_is_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_file, "BLOCK_BYTES", 8)
    written(tmp_path / "x.rows", keys=3)
    whole = (tmp_path / "x.rows").read_bytes()
    one_row, end = 16 + 8 + 4 + 12, 16 + 16
    (tmp_path / "x.rows").write_bytes(whole[: -end - one_row] + whole[-end:])
    with pytest.raises(CheckpointError, match="the end tells of other counts than"):
        read(tmp_path / "x.rows")


def chosen_of(path, chosen):
    file = RowsFile(path)
    try:
        return list(file.blocks(chosen))
    finally:
        file.close()


@pytest.mark.parametrize("has_last", [True, False])
def test_of_a_block_what_is_chosen_is_given(tmp_path, has_last):
    first, second = written(tmp_path / "x.rows", has_last)

    def odd(space, keys):
        return (keys % np.uint64(2) == 1) & (space != 2)

    blocks = chosen_of(tmp_path / "x.rows", odd)
    assert [(block.space, block.keys.tolist()) for block in blocks] == [
        (rows.space, rows.keys[rows.keys % np.uint64(2) == 1].tolist()) for rows in (first, second)
    ]
    assert blocks[0].records.tolist() == first.records[::2].tolist()
    assert (blocks[0].last.tolist() if has_last else blocks[0].last) == ([0, 2, 4] if has_last else None)
    assert len(chosen_of(tmp_path / "x.rows", lambda _, keys: np.ones(keys.size, np.bool_))) == 3


def test_a_block_without_anything_chosen_is_passed_over_unread(tmp_path):
    """As long as it is: its bytes may be damaged, and the file's end may not be nearer."""
    first, second = written(tmp_path / "x.rows")
    data = (tmp_path / "x.rows").read_bytes()
    at = data.index(first.records.tobytes())
    (tmp_path / "x.rows").write_bytes(data[:at] + b"?" + data[at + 1 :])
    [block] = chosen_of(tmp_path / "x.rows", lambda space, keys: np.full(keys.size, space == 3))
    assert block.records.tolist() == second.records.tolist()
    with pytest.raises(CheckpointError, match="a block of 5 keys has another CRC-32"):
        chosen_of(tmp_path / "x.rows", lambda space, keys: np.full(keys.size, space == 0))
    for cut in (1, 30, len(data) - at - 8):
        (tmp_path / "x.rows").write_bytes(data[:-cut])
        with pytest.raises(CheckpointError, match="the file ends where"):
            chosen_of(tmp_path / "x.rows", lambda _, keys: np.zeros(keys.size, np.bool_))

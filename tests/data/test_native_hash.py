"""Native loops over texts and records, each against the plain Python that says the same."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sfctr import _native


def spans(texts, dtype=np.int64):
    """data, starts and ends of some bytes laid end to end."""
    ends = np.cumsum([len(text) for text in texts], dtype=dtype)
    return np.frombuffer(b"".join(texts) or b"-", np.uint8), ends - np.array([len(t) for t in texts], dtype), ends


def parsed(function, text: str, dtype):
    """The number of one text, or None where it is refused."""
    out = np.zeros(1, dtype)
    return None if function(*spans([text.encode()]), out) == 0 else out[0].item()


def test_xxh3_is_that_of_the_reference_for_every_length_class():
    data = random.Random(1).randbytes(100_000)
    for size in [*range(2001), 4096, 65_537, 100_000]:
        assert _native.xxh3_64(data[:size]) == xxhash.xxh3_64_intdigest(data[:size]), size


@given(st.binary(max_size=700))
def test_xxh3_is_that_of_the_reference_for_any_bytes(data):
    assert _native.xxh3_64(data) == xxhash.xxh3_64_intdigest(data)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_every_span_is_hashed_for_both_offset_types(dtype):
    texts = [b"", b"a", "é".encode(), b"x" * 300, "日本語".encode()]
    out = np.zeros(len(texts), np.uint64)
    assert _native.hash_spans(*spans(texts, dtype), out) == -1
    assert out.tolist() == [xxhash.xxh3_64_intdigest(text) for text in texts]


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=4))
def test_the_first_text_that_is_not_utf8_is_named(texts):
    def is_bad(text):
        try:
            text.decode()
        except UnicodeDecodeError:
            return True
        return False

    expected = next((i for i, text in enumerate(texts) if is_bad(text)), -1)
    assert _native.hash_spans(*spans(texts), np.zeros(len(texts), np.uint64)) == expected


def test_outputs_of_another_type_or_length_and_spans_outside_the_data_are_refused():
    data, starts, ends = spans([b"a", b"b"])
    with pytest.raises(TypeError):
        _native.hash_spans(data, starts, ends, np.zeros(2, np.int64))
    with pytest.raises(TypeError):
        _native.hash_spans(data, starts, ends, np.zeros(4, np.uint64)[::2])
    with pytest.raises(ValueError, match="out is not as long"):
        _native.hash_spans(data, starts, ends, np.zeros(3, np.uint64))
    with pytest.raises(ValueError, match="outside of the data"):
        _native.hash_spans(data, starts, ends + 1, np.zeros(2, np.uint64))


EDGES = [0, 1, 9, 10, 10**7, 10**8, 10**15, 10**16, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**20]


@pytest.mark.parametrize("value", [*EDGES, *(-e for e in EDGES)])
def test_integers_are_read_up_to_the_bounds_of_their_type(value):
    signed = value if -(2**63) <= value < 2**63 else None
    unsigned = value if 0 <= value < 2**64 else None
    assert parsed(_native.parse_int64s, str(value), np.int64) == signed
    assert parsed(_native.parse_uint64s, str(value), np.uint64) == unsigned


@pytest.mark.parametrize("text", ["+1", "01", "-0", "-", " 1", "1 ", "1.0", "1e3", "0x1", "١", "12345678a", "1_000"])
def test_only_the_canonical_form_of_an_integer_is_one(text):
    assert parsed(_native.parse_int64s, text, np.int64) is None
    assert parsed(_native.parse_uint64s, text, np.uint64) is None


@given(st.text("0123456789.-+e ", max_size=24))
def test_integers_and_numbers_are_read_as_python_reads_them(text):
    try:
        integer = int(text) if str(int(text)) == text and -(2**63) <= int(text) < 2**63 else None
    except ValueError:
        integer = None
    try:
        number = float(text)
    except ValueError:
        number = None
    if text:
        assert parsed(_native.parse_int64s, text, np.int64) == integer
        assert parsed(_native.parse_doubles, text, np.float64) == number


@given(st.floats(allow_nan=False))
def test_a_printed_double_is_read_back(value):
    assert parsed(_native.parse_doubles, repr(value), np.float64) == value


@pytest.mark.parametrize(("text", "value"), [("1e999", np.inf), ("-1e999", -np.inf), ("1e-999", 0.0), ("\t+2 ", 2.0)])
def test_numbers_out_of_range_and_with_blanks_around_them_are_read(text, value):
    assert parsed(_native.parse_doubles, text, np.float64) == value


@pytest.mark.parametrize("text", ["abc", "1,5", "0x10", " ", "--1", "+-1", "1 2"])
def test_a_text_that_is_no_number_is_named(text):
    assert parsed(_native.parse_doubles, text, np.float64) is None


@given(st.floats(width=32, allow_nan=False))
def test_a_float_is_widened_to_the_double_of_its_shortest_text(value):
    out = np.zeros(1)
    _native.widen_floats(np.array([value], np.float32), out)
    assert out[0] == float(str(np.float32(value)))


@given(st.lists(st.text("ab|", max_size=8), max_size=6), st.sampled_from(["|", "||", "ab"]))
def test_texts_are_split_as_python_splits_them(texts, separator):
    data = spans([t.encode() for t in texts])
    offsets = np.zeros(len(texts) + 1, np.int64)
    _native.count_tokens(*data, separator.encode(), offsets)
    expected = [token for text in texts if text for token in text.split(separator)]
    starts, ends = np.zeros(len(expected), np.int64), np.zeros(len(expected), np.int64)
    _native.find_tokens(*data, separator.encode(), starts, ends)
    assert np.diff(offsets).tolist() == [len(text.split(separator)) if text else 0 for text in texts]
    assert [bytes(data[0][a:b]).decode() for a, b in zip(starts, ends, strict=True)] == expected


def test_the_last_separator_of_a_text_is_found():
    out = np.zeros(3, np.int64)
    _native.find_last(*spans([b"a:b:1", b"none", b":"]), b":", out)
    assert out.tolist() == [3, -1, 9]


def test_empty_texts_and_markers_are_null():
    out = np.zeros(4, np.uint8)
    _native.mark_null_spans(*spans([b"", b"NA", b"N", b"-"]), [b"NA", b"-"], out)
    assert out.tolist() == [1, 1, 0, 1]


def test_a_cross_is_the_hash_of_nine_bytes_a_part():
    keys = [np.array([1, 2**64 - 1], np.uint64), np.array([7, 7], np.uint64)]
    out = np.zeros(2, np.uint64)
    _native.cross_keys(keys, [None, np.array([0, 1], np.uint8)], out)
    first = b"\x01" + (1).to_bytes(8, "little") + b"\x01" + (7).to_bytes(8, "little")
    second = b"\x01" + b"\xff" * 8 + b"\x00" * 9
    assert out.tolist() == [xxhash.xxh3_64_intdigest(first), xxhash.xxh3_64_intdigest(second)]


@given(st.integers(0, 2**32), st.integers(1, 150))
def test_records_packed_and_gathered_are_the_picked_rows(seed, size):
    rng = np.random.default_rng(seed)
    columns = [
        rng.integers(0, 2**63, size).astype(np.uint64),
        rng.random((size, 3)).astype(np.float32),
        rng.integers(0, 2, size).astype(np.uint8),
        np.zeros((size, 0), np.float32),
    ]
    offsets = [0, 8, 20, 21]
    records = np.zeros((size, 21), np.uint8)
    _native.pack_records(columns, offsets, records)
    which, rows = rng.integers(0, 2, 200).astype(np.uint32), rng.integers(0, size, 200).astype(np.uint32)
    outs = [np.zeros((200, *c.shape[1:]), c.dtype) for c in columns]
    _native.gather_records([records, records[::-1].copy()], which, rows, offsets, outs)
    for column, out in zip(columns, outs, strict=True):
        assert (
            out == np.where((which == 0).reshape(-1, *[1] * (column.ndim - 1)), column[rows], column[::-1][rows])
        ).all()


def test_a_pick_outside_of_its_piece_is_refused():
    records = np.zeros((2, 8), np.uint8)
    out = np.zeros(1, np.uint64)
    for which, row in ((0, 2), (1, 0)):
        with pytest.raises(ValueError, match="outside of its piece"):
            _native.gather_records([records], np.array([which], np.uint32), np.array([row], np.uint32), [0], [out])


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=8), st.data())
def test_gathered_lists_are_the_picked_rows(lists, data):
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64)
    items = np.array([v for x in lists for v in x], np.uint64)
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=10))
    which, where = np.zeros(len(rows), np.uint32), np.array(rows, np.uint32)
    bounds = np.zeros(len(rows) + 1, np.int64)
    _native.gather_offsets([offsets], which, where, bounds)
    out = np.zeros(bounds[-1], np.uint64)
    _native.gather_items([items], [offsets], which, where, bounds, out)
    assert [out[a:b].tolist() for a, b in itertools.pairwise(bounds)] == [lists[r] for r in rows]

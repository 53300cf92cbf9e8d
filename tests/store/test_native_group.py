"""What a group of rows promises around the arithmetic: who gets a row and when, reading, the way in and out, errors."""

from __future__ import annotations

import numpy as np
import pytest

from sfctr import _native

HYPER = np.array([[{"lr": 1.0}.get(column, 0.0) for column in _native.hyper_columns()]])
AWKWARD = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 1234567890123456788, 1234567890123456789], dtype=np.uint64)


def make_group(dim: int = 2, *, frozen: bool = False, b: float = 0.5) -> _native.RowGroup:
    return _native.RowGroup(dim, False, "sgd", None, [_native.TableInit(1, 2, "normal", 0.0, b, frozen=frozen)])


def make_set(keys: np.ndarray, nulls: np.ndarray | None = None) -> _native.WorkingSet:
    return _native.WorkingSet(1, keys.size, [_native.FeatureKeys(0, "one", keys, nulls=nulls)])


def read(group: _native.RowGroup, keys: np.ndarray, *, train: bool = False) -> np.ndarray:
    ws = make_set(keys)
    group.locate(ws, train=train)
    out = np.empty(keys.size * 2, dtype=np.float32)
    group.forward(ws, 0, keys.size, out)
    return out.reshape(-1, 2)


def train(group: _native.RowGroup, keys: np.ndarray, gradient: float = 0.0) -> int:
    ws = make_set(keys)
    group.locate(ws, train=True)
    group.backward(ws, 0, keys.size, [np.full((keys.size, 2), gradient, dtype=np.float32)], [])
    before = group.num_rows(0)
    group.update(ws, 1, 1.0, HYPER)
    return group.num_rows(0) - before


def all_rows(group: _native.RowGroup, table: int = 0, count: int = 100) -> tuple[np.ndarray, np.ndarray]:
    keys, records, start = [], [], 0
    while start is not None:
        some, theirs, start = group.export_rows(table, start, count)
        keys.append(some)
        records.append(theirs)
    return np.concatenate(keys), np.concatenate(records)


def test_a_row_is_stored_at_the_first_update_that_reached_it() -> None:
    group = make_group()
    ws = make_set(AWKWARD)
    group.locate(ws, train=True)
    assert (group.num_rows(0), group.unseen(ws).tolist()) == (0, [7])
    out = np.empty(14, dtype=np.float32)
    group.forward(ws, 0, 7, out)
    assert (out != 0).all() and group.num_rows(0) == 0
    group.backward(ws, 0, 3, [np.zeros(6, dtype=np.float32)], [])
    group.update(ws, 1, 1.0, HYPER)
    assert group.num_rows(0) == 3
    np.testing.assert_array_equal(read(group, AWKWARD)[:3], out.reshape(7, 2)[:3])


def test_evaluation_reads_unseen_keys_as_zeros_and_adds_nothing() -> None:
    group = make_group()
    train(group, AWKWARD[:4])
    before = group.memory_bytes()
    ws = make_set(AWKWARD)
    group.locate(ws, train=False)
    assert group.unseen(ws).tolist() == [3]
    rows = read(group, AWKWARD)
    assert (rows[:4] != 0).all() and (rows[4:] == 0).all()
    assert (group.num_rows(0), group.memory_bytes()) == (4, before)
    with pytest.raises(RuntimeError, match="located for reading, not for training"):
        group.update(ws, 1, 1.0, HYPER)


def test_keys_beside_each_other_are_different_rows_and_missing_is_none_of_them() -> None:
    group = make_group()
    nulls = np.array([1, 0, 0, 0, 0, 0, 0], dtype=np.uint8)
    ws = make_set(AWKWARD, nulls)
    group.locate(ws, train=True)
    group.backward(ws, 0, 7, [np.arange(14, dtype=np.float32)], [])
    group.update(ws, 1, 1.0, HYPER)
    assert (group.num_rows(0), group.num_rows(1)) == (6, 1)
    keys, records = all_rows(group)
    assert sorted(keys.tolist()) == sorted(AWKWARD[1:].tolist())
    assert len(np.unique(records[:, 0])) == 6
    assert all_rows(group, 1)[0].tolist() == [0]


def test_a_frozen_table_is_read_and_never_changed() -> None:
    group = make_group(frozen=True)
    values = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    group.import_rows(0, AWKWARD[:2], values)
    ws = make_set(AWKWARD)
    group.locate(ws, train=True)
    assert group.unseen(ws).tolist() == [5]
    group.backward(ws, 0, 7, [np.ones(14, dtype=np.float32)], [])
    assert group.grad_norm_squared(ws) == 0.0
    group.update(ws, 1, 1.0, HYPER)
    rows = read(group, AWKWARD, train=True)
    np.testing.assert_array_equal(rows[:2], values)
    assert (rows[2:] == 0).all() and group.num_rows(0) == 2


def test_rows_go_out_in_an_order_of_their_keys_alone_and_come_back_the_same() -> None:
    group, other, again = make_group(), make_group(), make_group()
    random = np.random.default_rng(0)
    keys = random.permutation(np.arange(50_000, dtype=np.uint64) << np.uint64(32))
    for start in range(0, keys.size, 10_000):
        train(group, keys[start : start + 10_000])
    train(again, keys[::-1].copy())
    seen, records = all_rows(group, count=700)
    other.import_rows(0, seen, records)
    assert sorted(seen.tolist()) == sorted(keys.tolist())
    for each, count in ((other, 50_000), (again, 1)):
        np.testing.assert_array_equal(all_rows(each, count=max(count, 999))[0], seen)
    np.testing.assert_array_equal(read(group, keys), read(other, keys))
    assert group.export_rows(0, 2**64 - 1, 10)[2] is None


def test_import_overwrites_and_takes_the_last_of_two() -> None:
    group = make_group()
    keys = np.array([5, 6, 5], dtype=np.uint64)
    group.import_rows(0, keys, np.array([[1, 1], [2, 2], [3, 3]], dtype=np.float32))
    group.import_rows(0, keys[1:2], np.array([[7, 7]], dtype=np.float32))
    assert group.num_rows(0) == 2
    records = np.zeros((3, 2), dtype=np.float32)
    found = group.find(0, np.array([6, 4, 5], dtype=np.uint64), records)
    assert found.tolist() == [1, 0, 1]
    assert records[:, 0].tolist() == [7.0, 0.0, 3.0]


def test_a_key_that_two_batches_bring_is_one_row_in_the_order_of_their_steps() -> None:
    group = make_group(b=0.0)
    first, second = make_set(AWKWARD[:2]), make_set(AWKWARD[1:3])
    for ws in (first, second):
        group.locate(ws, train=True)
    out = np.empty(4, dtype=np.float32)
    for ws, gradient in ((first, 1.0), (second, 10.0)):
        group.forward(ws, 0, 2, out)
        group.backward(ws, 0, 2, [np.full(4, gradient, dtype=np.float32)], [])
        group.update(ws, 1, 1.0, HYPER)
    assert out.tolist() == [-1.0, -1.0, 0.0, 0.0]
    assert group.num_rows(0) == 3
    assert read(group, AWKWARD[:4])[:, 0].tolist() == [-1.0, -11.0, -10.0, 0.0]


def test_a_key_whose_batches_all_end_without_training_it_is_no_row() -> None:
    group = make_group()
    first, second, third = make_set(AWKWARD), make_set(AWKWARD[:3]), make_set(AWKWARD[2:4])
    for ws in (first, second, third):
        group.locate(ws, train=True)
    group.discard(first)
    group.backward(second, 0, 2, [np.ones(4, dtype=np.float32)], [])
    group.update(second, 1, 1.0, HYPER)
    assert group.num_rows(0) == 2
    del third  # whoever forgets a batch discards it
    assert group.num_rows(0) == 2
    assert sorted(all_rows(group)[0].tolist()) == AWKWARD[:2].tolist()
    assert train(group, AWKWARD) == 5


def test_an_update_ends_a_working_sets_use_until_it_is_located_again() -> None:
    group = make_group()
    ws = make_set(AWKWARD)
    out = np.empty(14, dtype=np.float32)
    with pytest.raises(RuntimeError, match="locate this working set in this group first"):
        group.forward(ws, 0, 7, out)
    group.locate(ws, train=True)
    with pytest.raises(RuntimeError, match="locate this working set in this group first"):
        make_group().forward(ws, 0, 7, out)
    with pytest.raises(RuntimeError, match="backward has not been called"):
        group.gradients(ws)
    group.update(ws, 1, 1.0, HYPER)
    assert group.num_rows(0) == 0
    for call in (lambda: group.forward(ws, 0, 7, out), lambda: group.update(ws, 2, 1.0, HYPER)):
        with pytest.raises(RuntimeError, match="locate this working set"):
            call()
    group.locate(ws, train=True)
    group.forward(ws, 0, 7, out)


def test_locating_again_forgets_merged_gradients() -> None:
    group = make_group(b=0.0)
    ws = make_set(AWKWARD)
    for _ in range(2):
        group.locate(ws, train=True)
        group.backward(ws, 0, 7, [np.ones(14, dtype=np.float32)], [])
    assert group.grad_norm_squared(ws) == 14.0
    group.update(ws, 1, 1.0, HYPER)
    assert (read(group, AWKWARD) == -1.0).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda g, ws: g.forward(ws, 0, 8, np.empty(16, np.float32)), ValueError, r"rows \[0, 8\) of a batch of 7"),
        (lambda g, ws: g.forward(ws, 5, 4, np.empty(0, np.float32)), ValueError, r"rows \[5, 4\)"),
        (lambda g, ws: g.forward(ws, 0, 7, np.empty(13, np.float32)), ValueError, "out has 13 floats and needs 14"),
        (lambda g, ws: g.forward(ws, 0, 7, np.empty(28, np.float32)[::2]), TypeError, "incompatible"),
        (lambda g, ws: g.forward(ws, 0, 7, np.empty(14, np.float64)), TypeError, "incompatible"),
        (
            lambda g, ws: g.forward(ws, 0, 7, np.empty(14, np.float32), np.empty((1, 7), np.float32)),
            ValueError,
            "linear_out has 7 floats and needs 0",
        ),
        (
            lambda g, ws: g.backward(ws, 0, 7, [np.empty(13, np.float32)], []),
            ValueError,
            "feature 0 has 13 floats and needs 14",
        ),
        (lambda g, ws: g.backward(ws, 0, 7, [], []), ValueError, "0 grads and 0 linear_grads for 1 features"),
        (
            lambda g, ws: g.backward(ws, 0, 7, [np.empty((7, 4), np.float32)[:, ::2]], []),
            TypeError,
            r"grads\[0\] must be a contiguous float32 array",
        ),
        (lambda g, ws: g.backward(ws, 0, 7, [np.zeros(14)], []), TypeError, r"grads\[0\] must be a contiguous float32"),
        (lambda g, ws: g.update(ws, 0, 1.0, HYPER), ValueError, "steps are counted from 1"),
        (lambda g, ws: g.update(ws, 1, 1.0, HYPER[:, 1:].copy()), ValueError, "hyper has 10 columns"),
        (lambda g, ws: g.update(ws, 1, 1.0, np.tile(HYPER, (2, 1))), ValueError, "a line for each of the 1 tables"),
        (lambda g, ws: g.num_rows(2), IndexError, "native table 2 of 2"),
        (lambda g, ws: g.find(0, AWKWARD, np.empty((7, 3), np.float32)), ValueError, r"records must be \[7, 2\]"),
        (lambda g, ws: g.import_rows(9, AWKWARD, np.empty((7, 2), np.float32)), IndexError, "native table 9 of 2"),
        (lambda g, ws: g.locate(_native.WorkingSet(2, 0, []), True), ValueError, "has 2 tables and the group 1"),
        (
            lambda g, ws: _native.RowGroup(0, False, "none", None, []),
            ValueError,
            "dim is 0 and there is no first-order",
        ),
        (lambda g, ws: _native.RowGroup(2, False, "none", None, []), ValueError, "rule must be 'none' exactly where"),
        (lambda g, ws: _native.RowGroup(2, True, "sgd", None, []), ValueError, "linear needs a rule"),
        (
            lambda g, ws: _native.RowGroup(2, False, "lion", None, []),
            ValueError,
            "no optimizer rule 'lion'; there are none, sgd",
        ),
        (lambda g, ws: _native.TableInit(1, 2, "zeros", 0.0, 0.0), ValueError, "kind is 'zeros'"),
    ],
)
def test_misuse_is_refused_in_words(call: object, error: type[Exception], words: str) -> None:
    group = make_group()
    ws = make_set(AWKWARD)
    group.locate(ws, train=True)
    with pytest.raises(error, match=words):
        call(group, ws)  # type: ignore[operator]


def test_memory_is_counted_and_small_tables_are_small() -> None:
    tables = [_native.TableInit(t, t, "normal", 0.0, 0.1) for t in range(100)]
    group = _native.RowGroup(16, False, "adam", None, tables)
    assert group.memory_bytes() < 100_000
    group.import_rows(0, AWKWARD[:3], np.zeros((3, 48), dtype=np.float32))
    assert group.memory_bytes() < 110_000
    keys = np.arange(200_000, dtype=np.uint64)
    group.import_rows(2, keys, np.zeros((keys.size, 48), dtype=np.float32))
    used = group.memory_bytes() - 110_000
    assert keys.size * 48 * 4 <= used <= keys.size * (48 * 4 + 24) + 3 * 2**21


def test_a_record_is_laid_out_as_documented() -> None:
    group = _native.RowGroup(4, True, "adam_row", "ftrl", [])
    assert group.layout() == {"vector": (0, 4), "linear": (4, 1), "vector_state": (5, 9), "linear_state": (14, 2)}
    assert group.record_floats == 16
    sizes = {"sgd": 0, "momentum": 4, "adagrad": 4, "rowwise_adagrad": 1, "adam": 8, "adam_row": 9, "ftrl": 8}
    for rule, size in sizes.items():
        assert _native.RowGroup(4, False, rule, None, []).layout()["vector_state"] == (4, size)


def test_a_view_is_good_until_rows_change() -> None:
    def view(group: _native.RowGroup) -> _native.WorkingSet:
        ws = make_set(keys)
        group.locate(ws, train=False)
        return ws

    def forward(group: _native.RowGroup, ws: _native.WorkingSet) -> None:
        group.forward(ws, 0, keys.size, np.empty(group.forward_floats(ws, keys.size), dtype=np.float32))

    keys = np.arange(5, dtype=np.uint64)
    changes = [
        lambda group: train(group, keys, 1.0),
        lambda group: group.remove_rows(0, keys[:1]),
        lambda group: group.import_rows(0, keys[:1], np.zeros((1, 2), dtype=np.float32)),
    ]
    for change in changes:
        group = make_group()
        train(group, keys, 1.0)
        ws = view(group)
        planned = make_set(keys)
        assert group.plan(planned)
        group.discard(planned)
        forward(group, ws)
        change(group)
        with pytest.raises(RuntimeError, match=r"rows have changed since .* locate it again"):
            forward(group, ws)
        group.locate(ws, train=False)
        forward(group, ws)

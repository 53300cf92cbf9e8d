"""The device tier of one group: a tensor whose lines hold rows, over the group's frames in RAM.

Which line holds which row is decided on the host, by the native core (lines.cpp); here records are copied and trained.
A row in a line keeps its frame in RAM, whose record is older than the line's while the line is dirty. Everything that
reads rows in RAM calls lower() first. A batch that has more rows than there are lines is trained in a tensor of its
own, of its size, with the same kernels. So are rows that a batch has adopted: they are looked up in a tensor of their
weights, and have no lines.

One thread may lift batches beside another one that trains, lowers and discards.

  C lines, U unique keys, R floats of a record
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import F32, I64, Bools
from sfctr.spec.errors import CapacityError

from .device.link import Link
from .device.rows import DeviceRows, Kind
from .rules import F64

Numbers = np.ndarray[tuple[int], np.dtype[np.uint32]]


class DeviceCache:
    """Rows of a group in `num_lines` lines on the link's device. Raises CapacityError where they do not fit there."""

    def __init__(self, native: _native.RowGroup, kind: Kind, link: Link, num_lines: int) -> None:
        self.num_lines = num_lines
        self._native, self._kind, self._link = native, kind, link
        self._lock = threading.Lock()  # whoever plans lines or copies
        self._in_flight: dict[_native.WorkingSet, DeviceRows] = {}
        self._spilled: dict[_native.WorkingSet, Numbers] = {}
        self._adopted: dict[_native.WorkingSet, DeviceRows] = {}
        self._lines = _make_lines(num_lines, native.record_floats, link)
        native.keep_lines(num_lines)

    def rows(self, working_set: _native.WorkingSet) -> DeviceRows | None:
        """The rows of a batch that was lifted or adopted and has not ended."""
        return self._in_flight.get(working_set) or self._adopted.get(working_set)

    def adopt(self, working_set: _native.WorkingSet, weights: F32, is_absent: Bools) -> None:
        """The rows of a batch are `weights` [U, W], from elsewhere; those absent [U] read as zeros."""
        self._let_go(working_set)
        rows = DeviceRows(self._kind, self._link, working_set, torch.empty(0), np.empty(0, np.int64), None)
        num_unique = weights.shape[0]
        records = torch.zeros(num_unique + 1, weights.shape[1], dtype=torch.float32)
        records.numpy()[:num_unique] = weights
        slots = np.where(is_absent, num_unique, np.arange(num_unique))
        rows.begin(records.to(self._link.device), slots)
        self._adopted[working_set] = rows

    def lift(self, working_set: _native.WorkingSet) -> bool:
        """Have all rows of a fetched batch on the device, until update() or discard().

        False, with nothing changed, where batches in flight hold the lines: try again when one of them has ended.
        """
        with self._lock:
            if not self._native.plan_lines(working_set):
                return False
            leaving, rising, spilled = self._native.line_moves(working_set)
            lines = self._native.lines(working_set)
            with self._link.copying():
                self._lower(leaving)
                self._native.lines_lowered(working_set)
                self._raise(working_set, rising, self._lines, lines[rising])
                self._native.lines_ready(working_set)
                records, slots = self._lines, lines
                if spilled.size:
                    records, slots = self._beside(working_set, lines, spilled), np.arange(lines.size)
                mark = self._link.mark()
            if spilled.size:
                self._spilled[working_set] = spilled
        self._in_flight[working_set] = DeviceRows(self._kind, self._link, working_set, records, slots, mark)
        return True

    def _raise(self, working_set: _native.WorkingSet, keys: Numbers, target: Tensor, lines: I64) -> None:
        self._link.up(lambda part, out: self._native.gather(working_set, keys[part], out), target, lines)

    def _beside(self, working_set: _native.WorkingSet, lines: I64, spilled: Numbers) -> Tensor:
        """[U, R]: the records of a batch that has too many for the lines; those in lines are there as well."""
        records = torch.zeros(lines.size, self._lines.shape[1], device=self._link.device, dtype=torch.float32)
        self._copy(self._lines, lines, records, np.arange(lines.size), np.flatnonzero(lines < self.num_lines))
        self._raise(working_set, spilled, records, spilled.astype(np.int64))
        return records

    def _copy(self, source: Tensor, from_lines: I64, target: Tensor, to_lines: I64, keys: I64) -> None:
        records = source.index_select(0, self._link.indices(from_lines[keys]))
        target.index_copy_(0, self._link.indices(to_lines[keys]), records)

    def update(
        self, working_set: _native.WorkingSet, step: int, scale: float, hyper: F64, linear_hyper: F64 | None
    ) -> None:
        """One optimizer step on the rows that backward reached; ends the batch."""
        rows = self._in_flight.get(working_set)
        if rows is None:
            raise RuntimeError("this working set is not ready on the device; or its rows are from elsewhere")
        rows.update(step, scale, hyper, linear_hyper)
        self._link.computed()
        reached = rows.reached
        if working_set in self._spilled:
            self._put_back(working_set, rows.records, np.flatnonzero(reached))
        self._forget(working_set)
        self._native.end_step(working_set, step, reached)

    def _put_back(self, working_set: _native.WorkingSet, records: Tensor, reached: I64) -> None:
        """What was trained beside the lines goes to the lines, and to RAM where a row has none."""
        spilled = np.intersect1d(self._spilled[working_set], reached.astype(np.uint32), assume_unique=True)
        lines = self._native.lines(working_set)
        with self._lock, self._link.copying():
            in_lines = reached[lines[reached] < self.num_lines]
            self._copy(records, np.arange(lines.size), self._lines, lines, in_lines)
            self._link.down(
                records,
                spilled.astype(np.int64),
                lambda part, found: self._native.scatter(working_set, spilled[part], found),
            )

    def discard(self, working_set: _native.WorkingSet) -> None:
        """Forget a batch, wherever it is on its way; the native group must be told as well."""
        self._let_go(working_set)

    def _let_go(self, working_set: _native.WorkingSet) -> None:
        self._adopted.pop(working_set, None)
        if working_set in self._in_flight:
            self._link.computed()
            self._forget(working_set)

    def _forget(self, working_set: _native.WorkingSet) -> None:
        del self._in_flight[working_set]
        self._spilled.pop(working_set, None)

    def lower(self) -> None:
        """Have every row in RAM as it is; lines keep theirs."""
        with self._lock:
            dirty = self._native.dirty_lines()
            if dirty.size:
                with self._link.copying():
                    self._lower(dirty)

    def _lower(self, lines: Numbers) -> None:
        self._link.down(self._lines, lines.astype(np.int64), lambda part, found: self._native.lower(lines[part], found))

    def drop(self) -> None:
        """Have every row in RAM alone. No batch may be in flight."""
        self.lower()
        self._native.drop_lines()

    def close(self) -> None:
        """Free what is on the device. The rows are lost, but for what was lowered."""
        self._link.finish()
        self._in_flight.clear()
        self._adopted.clear()
        self._spilled.clear()
        self._lines = self._lines.new_empty(0)


def _make_lines(num_lines: int, record_floats: int, link: Link) -> Tensor:
    """[C + 1, R]; the last line is what absent keys read, zeros."""
    try:
        lines = torch.empty(num_lines + 1, record_floats, device=link.device, dtype=torch.float32)
    except RuntimeError as error:
        raise CapacityError(
            f"tiers.device asks for {num_lines * record_floats * 4:,} bytes for rows of {record_floats} floats and"
            f" {link.device} has not got them: {str(error).splitlines()[0]}; lower tiers.device"
        ) from None
    lines[-1] = 0.0
    link.computed()
    return lines


def split_lines(device_bytes: int, row_bytes: list[int], wanted: list[int]) -> list[int]:
    """Lines for each group, of rows of row_bytes each, so that all are sufficient for the same number of batches that
    want so many rows of each; a group that wants none counts as one that wants one."""
    shares = [max(1, rows) for rows in wanted]
    batch_bytes = sum(size * share for size, share in zip(row_bytes, shares, strict=True))
    return [device_bytes * share // batch_bytes for share in shares]

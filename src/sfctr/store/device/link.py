"""The way between RAM and a device: copies through staging buffers, and who waits for whom.

On CUDA copies run on a stream of their own, through pinned memory: they wait for what was computed before, and a step
waits for the copies that it needs. On a CPU, which simulates a device, the same calls run at once; nothing that is up
there shares memory with what is down here. One thread at a time may copy; `computed` and `wait` belong to the thread
that computes.

  R floats of a record, n records, S of them in a staging buffer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sfctr.spec.batch import F32, I64

Part = Callable[[slice, F32], None]
"""Called with which of the records are meant, and their place [., R] in a staging buffer."""


class Link:
    """Copies between RAM and one device. staging_bytes: of each of two buffers in RAM."""

    def __init__(self, device: torch.device, record_floats: int, staging_bytes: int) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        size = max(1, staging_bytes // (4 * record_floats))
        self._staging = [
            torch.empty(size, record_floats, device="cpu", dtype=torch.float32, pin_memory=self._stream is not None)
            for _ in range(2)
        ]
        self._in_use: list[torch.cuda.Event | None] = [None, None]
        self._computed: torch.cuda.Event | None = None

    def mark(self) -> torch.cuda.Event | None:
        """What has been asked of this thread's stream so far; None where everything is done at once."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def computed(self) -> None:
        """Copies from now on wait for what this thread has asked of the device so far."""
        self._computed = self.mark()

    def wait(self, mark: torch.cuda.Event | None, made_by_copies: Tensor) -> None:
        """What this thread asks of the device from now on comes after the mark, and may use a tensor made before it."""
        if mark is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(mark)
            made_by_copies.record_stream(stream)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Device work inside runs beside computing, after all that was `computed`."""
        if self._stream is None:
            yield
            return
        if self._computed is not None:
            self._stream.wait_event(self._computed)
        with torch.cuda.stream(self._stream):
            yield

    def finish(self) -> None:
        """Wait for all that was asked of the device."""
        if self._stream is not None:
            torch.cuda.synchronize(self.device)

    def up(self, fill: Part, target: Tensor, lines: I64) -> None:
        """Put the n records that `fill` provides into target[lines]; lines [n]."""
        for number, part in enumerate(self._parts(lines.size)):
            staging = self._staging[number % 2][: part.stop - part.start]
            self._finish(number % 2)
            fill(part, staging.numpy())
            records = torch.empty(staging.shape, device=self.device, dtype=torch.float32)
            records.copy_(staging, non_blocking=True)
            self._in_use[number % 2] = self.mark()
            target.index_copy_(0, self.indices(lines[part]), records)

    def down(self, source: Tensor, lines: I64, take: Part) -> None:
        """Hand source[lines] to `take`; lines [n]. Returns when all was taken."""
        parts = self._parts(lines.size)
        for number, part in enumerate(parts):
            self._send(source, lines[part], number)
            if number > 0:
                self._receive(parts[number - 1], number - 1, take)
        if parts:
            self._receive(parts[-1], len(parts) - 1, take)

    def _send(self, source: Tensor, lines: I64, number: int) -> None:
        self._finish(number % 2)
        self._staging[number % 2][: lines.size].copy_(source.index_select(0, self.indices(lines)), non_blocking=True)
        self._in_use[number % 2] = self.mark()

    def _receive(self, part: slice, number: int, take: Part) -> None:
        self._finish(number % 2)
        take(part, self._staging[number % 2][: part.stop - part.start].numpy())

    def _finish(self, buffer: int) -> None:
        """Wait until a staging buffer's last copy is done."""
        event = self._in_use[buffer]
        if event is not None:
            event.synchronize()
            self._in_use[buffer] = None

    def _parts(self, count: int) -> list[slice]:
        size = self._staging[0].shape[0]
        return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]

    def indices(self, numbers: I64) -> Tensor:
        """int64 [n] on the device."""
        return torch.from_numpy(numbers).to(self.device, copy=True)

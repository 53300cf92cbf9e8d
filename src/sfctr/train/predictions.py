"""Scores of a source in the order of its rows, whatever ranks they were scored on.  B rows, K labels

Each rank scores a range of the rows (open_source's `part`). The first gives its own at once; the others keep theirs in
a temporary file until the first has come to its end, and then hand them over in pieces, rank after rank.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import IO

import numpy as np

from sfctr.spec.batch import I64
from sfctr.spec.errors import CapacityError
from sfctr.spec.peers import ALONE, Bytes, Peers

from .merging import from_others
from .metrics import F64
from .scoring import Rows, Scorer, scored


def predicted(
    source: Rows, scorer: Scorer, shift: float, *, peers: Peers = ALONE, directory: str | None = None
) -> Iterator[tuple[I64, F64]]:
    """Positions [B] and logits [B, K] of all rows in rising order, on the first rank; elsewhere nothing.

    Every rank must take all there is: to score and to hand over is collective. directory: for the temporary files (the
    system's if None). Raises CapacityError where there is no room in it.
    """
    with closing(scored(source, scorer, shift)) as scores, _Kept(directory) as kept:
        for batch, logits in scores:
            rows = batch.rows.astype(np.int64, copy=False)
            if not batch.size:
                continue
            if peers.rank == 0:
                yield rows, logits
            else:
                kept.append(rows, logits)
        for piece in from_others(peers, kept.pieces()):
            yield _rows_and_logits(piece)


class _Kept:
    """Rows and logits of batches, in a file that nobody else sees. Hold it by `with`."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, rows: I64, logits: F64) -> None:
        data = b"".join([np.int64(len(rows)).tobytes(), rows.tobytes(), logits.tobytes()])
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  closed by __exit__
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            where = self._directory or tempfile.gettempdir()
            raise CapacityError(
                f"predictions could not be written to a temporary file in {where}: {os.strerror(error.errno or 0)};"
                " free space there"
            ) from error
        self._sizes.append(len(data))

    def pieces(self) -> Iterator[Bytes]:
        if self._file is None:
            return
        self._file.seek(0)
        for size in self._sizes:
            yield np.frombuffer(bytearray(self._file.read(size)), np.uint8)


def _rows_and_logits(piece: Bytes) -> tuple[I64, F64]:
    size = int(piece[:8].view(np.int64)[0])
    rows, logits = piece[8 : 8 + 8 * size].view(np.int64), piece[8 + 8 * size :].view(np.float64)
    return rows, logits.reshape(size, -1)

"""The rows of all ranks, on rank 0, in the order in which one rank that held them all would give them.

Ranks hold ranges of the hashes, in order, so their rows come one rank after the other, a block of each at a time; the
rows beside the keys, two of a table at most, come last. Every rank makes the same calls, and those other than rank 0
are given nothing. No rank holds more than a block of another.

  n rows, D dim of the table
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sfctr.spec.batch import U64
from sfctr.spec.peers import Bytes, Peers
from sfctr.spec.tables import Table
from sfctr.spec.together import Together
from sfctr.store import RowBlock

from .keys import hashes

_NOTHING: Bytes = np.empty(0, np.uint8)


class Gathered:
    """together: what the ranks do meanwhile; one that fails in it ends it for all."""

    def __init__(self, peers: Peers, together: Together) -> None:
        self._peers, self._together = peers, together

    @property
    def is_first(self) -> bool:
        """Whether rows are given here."""
        return self._together.is_first

    def rows(self, table: Table, mine: Iterator[RowBlock]) -> Iterator[RowBlock]:
        """mine: this rank's rows of a table as the store gives them; of a dense table rank 0 gives its own. Rows of
        other ranks come without optimizer state."""
        if self._peers.size == 1 or table.dense:
            yield from mine if self.is_first else ()
            return
        blocks, before = _Blocks(mine), -1
        for block in self._in_turn(table, blocks):
            first, last = hashes(block.keys[[0, -1]]).tolist()
            assert before < first, f"ranks do not hold table '{table.name}' in the order of hashes"
            before = last
            yield block
        packed = _packed(_in_order(list(blocks.left())), table)
        given = self._given(packed, self._sizes(packed.size))
        beside = _in_order([_unpacked(data, table, is_null=True) for data in given if data.size])
        if beside is not None:
            yield beside

    def _in_turn(self, table: Table, blocks: _Blocks) -> Iterator[RowBlock]:
        for turn in range(self._peers.size):
            while True:
                block = blocks.of_keys() if turn == self._peers.rank else None
                sizes = self._sizes(0 if block is None else block.keys.size * _row_bytes(table))
                if not any(sizes):
                    break
                if turn:
                    given = self._given(_packed(block, table), sizes)[turn]
                    block = _unpacked(given, table, is_null=False) if self.is_first else None
                if block is not None:
                    yield block

    def keys(self, mine: Sequence[U64]) -> list[U64]:
        """Each of these with those of the other ranks behind it; on the others than rank 0 they are empty."""
        said = self._together.say(json.dumps([keys.size for keys in mine]).encode())
        sizes = [json.loads(words) for words in said]
        given = self._given(np.concatenate([_NOTHING, *(_bytes(keys) for keys in mine)]), [8 * sum(s) for s in sizes])
        parts = [
            np.split(part.view(np.uint64), np.cumsum(size)[:-1])
            for part, size in zip(given, sizes if self.is_first else [[0] * len(mine)] * len(sizes), strict=True)
        ]
        return [np.concatenate(each) for each in zip(*parts, strict=True)]

    def _sizes(self, mine: int) -> list[int]:
        return [int(words) for words in self._together.say(b"%d" % mine)]

    def _given(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """What each rank has for rank 0: so many bytes."""
        parts = [mine if rank == 0 else _NOTHING for rank in range(self._peers.size)]
        return self._peers.exchange("export", parts, lengths if self.is_first else [0] * len(lengths))


class _Blocks:
    """A rank's blocks, of which those of keys come first."""

    def __init__(self, blocks: Iterator[RowBlock]) -> None:
        self._blocks = blocks
        self._held: RowBlock | None = None

    def of_keys(self) -> RowBlock | None:
        """The next one; None: there is none left."""
        if self._held is None:
            block = next(self._blocks, None)
            if block is None or not block.nulls[0]:
                return block
            self._held = block
        return None

    def left(self) -> Iterator[RowBlock]:
        """Those beside the keys, once the others were asked for."""
        if self._held is not None:
            yield self._held
        yield from self._blocks


def _row_bytes(table: Table) -> int:
    return 8 + 4 * table.dim + 4 * (table.linear is not None)


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _packed(block: RowBlock | None, table: Table) -> Bytes:
    """Keys, vectors and first-order weights one after the other."""
    if block is None:
        return _NOTHING
    linear = () if table.linear is None else (block.linear,)
    return np.concatenate([_bytes(each) for each in (block.keys, block.vectors, *linear) if each is not None])


def _unpacked(data: Bytes, table: Table, *, is_null: bool) -> RowBlock:
    n = data.size // _row_bytes(table)
    keys, vectors, linear = np.split(data, [8 * n, (8 + 4 * table.dim) * n])
    return RowBlock(
        keys=keys.view(np.uint64),
        nulls=np.full(n, is_null),
        vectors=vectors.view(np.float32).reshape(n, table.dim),
        linear=None if table.linear is None else linear.view(np.float32),
        state=np.empty((n, 0), np.float32),
    )


def _in_order(blocks: Sequence[RowBlock]) -> RowBlock | None:
    """Their rows as one block, in the order of hashes, without optimizer state; None where there are none."""
    if not blocks:
        return None
    keys = np.concatenate([block.keys for block in blocks])
    order = np.argsort(hashes(keys))
    linear = [block.linear for block in blocks if block.linear is not None]
    return RowBlock(
        keys=keys[order],
        nulls=np.concatenate([block.nulls for block in blocks])[order],
        vectors=np.concatenate([block.vectors for block in blocks])[order],
        linear=np.concatenate(linear)[order] if linear else None,
        state=np.empty((keys.size, 0), np.float32),
    )

"""What the ranks of a run found, brought to the first of them, and what it made of that, brought to all.

Large things go in pieces of a bounded size, rank after rank, so that the first rank needs memory for one piece. Nothing
is sent where there is one rank. All of it is collective: every rank makes the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from sfctr.spec.peers import Bytes, Peers

KIND = "metrics"
"""What such bytes are counted as."""

_NOTHING: Bytes = np.zeros(0, np.uint8)
_MORE: Bytes = np.ones(1, np.uint8)
_TEXTS = 1 << 16  # of a piece


def from_others(peers: Peers, pieces: Iterable[Bytes]) -> Iterator[Bytes]:
    """On the first rank, the pieces of the others, in the order of ranks; elsewhere nothing, once all have been taken.

    pieces: this rank's, none of them empty; not asked for on the first rank.
    """
    mine = iter(pieces)
    for sender in range(1, peers.size):
        while True:
            piece = next(mine, _NOTHING) if peers.rank == sender else _NOTHING
            told = _MORE if len(piece) else _NOTHING
            got = peers.exchange(KIND, [piece if to == 0 else told for to in range(peers.size)])[sender]
            if not len(got):
                break
            if peers.rank == 0:
                yield got


def to_first(peers: Peers, pieces: Iterable[Bytes], take: Callable[[Bytes], None]) -> None:
    """Have the first rank take the pieces of all others (see `from_others`)."""
    for piece in from_others(peers, pieces):
        take(piece)


def from_first(peers: Peers, make: Callable[[], Any]) -> Any:
    """What make() gives on the first rank, where alone it is called: plain data, the same on all ranks."""
    if peers.size == 1:
        return make()
    made = packed(make()) if peers.rank == 0 else _NOTHING
    return unpacked(peers.exchange(KIND, [made] * peers.size)[0])


def summed_counts(peers: Peers, counts: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Pairs of counts by name, added up over the ranks; the same on all of them."""
    total: dict[str, tuple[int, int]] = {}
    for of_rank in peers.gather(KIND, packed(dict(counts))):
        for name, (a, b) in unpacked(of_rank).items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + a, before[1] + b)
    return total


def texts_on_first(
    peers: Peers, texts: Mapping[str, Mapping[int, str]], columns: Sequence[str]
) -> dict[str, Mapping[int, str]]:
    """Column -> key -> text: on the first rank what any rank knows of these columns, elsewhere what this one knows."""
    own = {column: texts[column] for column in columns if column in texts}
    if peers.size == 1:
        return own
    known = {column: dict(of_column) for column, of_column in own.items()}

    def take(piece: Bytes) -> None:
        column, some = unpacked(piece)
        known.setdefault(column, {}).update(some)

    to_first(peers, _text_pieces(own), take)
    return {**known}


def _text_pieces(texts: Mapping[str, Mapping[int, str]]) -> Iterator[Bytes]:
    for column, of_column in texts.items():
        left = iter(of_column.items())
        while some := list(islice(left, _TEXTS)):
            yield packed((column, some))


def packed(value: Any) -> Bytes:
    """Plain data as bytes; floats come back to the bit."""
    return np.frombuffer(bytearray(msgspec.msgpack.encode(value)), np.uint8)


def unpacked(data: Bytes) -> Any:
    return msgspec.msgpack.decode(data.data)

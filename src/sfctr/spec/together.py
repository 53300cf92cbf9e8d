"""What all ranks do together, or none: one that fails tells the others, so that none waits for it and all raise.

    with Together(peers, "checkpoint") as together:
        ...                            # this rank's part
        parts = together.say(mine)     # all have come this far; what each said, in the order of ranks
        ...

Every rank makes the same calls of say(). Whatever one raises, in between or at the end, is raised by all at their next
call, or as they leave the block. Blocks may lie in each other: an error is told once, wherever the others are by then.
"""

from __future__ import annotations

import json
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from .errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    DiskError,
    ModelError,
    PeerError,
    SchemaError,
    SfctrError,
)
from .peers import Peers

_GOES_ON, _FAILED = b"\0", b"\1"
_KINDS = {
    kind.__name__: kind for kind in (CapacityError, CheckpointError, ConfigError, DiskError, ModelError, SchemaError)
}
"""Errors that are of the same kind on every rank. Others are a PeerError on all but the one that raised them."""


_IS_KNOWN = "_is_known_to_all_ranks"
Error = TypeVar("Error", bound=BaseException)


class Together:
    """One thing that all ranks of `peers` do; kind: as in Peers.gather. Not to be used again."""

    def __init__(self, peers: Peers, kind: str) -> None:
        self._peers, self._kind = peers, kind

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which does what only one may do."""
        return self._peers.rank == 0

    def say(self, mine: bytes = b"") -> list[bytes]:
        """What every rank said. Raises what another one raised, and PeerError where one has gone."""
        said = self._told(_GOES_ON + mine)
        for rank, words in enumerate(said):
            if words[:1] == _FAILED:
                raise _known(_raised_by(rank, words[1:]))
        return [words[1:] for words in said]

    def hear_first(self, words: bytes = b"") -> bytes:
        """What rank 0 said; what others give is not sent."""
        return self.say(words if self.is_first else b"")[0]

    def _told(self, mine: bytes) -> list[bytes]:
        try:
            return [part.tobytes() for part in self._peers.gather(self._kind, np.frombuffer(bytearray(mine), np.uint8))]
        except BaseException as error:
            _known(error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.say()
        elif not hasattr(error, _IS_KNOWN):
            _known(error)
            with suppress(PeerError):
                self._told(_FAILED + json.dumps([type(error).__name__, str(error)]).encode())


def _known(error: Error) -> Error:
    """Mark it: the other ranks have heard of it, or cannot."""
    setattr(error, _IS_KNOWN, True)
    return error


def _raised_by(rank: int, words: bytes) -> SfctrError:
    name, message = json.loads(words)
    if name in _KINDS:
        return _KINDS[name](f"rank {rank}: {message}")
    return PeerError(f"rank {rank} cannot go on: {name}: {message}")

"""What an object of a run leaves behind when the run stops, and goes on from as if it had not: plain data and tensors.

Plain data are what JSON can hold (its floats come back to the bit); whatever has many numbers is a tensor. Tensors may
be the object's own, which the next step changes: whoever keeps a State copies them before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor


@dataclass(frozen=True)
class State:
    """plain: name -> plain data. tensors: name -> tensor, on any device."""

    plain: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Mapping[str, State]) -> Self:
        """The states of several objects as one, each under its name."""
        return cls(
            {name: part.plain for name, part in parts.items()},
            {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.tensors.items()},
        )

    def part(self, name: str) -> State:
        """The state that was joined under `name`; an empty one where there was none."""
        front = f"{name}."
        own = {key[len(front) :]: tensor for key, tensor in self.tensors.items() if key.startswith(front)}
        return State(self.plain.get(name, {}), own)

"""The dense part of a run whose ranks have parts of its tensors, as whoever saves and loads it sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn


class DenseParts(Protocol):
    """Every rank makes the same calls in the same order.

    parameters: what the optimizer updates, by name: "model.<name>" and "table.<table>.<name>".
    """

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]: ...

    def state_dict(self) -> dict[str, Tensor]:
        """The model's, with whole tensors."""
        ...

    def whole(self, name: str, part: Tensor) -> Tensor:
        """Of a tensor of which each rank has that part which it has of parameter `name`; another one is given back."""
        ...

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The way back of whole()."""
        ...

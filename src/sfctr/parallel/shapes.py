"""What a row's weights and gradients look like in a message.

n rows, W words of a row's weights, D dim
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sfctr.spec.batch import F32, U8

from .packing import Array, Reader, from_bf16, to_bf16


class Gradients(NamedTuple):
    """vectors float32 [n, D]; linear float32 [n], or [0] without first-order weights; reached uint8 [n], whose bits say
    which of them count."""

    vectors: F32
    linear: F32
    reached: U8

    def only(self, chosen: Array) -> Gradients:
        return Gradients(
            self.vectors[chosen], self.linear[chosen] if self.linear.size else self.linear, self.reached[chosen]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """words: W. is_narrow: vectors of float32, and gradients, travel as bfloat16. is_float: vectors are float32."""

    dim: int
    has_linear: bool
    words: int
    is_float: bool
    is_narrow: bool

    @property
    def exact(self) -> RowShape:
        """The same where nothing is rounded."""
        return replace(self, is_narrow=False)

    def pack_weights(self, weights: F32) -> list[Array]:
        """Of [n, W]."""
        if self.is_narrow and self.is_float:
            return [to_bf16(weights[:, : self.dim]), weights[:, self.dim :]]
        return [weights]

    def take_weights(self, message: Reader, n: int) -> F32:
        """[n, W]."""
        if not (self.is_narrow and self.is_float):
            return message.take(np.float32, n, self.words)
        vectors = from_bf16(message.take(np.uint16, n, self.dim))
        return np.concatenate([vectors, message.take(np.float32, n, self.words - self.dim)], axis=1)

    def weight_bytes(self, n: int) -> int:
        return n * (4 * self.words - (2 * self.dim if self.is_narrow and self.is_float else 0))

    def pack_gradients(self, gradients: Gradients) -> list[Array]:
        vectors = to_bf16(gradients.vectors) if self.is_narrow else gradients.vectors
        return [vectors, gradients.linear, gradients.reached]

    def take_gradients(self, message: Reader, n: int) -> Gradients:
        if self.is_narrow:
            vectors = from_bf16(message.take(np.uint16, n, self.dim))
        else:
            vectors = message.take(np.float32, n, self.dim)
        return Gradients(vectors, message.take(np.float32, n * self.has_linear), message.take(np.uint8, n))

    def gradient_bytes(self, n: int) -> int:
        return n * ((2 if self.is_narrow else 4) * self.dim + 4 * self.has_linear + 1)

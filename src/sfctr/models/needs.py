"""What a model asks of the tables behind its inputs, said as data, and checked once when a model is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfctr.spec.errors import ModelError
from sfctr.spec.inputs import Input


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """vectors: each keyed input has a vector (dim above 0).
    linear: each keyed input has a first-order weight.
    equal_dims: all vectors are of one length.
    attention: at least one sequence says which input it is to be compared with.
    """

    vectors: bool = True
    linear: bool = False
    equal_dims: bool = False
    attention: bool = False

    def check(self, model: str, inputs: Sequence[Input]) -> None:
        """Raise ModelError where `inputs` do not give what the model called `model` needs."""
        if not inputs:
            raise ModelError(f"model '{model}' got no inputs; a schema needs at least one feature")
        for item in inputs:
            if item.kind != "dense":
                self._check_table(model, item)
        if self.equal_dims:
            _check_equal_dims(model, inputs)
        if self.attention and not any(item.target for item in inputs):
            raise ModelError(
                f"model '{model}' needs a Sequence feature with a target, and there is none among"
                f" {_names(inputs)}; set target= on the history to the candidate's feature, or choose another model"
            )

    def _check_table(self, model: str, item: Input) -> None:
        if self.vectors and item.dim == 0:
            raise ModelError(
                f"model '{model}' needs vectors, and table '{item.table}' of feature '{item.name}' has dim 0;"
                f" give table '{item.table}' a dim of at least 1"
            )
        if self.linear and not item.linear:
            raise ModelError(
                f"model '{model}' needs first-order weights, and table '{item.table}' of feature '{item.name}' has"
                f" none; give table '{item.table}' a linear optimizer, such as linear=Adam()"
            )


def _check_equal_dims(model: str, inputs: Sequence[Input]) -> None:
    keyed = [item for item in inputs if item.kind != "dense"]
    for item in keyed:
        if item.dim != keyed[0].dim:
            raise ModelError(
                f"model '{model}' needs vectors of one length, and table '{keyed[0].table}' has dim {keyed[0].dim} but"
                f" table '{item.table}' dim {item.dim}; give both the same dim"
            )


def common_dim(inputs: Sequence[Input], otherwise: int) -> int:
    """The dim that all keyed inputs share, or `otherwise` where there are none."""
    return next((item.dim for item in inputs if item.kind != "dense"), otherwise)


def _names(inputs: Sequence[Input]) -> str:
    names = [f"'{item.name}'" for item in inputs]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

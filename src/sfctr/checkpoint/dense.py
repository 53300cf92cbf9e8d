"""The dense part by name: "model.<name>" of the model's state, "buffer.<name>" of buffers that are no part of it (not
persistent), "table.<table>.weight" and ".linear" of dense tables,
"optimizer.<parameter>.<field>" of the optimizer's state for a parameter of either.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sfctr.spec.dense_parts import DenseParts
from sfctr.spec.errors import CheckpointError, ModelError
from sfctr.store import Store

Optimizer = torch.optim.Optimizer
Fields = dict[str, dict[str, Any]]
"""Parameter -> field -> what the optimizer keeps of it."""


def model_tensors(model: nn.Module, store: Store, parts: DenseParts | None = None) -> dict[str, Tensor]:
    """They may share memory with the model and the dense tables. parts: what ranks have of it, where each has a part;
    then all of them ask."""
    state = model.state_dict() if parts is None else parts.state_dict()
    named = {f"model.{name}": value for name, value in state.items()}
    named |= {f"buffer.{name}": value for name, value in model.named_buffers() if name not in state}
    return named | {f"table.{name}": value for name, value in store.dense_state().items()}


def require_savable(
    model: nn.Module, store: Store, optimizer: Optimizer | None, parts: DenseParts | None = None
) -> None:
    """Raise ModelError or CheckpointError for a state that no checkpoint could hold, before a step is trained."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"model {type(model).__name__}: its state has '{name}', a {type(value).__name__}, and only tensors are"
                " saved; make it a buffer"
            )
    names = parameter_names(model, store, parts)
    for parameter in (p for group in optimizer.param_groups for p in group["params"]) if optimizer else ():
        _require_named(parameter, names)


@torch.no_grad()
def load_buffers(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Those that are no part of the model's state_dict; `tensors` by names without "buffer."."""
    for name, buffer in model.named_buffers():
        if name in tensors and buffer.shape == tensors[name].shape:
            buffer.copy_(tensors[name])


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each with memory of its own, also those that were tied."""
    return {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }


def parameter_names(model: nn.Module, store: Store, parts: DenseParts | None = None) -> dict[int, str]:
    """id of a parameter -> its name, the first one of those that are tied."""
    names: dict[int, str] = {}
    if parts is not None:
        return {id(parameter): name for name, parameter in reversed([*parts.parameters.items()])}
    modules = {"model": model, **{f"table.{name}": table for name, table in store.dense_tables.items()}}
    for prefix, module in modules.items():
        for name, parameter in module.named_parameters():
            names.setdefault(id(parameter), f"{prefix}.{name}")
    return names


def optimizer_fields(optimizer: Optimizer | None, names: Mapping[int, str], parts: DenseParts | None = None) -> Fields:
    """Whole tensors, and plain data. Raises CheckpointError for a parameter that is neither the model's nor a dense
    table's."""
    found: Fields = {}
    for parameter, fields in {} if optimizer is None else optimizer.state.items():
        _require_named(parameter, names)
        name = names[id(parameter)]
        found[name] = {field: value for field, value in fields.items() if value is not None}
        if parts is not None:
            found[name] = _each_tensor(found[name], lambda value, name=name: parts.whole(name, value))  # type: ignore[misc]
    return found


def _each_tensor(fields: Mapping[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {field: change(value) if isinstance(value, Tensor) else value for field, value in fields.items()}


def _require_named(parameter: Tensor, names: Mapping[int, str]) -> None:
    if id(parameter) not in names:
        raise CheckpointError(
            f"the optimizer trains a parameter of shape {tuple(parameter.shape)} that belongs neither to the model"
            " nor to a dense table, so it cannot be saved; make it a parameter of the model"
        )


def split_fields(fields: Fields) -> tuple[dict[str, Tensor], Fields]:
    """Those that are tensors, by name, and the rest."""
    tensors: dict[str, Tensor] = {}
    rest: Fields = {}
    for parameter, values in fields.items():
        for field, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{parameter}.{field}"] = value
            else:
                rest.setdefault(parameter, {})[field] = value
    return tensors, rest


def join_fields(tensors: Mapping[str, Tensor], rest: Fields) -> Fields:
    """What split_fields() took apart; `tensors` by names without "optimizer."."""
    fields: Fields = {parameter: dict(values) for parameter, values in rest.items()}
    for name, value in tensors.items():
        parameter, field = name.rsplit(".", 1)
        fields.setdefault(parameter, {})[field] = value
    return fields


def restore_optimizer(
    optimizer: Optimizer, names: Mapping[int, str], fields: Fields, parts: DenseParts | None = None
) -> None:
    """Give the optimizer what it kept of the parameters in `fields`; others stay as they are."""
    if parts is not None:
        fields = {
            name: _each_tensor(values, lambda value, name=name: parts.part(name, value))  # type: ignore[misc]
            for name, values in fields.items()
        }
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = optimizer.state_dict()
    for number, parameter in enumerate(ordered):
        name = names.get(id(parameter))
        if name in fields:
            state["state"][number] = copy.deepcopy(fields[name])  # which torch takes as its own
    optimizer.load_state_dict(state)

"""From a name in a run file to a module: the built-in models, and one's own by dotted path.

Building draws from a generator state made of the run's seed alone and leaves torch's global generators as they were.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sfctr.spec.errors import ModelError, SfctrError, nearest
from sfctr.spec.inputs import Input
from sfctr.spec.optim import Adam
from sfctr.spec.schema import Schema
from sfctr.spec.tables import Table

from .dcnv2 import DCNv2
from .deepfm import DeepFM
from .din import DIN
from .dlrm import DLRM
from .fm import FM
from .lr import LR
from .needs import Needs
from .widedeep import WideDeep

BUILT_IN: Mapping[str, type[nn.Module]] = {
    "lr": LR,
    "fm": FM,
    "widedeep": WideDeep,
    "deepfm": DeepFM,
    "dcnv2": DCNv2,
    "dlrm": DLRM,
    "din": DIN,
}

DEFAULT_DIM = 16


def model_class(name: str) -> type[nn.Module]:
    """The class of a built-in name or of "package.module:Class". Raises ModelError where there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise ModelError(
            f"there is no model '{name}'{nearest(name, BUILT_IN)}; built in are {', '.join(BUILT_IN)},"
            ' and a class of your own is written "package.module:Class"'
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # one's own module runs here, and may fail in any way
        raise ModelError(
            f"model '{name}': importing '{module_name}' failed with {type(error).__name__}: {error};"
            " the module must be importable from where the run starts"
        ) from error
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        classes = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, nn.Module)]
        raise ModelError(
            f"model '{name}': '{module_name}' has no torch module '{class_name}'{nearest(class_name, classes)}"
        )
    return found


def build_model(
    name: str, inputs: Sequence[Input], num_labels: int = 1, args: Mapping[str, Any] | None = None, *, seed: int = 0
) -> nn.Module:
    """The model `name` over `inputs`, its weights drawn from `seed` alone. Raises ModelError with the remedy."""
    cls = model_class(name)
    args = _checked_args(name, cls, num_labels, args or {})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**64)
        try:
            return cls(inputs, **args)
        except SfctrError as error:
            if str(error).startswith(f"model '{name}'"):
                raise
            raise type(error)(f"model '{name}': {error}") from None
        except Exception as error:  # the class may be one's own, and an argument of any kind
            raise ModelError(f"model '{name}' could not be built: {type(error).__name__}: {error}") from error


def _checked_args(name: str, cls: type[nn.Module], num_labels: int, args: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `cls`, `num_labels` among them unless a class of one's own takes none and one is enough."""
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = [p.name for p in parameters if p.name != "num_labels"]
    for arg in args:
        if arg not in known and not open_ended:
            listed = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ModelError(f"model '{name}' has no argument '{arg}'{nearest(arg, known)}; {listed}")
    if open_ended or any(p.name == "num_labels" for p in parameters):
        return {"num_labels": num_labels, **args}
    if num_labels > 1:
        raise ModelError(
            f"model '{name}' takes no num_labels, and the schema has {num_labels} labels;"
            " let its constructor take num_labels and give logits [B, num_labels]"
        )
    return dict(args)


def needs_of(model: str | nn.Module) -> Needs | None:
    """What a model says that it needs, or None for one of one's own that says nothing."""
    needs = getattr(model_class(model) if isinstance(model, str) else model, "needs", None)
    return needs if isinstance(needs, Needs) else None


def default_tables(model: str | nn.Module, schema: Schema, given: Sequence[Table] = ()) -> tuple[Table, ...]:
    """`given`, and after them a table for each one that the schema's features name and `given` lacks.

    What is added has vectors of dim 16, or of the dim that the given ones share, and first-order weights where the
    model needs them, and learns by Adam at 1e-3. For a model of one's own that does not say its needs: `Table(name)`.
    """
    needs = needs_of(model)
    named = dict.fromkeys(feature.table_name for feature in schema.keyed)
    missing = [name for name in named if name not in {table.name for table in given}]
    dims = {table.dim for table in given if table.dim}
    dim = dims.pop() if len(dims) == 1 else DEFAULT_DIM
    if needs is None:
        return (*given, *(Table(name) for name in missing))
    vectors = dim if needs.vectors or not needs.linear else 0
    linear = Adam() if needs.linear else None
    return (*given, *(Table(name, dim=vectors, linear=linear) for name in missing))

"""embed: moves the nn.Embedding and nn.EmbeddingBag of an existing torch model into a store.

Nothing is changed before everything has been checked: a model that is refused is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from torch import nn

from sfctr.spec.errors import ConfigError, ModelError, nearest
from sfctr.spec.tables import Table
from sfctr.store import Store

from .embedded import Embedded, EmbeddedBag, EmbeddedEmbedding, EmbeddedModule, TableRows

M = TypeVar("M", bound=nn.Module)
_BLOCK = 65536


def embed(model: M, store: Store, tables: Mapping[str, str] | None = None) -> M:
    """Replace the model's nn.Embedding and nn.EmbeddingBag by modules that are called alike and read `store`'s rows.

    tables: module name -> table name; by default a module is moved to the table of its own name, if there is one, and
        the others stay ordinary parameters. Every table of the store must be some module's.
    The table's rows begin as the module's weight, all of them; outputs are the same bits before and after. A weight on
    the meta device (`with torch.device("meta"): ...`) has no values: rows then begin as the table says, when they are
    first trained, and read as zeros until then. Modules that share a weight share the table. Make the optimizer
    afterwards: rows are no parameters, Ready.step() updates them.

    Gives the model back. Raises ConfigError where tables and modules do not fit, ModelError for what a store cannot do.
    """
    found = _find(model, store, {} if tables is None else tables, by_name=tables is None)
    _refuse_unclaimed(store, found, model)
    for claim in found:
        _check_table(store.tables[claim.table], claim, store)
        for name, module in claim.modules.items():
            _check_module(name, module)
    _check_sharing(model, found)
    embedded = Embedded(store)
    replaced: dict[nn.Module, EmbeddedModule] = {}
    for claim in found:
        first = next(iter(claim.modules))
        rows = TableRows(embedded, claim.table, first, claim.modules[first])
        _load(store, claim)
        replaced |= {module: _stand_in(rows, module) for module in claim.modules.values()}
    return _replaced(model, replaced)


@dataclass(slots=True)
class _Claim:
    """A table, and the modules whose rows it will hold, by name (a module that is shared has several)."""

    table: str
    modules: dict[str, nn.Embedding | nn.EmbeddingBag] = field(default_factory=dict)

    @property
    def weight(self) -> nn.Parameter:
        return next(iter(self.modules.values())).weight  # type: ignore[return-value]


def _embeddings(model: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """By qualified name, a shared module under each of its names."""
    named = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in named if isinstance(module, nn.Embedding | nn.EmbeddingBag)}


def _find(model: nn.Module, store: Store, tables: Mapping[str, str], *, by_name: bool) -> list[_Claim]:
    modules = _embeddings(model)
    chosen = {name: name for name in modules if name in store.tables} if by_name else dict(tables)
    claims: dict[int, _Claim] = {}
    for name, table in chosen.items():
        if name not in modules:
            known = ", ".join(f"'{each}'" for each in modules) or "none"
            raise ConfigError(
                f"tables= names the module '{name}'{nearest(name, modules)}; embeddings there are: {known}"
            )
        if table not in store.tables:
            raise ConfigError(
                f"tables= gives '{name}' the table '{table}', which the store has not{nearest(table, store.tables)}"
            )
        claim = claims.setdefault(id(modules[name].weight), _Claim(table))
        if claim.table != table:
            raise ConfigError(
                f"'{name}' shares its weight with '{next(iter(claim.modules))}' and they cannot have the"
                f" tables '{table}' and '{claim.table}'; give them one"
            )
        claim.modules[name] = modules[name]
    for claim in claims.values():  # and the other modules that share what was chosen
        claim.modules |= {name: module for name, module in modules.items() if module.weight is claim.weight}
    return list(claims.values())


def _refuse_unclaimed(store: Store, found: Iterable[_Claim], model: nn.Module) -> None:
    names = list(_embeddings(model))
    claimed = [claim.table for claim in found]
    for table in store.tables:
        if table not in claimed:
            known = ", ".join(f"'{name}'" for name in names) or "none"
            raise ConfigError(
                f"table '{table}' of the store is no embedding's{nearest(table, names)}; embeddings of the model are:"
                f" {known} (tables={{module: table}} says which is whose)"
            )
        if claimed.count(table) > 1:
            first, second = [next(iter(claim.modules)) for claim in found if claim.table == table][:2]
            raise ConfigError(
                f"'{first}' and '{second}' have weights of their own and one table '{table}'; give each one"
            )


def _check_table(table: Table, claim: _Claim, store: Store) -> None:
    name = next(iter(claim.modules))
    dim = claim.weight.shape[1]
    if table.dim != dim:
        raise ConfigError(f"table '{table.name}' has dim {table.dim} and '{name}' has {dim}; write dim={dim}")
    for option in ("linear", "buckets", "pretrained"):
        if getattr(table, option) is not None:
            raise ConfigError(f"table '{table.name}' has {option}, which '{name}' has no use for; leave it out")
    if table.dense:
        raise ConfigError(f"table '{table.name}' is dense; leave '{name}' in the model instead, without a table")
    if store.num_rows(table.name):
        raise ConfigError(f"table '{table.name}' holds {store.num_rows(table.name):,} rows; embed() needs it empty")


def _check_module(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    def refuse(what: str, remedy: str) -> None:
        raise ModelError(f"'{name}' {what}; {remedy}")

    if type(module) not in (nn.Embedding, nn.EmbeddingBag):
        refuse(f"is a {type(module).__name__}, whose own forward would be lost", "use nn.Embedding or nn.EmbeddingBag")
    if module.max_norm is not None:
        refuse(f"has max_norm={module.max_norm}, which changes rows when they are read", "drop max_norm, or clip")
    if module.scale_grad_by_freq:
        refuse("has scale_grad_by_freq, which a merged gradient no longer knows", "drop scale_grad_by_freq")
    if module.mode == "max" if isinstance(module, nn.EmbeddingBag) else False:
        refuse('has mode="max"', 'use mode="sum" or "mean", or nn.Embedding and torch.max')
    if str(module.weight.dtype) != "torch.float32":
        refuse(f"has {module.weight.dtype} weights", "rows are float32: call .float() first")
    if module.weight.is_meta and not module.weight.requires_grad:
        refuse("is on the meta device and frozen, so its rows would never have values", "give it its weights")


def _check_sharing(model: nn.Module, found: Iterable[_Claim]) -> None:
    """A weight that is moved may be nobody else's; those that share it must agree on what is padding."""
    owners = {id(claim.weight): claim for claim in found}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        claim = owners.get(id(parameter))
        if claim is not None and name.removesuffix("weight").removesuffix(".") not in claim.modules:
            raise ModelError(
                f"the weight of '{next(iter(claim.modules))}' is '{name}' too, which would no longer be trained"
                " with it; untie them, or leave it out of the store"
            )
    for claim in owners.values():
        if len({module.padding_idx for module in claim.modules.values()}) > 1:
            raise ModelError(
                f"{' and '.join(repr(n) for n in claim.modules)} share rows and differ in padding_idx; make it one"
            )


def _load(store: Store, claim: _Claim) -> None:
    weight = claim.weight.detach()
    if weight.is_meta:
        return
    for begin in range(0, weight.shape[0], _BLOCK):
        block = weight[begin : begin + _BLOCK].cpu().numpy()
        keys = np.arange(begin, begin + block.shape[0], dtype=np.uint64)
        store.set_vectors(claim.table, keys, block)


def _stand_in(rows: TableRows, module: nn.Embedding | nn.EmbeddingBag) -> EmbeddedModule:
    return EmbeddedBag(rows, module) if isinstance(module, nn.EmbeddingBag) else EmbeddedEmbedding(rows, module)


def _replaced(model: M, replaced: Mapping[nn.Module, EmbeddedModule]) -> M:
    if model in replaced:
        return replaced[model]  # type: ignore[return-value]  # the model is itself an embedding
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replaced:
                setattr(parent, name, replaced[child])
    return model

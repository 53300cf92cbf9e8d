"""The autograd functions behind features(): pooled forward and merged backward of all features of one group.

  B rows, F features of the group, L max_length, D dim

Forward reads rows where they lie, in RAM or on a device; backward leaves nothing in autograd but adds each feature's
gradient, merged per unique key, to the batch's, which `Store.commit` then applies. Outputs are every feature's vectors,
then every feature's first-order weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfctr import _native
from sfctr.spec.batch import F32
from sfctr.store.device.rows import DeviceRows

from .layout import GroupLayout, Lookup


def look_up(
    anchor: Tensor,
    layout: GroupLayout,
    rows: _native.RowGroup,
    working_set: _native.WorkingSet,
    begin: int,
    end: int,
    *,
    training: bool,
) -> tuple[Tensor, ...]:
    """Of batch rows [begin, end), rows in RAM; CPU tensors."""
    # `anchor` requires a gradient and has none: it makes autograd call backward although no row is a parameter.
    if training and torch.is_grad_enabled():
        found: tuple[Tensor, ...] = PooledInRam.apply(anchor, layout, rows, working_set, begin, end)  # type: ignore[no-untyped-call]
        return found
    vectors, linear = _lookup_group(layout, rows, working_set, begin, end)
    return tuple(torch.from_numpy(array) for array in (*vectors, *linear))


def look_up_on_device(anchor: Tensor, rows: DeviceRows, begin: int, end: int) -> tuple[Tensor, ...]:
    """The same where rows are on a device; tensors there."""
    if torch.is_grad_enabled():
        found: tuple[Tensor, ...] = PooledOnDevice.apply(anchor, rows, begin, end)  # type: ignore[no-untyped-call]
        return found
    vectors, linear = rows.forward(begin, end)
    return (*vectors, *linear)


def _lookup_group(
    layout: GroupLayout, rows: _native.RowGroup, working_set: _native.WorkingSet, begin: int, end: int
) -> tuple[list[F32], list[F32]]:
    """Pooled vectors [B, D] (sequences [B, L, D]) and first-order weights [B, 1] of batch rows [begin, end).

    A feature whose table has no vectors, or no first-order weights, has an empty array in that list.
    """
    size = end - begin
    widths = [size * lookup.vectors_per_row * lookup.dim for lookup in layout.lookups]
    out = _native.empty_floats(sum(widths))
    has_linear = bool(layout.lookups) and layout.lookups[0].linear
    linear = np.empty((len(widths) if has_linear else 0, size), dtype=np.float32)
    rows.forward(working_set, begin, end, out, linear if has_linear else None)
    vectors, start = [], 0
    for lookup, width in zip(layout.lookups, widths, strict=True):
        vectors.append(out[start : start + width].reshape(_shape(lookup, size)))
        start += width
    return vectors, [linear[f].reshape(size, 1) for f in range(linear.shape[0])]


def _shape(lookup: Lookup, size: int) -> tuple[int, ...]:
    return (size, lookup.max_length, lookup.dim) if lookup.is_sequence else (size, lookup.dim)


class PooledInRam(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        layout: GroupLayout,
        rows: _native.RowGroup,
        working_set: _native.WorkingSet,
        begin: int,
        end: int,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.lookup = (rows, working_set, begin, end, len(layout.lookups))
        vectors, linear = _lookup_group(layout, rows, working_set, begin, end)
        return tuple(torch.from_numpy(array) for array in (*vectors, *linear))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        rows, working_set, begin, end, num_features = ctx.lookup
        vectors, linear = gradients[:num_features], gradients[num_features:]
        rows.backward(working_set, begin, end, [_rows(g) for g in vectors], [_flat(g) for g in linear])
        return (None,) * 6


class PooledOnDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rows: DeviceRows, begin: int, end: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        vectors, linear = rows.forward(begin, end)
        ctx.lookup = (rows, begin, end, len(vectors))
        return (*vectors, *linear)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        rows, begin, end, num_features = ctx.lookup
        found = [None if g is None else g.to(torch.float32) for g in gradients]
        rows.backward(begin, end, found[:num_features], found[num_features:])
        return (None,) * 4


def _rows(gradient: Tensor | None) -> F32 | None:
    """Of [B, D] as it lies, where columns are neighbours: mostly it is a part of the gradient of all features."""
    if gradient is None or gradient.dim() != 2 or gradient.stride(1) != 1 or gradient.dtype != torch.float32:
        return _flat(gradient)
    return gradient.numpy() if gradient.numel() else None


def _flat(gradient: Tensor | None) -> F32 | None:
    if gradient is None or gradient.numel() == 0:
        return None
    found: F32 = gradient.to(torch.float32).contiguous().numpy().reshape(-1)
    return found

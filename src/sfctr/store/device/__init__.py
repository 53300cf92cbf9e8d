"""The arithmetic of rows that lie in one tensor on an accelerator: what the native kernels do in RAM, bit for bit.

  C lines of the cache, R floats of a record, U unique keys of a working set, D dim

`cache` float32 [C, R] holds a record a line, laid out as the native `RowGroup.layout()` says; `slots` int64 [U] says
which line holds the record of each unique key. A key without a row reads from a line of zeros, which several keys may
share. No two keys that a gradient reached may share a line.

A step, for every row range [begin, end) of the batch and then once:

    pooling = on_device(plan_pooling(features, begin, end), device)      NumPy: may run ahead, on another thread
    vectors, weights = pool(cache, slots, pooling, dim=..., linear=...)
    add_gradients(gradients, vector_grads, weight_grads, is_frozen=..., plan_of=...)
    update(cache, slots, gradients, rules, ...)

On CPU tensors every output, gradient and record has the bits of the native kernels; on other devices they agree but for
rounding, and are the same from run to run. No kernel knows of caches or threads, and none but `grad_norm_squared` waits
for the device. `rows.DeviceRows` is these steps for one batch, and `link.Link` how records get there and back.
"""

from .features import FeatureIds
from .gradients import Gradients, add_gradients, grad_norm_squared
from .levels import on_device
from .plans import MergePlan, PoolPlan, plan_merging, plan_pooling
from .pooling import pool
from .updates import Rules, update

__all__ = [
    "FeatureIds",
    "Gradients",
    "MergePlan",
    "PoolPlan",
    "Rules",
    "add_gradients",
    "grad_norm_squared",
    "on_device",
    "plan_merging",
    "plan_pooling",
    "pool",
    "update",
]

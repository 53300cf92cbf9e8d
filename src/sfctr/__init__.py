"""ScaleFreeCTR: trains click-through-rate models whose embedding tables are larger than memory.

Every public name is in `__all__`. The nouns are imported at once; what needs torch or pyarrow is imported at first use,
so that `import sfctr` and the command line answer quickly.
"""

import typing as _typing
from importlib import import_module as _import_module

from sfctr.spec.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    ModelError,
    PeerError,
    SchemaError,
    SfctrError,
)
from sfctr.spec.optim import FTRL, SGD, Adagrad, Adam, AdamW, Plateau, RowWiseAdagrad, Schedule
from sfctr.spec.runfile import Checkpoints, Export
from sfctr.spec.schema import Bag, Bucket, Categorical, Cross, Dense, Schema, Sequence, TimeColumn, TimePart
from sfctr.spec.tables import Normal, Table, Tiers, Uniform

if _typing.TYPE_CHECKING:
    from sfctr.data import open_source
    from sfctr.export import load_export
    from sfctr.lookahead import Lookahead, ReadView
    from sfctr.lookahead.embed import embed
    from sfctr.store import Store
    from sfctr.train.fit import fit
    from sfctr.train.run import Run

__version__ = "0.1.0"

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Bag",
    "Bucket",
    "CapacityError",
    "Categorical",
    "CheckpointError",
    "Checkpoints",
    "ConfigError",
    "Cross",
    "DataError",
    "Dense",
    "DiskError",
    "Export",
    "Lookahead",
    "ModelError",
    "Normal",
    "PeerError",
    "Plateau",
    "ReadView",
    "RowWiseAdagrad",
    "Run",
    "Schedule",
    "Schema",
    "SchemaError",
    "Sequence",
    "SfctrError",
    "Store",
    "Table",
    "Tiers",
    "TimeColumn",
    "TimePart",
    "Uniform",
    "__version__",
    "embed",
    "fit",
    "load_export",
    "open_source",
]

if not _typing.TYPE_CHECKING:  # so that a misspelled name stays an error to type checkers
    _AT_FIRST_USE = {
        "Lookahead": "lookahead",
        "ReadView": "lookahead",
        "Run": "train",
        "Store": "store",
        "embed": "lookahead",
        "fit": "train",
        "load_export": "export",
        "open_source": "data",
    }

    def __getattr__(name: str) -> object:
        if name not in _AT_FIRST_USE:
            raise AttributeError(f"module 'sfctr' has no attribute '{name}'")
        value = getattr(_import_module(f".{_AT_FIRST_USE[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_AT_FIRST_USE})

"""Gives rows and models to others, in files that anyone's tools read, and scores with them without the trainer."""

from .apply import apply_deltas
from .bundle import Trained, export_model
from .chain import Chain, Delta, read_delta
from .deltas import Deltas
from .reader import ExportedModel, load_export
from .rows import export_rows

__all__ = [
    "Chain",
    "Delta",
    "Deltas",
    "ExportedModel",
    "Trained",
    "apply_deltas",
    "export_model",
    "export_rows",
    "load_export",
    "read_delta",
]

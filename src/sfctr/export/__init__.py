"""Gives rows and models to others, in files that anyone's tools read, and scores with them without the trainer."""

from .bundle import export_model
from .reader import ExportedModel, load_export
from .rows import export_rows

__all__ = ["ExportedModel", "export_model", "export_rows", "load_export"]

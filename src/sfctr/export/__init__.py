"""Gives rows to others, in files that anyone's tools read."""

from .rows import export_rows

__all__ = ["export_rows"]

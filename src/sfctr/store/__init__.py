"""Holds the rows of *this* process in RAM and on disk, and updates them. Knows no rank, no batch, no model."""

from .group import INDEX_BYTES, Group, RowBlock
from .store import Store

__all__ = ["INDEX_BYTES", "Group", "RowBlock", "Store"]

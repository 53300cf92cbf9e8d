"""Holds the rows of *this* process and updates them. Knows no rank, no batch, no model."""

from .store import Group, RowBlock, Store

__all__ = ["Group", "RowBlock", "Store"]

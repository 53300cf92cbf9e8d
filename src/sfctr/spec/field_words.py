"""The words that a struct's own source has for it and for its fields, so that nothing said elsewhere can drift."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping


@functools.cache
def words_of(cls: type) -> Mapping[str, str]:
    """Field name -> the text under it, on one line; "" -> the first paragraph of the class's docstring.

    A field without a text of its own has the one that a base class gives it; a field without any is not in the mapping.
    """
    words: dict[str, str] = {}
    for base in reversed([c for c in cls.__mro__ if c.__module__.split(".")[0] == __name__.split(".")[0]]):
        words.update(_own_words(base))
    return words | {"": _one_line(inspect.getdoc(cls) or "")}


def _own_words(cls: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    pairs = zip(tree.body, tree.body[1:], strict=False)
    return {
        field.target.id: _one_line(text.value.value)
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _one_line(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())

"""Every option says in its own source what it means, and that is what a run file shows."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from sfctr.spec import optim, runfile, schema, tables
from sfctr.spec.field_words import words_of

STRUCTS = [
    cls
    for module in (optim, tables, schema, runfile)
    for name, cls in vars(module).items()
    if inspect.isclass(cls) and issubclass(cls, msgspec.Struct) and cls.__module__ == module.__name__ and name[0] != "_"
]


@pytest.mark.parametrize("cls", STRUCTS, ids=lambda cls: cls.__name__)
def test_every_field_and_struct_has_words(cls: type[msgspec.Struct]) -> None:
    words = words_of(cls)
    assert [name for name in ("", *cls.__struct_fields__) if not words.get(name)] == []


def test_a_field_without_a_text_of_its_own_has_that_of_the_base() -> None:
    assert words_of(optim.Adam)["lr"] == "Learning rate before the schedule's factor."


def test_a_text_of_several_lines_becomes_one_and_stops_at_its_first_paragraph() -> None:
    assert "\n" not in words_of(schema.Dense)[""]
    assert words_of(schema.Dense)[""] == "A number, or a fixed-size vector of numbers."

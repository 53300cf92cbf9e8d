"""Structs from plain data and back, with every mistake named by its path.

Plain data are what TOML can hold: dicts, lists, text, bools, ints, floats. A path such as "tables.item.dim" calls the
entries of a list by their name, or by their position from 0. The structs are described by their own annotations alone:
nothing here knows a field.
"""

from __future__ import annotations

import datetime
import numbers
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from .errors import ConfigError, SfctrError, nearest
from .toml_text import toml_value

Struct = TypeVar("Struct", bound=msgspec.Struct)


def to_plain(value: Any, path: str) -> Any:
    """`value` as dicts, lists, text, bools, ints and floats. A date is its ISO text; an unset field is left out."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        fields = ((f, getattr(value, f.name)) for f in msgspec.structs.fields(value))
        set_fields = {f.name: v for f, v in fields if not (v is None and f.default is None)}
        return {**tag, **{k: None if v is None else to_plain(v, join_path(path, k)) for k, v in set_fields.items()}}
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: to_plain(v, join_path(path, k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, join_path(path, entry_name(v, i))) for i, v in enumerate(value)]
    if isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise ConfigError(
        f"{path} is {value!r}, which a run file cannot hold; give text, a number, true or false, or lists"
    )


def rebuilt(struct: Struct, path: str) -> Struct:
    """`struct` as its file would give it back. Raises ConfigError, naming the field, for a value of a wrong type."""
    built: Struct = build(to_plain(struct, path), type(struct), path)
    return built


def join_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


def entry_name(entry: object, position: int) -> str:
    """How a path calls an entry of a list."""
    name = entry.get("name") if isinstance(entry, Mapping) else getattr(entry, "name", None)
    return name if isinstance(name, str) and name else str(position)


def build(value: Any, kind: Any, path: str) -> Any:
    """`value` as the type `kind`. Messages begin with the path."""
    structs = structs_of(kind)
    if structs and isinstance(value, dict):
        return _build_struct(value, choose_struct(value, structs, path), path)
    each = entry_kind(kind)
    if isinstance(value, list) and structs_of(each):
        return tuple(build(v, each, join_path(path, entry_name(v, i))) for i, v in enumerate(value))
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        raise ConfigError(f"{path} is {shown(value)} and must be {_wanted(kind)}{_guess(value, kind)}") from None


def _build_struct(tree: dict[str, Any], cls: type[msgspec.Struct], path: str) -> msgspec.Struct:
    fields = {f.name: f for f in msgspec.structs.fields(cls)}
    for name in tree:
        if name not in fields and name != cls.__struct_config__.tag_field:
            raise unknown_field(name, fields, path)
    for name, field in fields.items():
        if field.required and name not in tree:
            raise ConfigError(f"{join_path(path, name)} is missing and must be {_wanted(field.type)}")
    built = {name: build(v, fields[name].type, join_path(path, name)) for name, v in tree.items() if name in fields}
    try:
        return cls(**built)
    except SfctrError as error:
        front = f"{path}: " if path and not str(error).startswith(f"{path}.") else ""
        raise type(error)(f"{front}{error}") from None


def choose_struct(tree: dict[str, Any], structs: list[type[msgspec.Struct]], path: str) -> type[msgspec.Struct]:
    """The struct of a union whose tag the table carries."""
    by_tag = {str(s.__struct_config__.tag): s for s in structs}
    tag_field = structs[0].__struct_config__.tag_field
    if tag_field is None or (len(structs) == 1 and tag_field not in tree):
        return structs[0]
    tag = tree.get(tag_field)
    if isinstance(tag, str) and tag in by_tag:
        return by_tag[tag]
    found = "missing" if tag is None else shown(tag)
    guess = nearest(tag, by_tag) if isinstance(tag, str) else ""
    raise ConfigError(f"{join_path(path, tag_field)} is {found} and must be {one_of(by_tag)}{guess}")


def unknown_field(name: str, known: Mapping[str, object], path: str) -> ConfigError:
    hint = nearest(name, known) or f"; known here: {', '.join(known)}"
    return ConfigError(f"{join_path(path, name)} is not known{hint}")


def structs_of(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs among the members of a union, or `kind` itself if it is one."""
    return [k for k in members_of(kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)]


def members_of(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def entry_kind(kind: Any) -> Any:
    """Type of a list's entries, for tuple[X, ...] alone or in a union; None for what is no such list."""
    for member in members_of(kind):
        if get_origin(member) is tuple and get_args(member)[-1] is Ellipsis:
            return get_args(member)[0]
    return None


def _wanted(kind: Any) -> str:
    return " or ".join(dict.fromkeys(_words(member) for member in members_of(kind) if member is not type(None)))


def _words(kind: Any) -> str:
    simple = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    if get_origin(kind) is tuple:
        args = get_args(kind)
        return f"a list, each entry {_wanted(args[0])}" if args[-1] is Ellipsis else f"a list of {len(args)} numbers"
    return "a table"


def one_of(names: Sequence[str] | Mapping[str, object]) -> str:
    *first, last = (f'"{name}"' for name in names)
    return f"{', '.join(first)} or {last}" if first else last


def _guess(value: object, kind: Any) -> str:
    names = [a for member in members_of(kind) if get_origin(member) is Literal for a in get_args(member)]
    return nearest(value, names) if isinstance(value, str) and names else ""


def shown(value: object) -> str:
    text = "missing" if value is None else toml_value(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

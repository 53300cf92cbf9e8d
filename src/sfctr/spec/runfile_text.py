"""Run files as TOML text: read with every mistake named by its path, and written with every default visible.

Promises:
- `decode_run_file(render_run_file(run)) == run` for every run that `checked` lets pass;
- a path in a message ("train.batch_size", "tables.item.dim", "schema.features.0.name") is the path that an override
  takes: entries of a list are called by their name, or by their position from 0;
- a mistake is one ConfigError (or the SchemaError that a struct raised about itself) of one line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec

from .errors import ConfigError, SfctrError, nearest
from .runfile import RunFile
from .runfile_render import render_run_file
from .struct_tree import (
    build,
    choose_struct,
    entry_kind,
    entry_name,
    join_path,
    rebuilt,
    shown,
    structs_of,
    to_plain,
    unknown_field,
)

__all__ = ["checked", "decode_run_file", "render_run_file"]


def decode_run_file(text: str, where: str, overrides: Sequence[str] = ()) -> RunFile:
    """The run that the TOML `text` describes; `where` (a file's name) leads every message.

    An override "train.batch_size=8192" sets one field: its value is TOML, or plain text where that is no TOML; nothing
    after "=" gives the field its default back. Raises ConfigError or SchemaError.
    """
    try:
        tree = to_plain(tomllib.loads(text), "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_error(str(error), where)) from None
    for override in overrides:
        _override(tree, override)
    try:
        built: RunFile = build(tree, RunFile, "")
    except SfctrError as error:
        raise type(error)(f"{where}: {error}") from None
    return built


def checked(run: RunFile) -> RunFile:
    """`run` as a run file would give it back. Raises ConfigError where a value in it is of a wrong type."""
    return rebuilt(run, "")


def _syntax_error(message: str, where: str) -> str:
    found = re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", message, re.DOTALL)
    words, place = found.groups() if found else (message.replace("(at end of document)", "at the end of the file"), "")
    return f"{where}{', ' if place else ''}{place}: this is not TOML: {words[0].lower()}{words[1:]}"


def _override(tree: dict[str, Any], text: str) -> None:
    """Set the field that `text` ("train.batch_size=8192") names."""
    path, sign, value = (part.strip() for part in text.partition("="))
    try:
        if not sign or not path:
            raise ConfigError('an override is written "path=value", such as train.batch_size=8192')
        _set(tree, RunFile, _steps(path), value, "")
    except SfctrError as error:
        raise type(error)(f"override '{text}': {error}") from None


def _steps(path: str) -> list[str]:
    """A dotted path's parts; a part may be quoted as in TOML where it has dots of its own."""
    try:
        node: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        return path.split(".")
    steps = []
    while isinstance(node, dict):
        (step, node), *_ = node.items()
        steps.append(step)
    return steps


def _set(node: Any, kind: Any, steps: list[str], text: str, path: str) -> None:
    """Follow `steps` down from `node`, of type `kind`, and put the value at the end."""
    step, *rest = steps
    here = join_path(path, step)
    place: Any
    if isinstance(node, list):
        place, part_kind = _position(node, entry_kind(kind), step, here), entry_kind(kind)
    elif isinstance(node, dict):
        place, part_kind = step, _part_kind(node, kind, step, path)
    else:
        raise ConfigError(f"{path} is {shown(node)} and has no parts")
    if rest:
        if isinstance(node, dict) and step not in node:
            node[step] = _default(node, kind, step, path)
        _set(node[place], part_kind, rest, text, here)
    elif not text:
        node.pop(place, None) if isinstance(node, dict) else node.pop(place)
    elif isinstance(node, dict) and structs_of(kind) and step == structs_of(kind)[0].__struct_config__.tag_field:
        _change_kind(node, structs_of(kind), text, path)
    else:
        node[place] = _fitting(text, part_kind, here)


def _part_kind(node: dict[str, Any], kind: Any, step: str, path: str) -> Any:
    """Type of the field `step` of a table."""
    structs = structs_of(kind)
    if not structs:
        return Any
    tag_field = structs[0].__struct_config__.tag_field
    if step == tag_field:
        return str
    fields = {f.name: f for f in msgspec.structs.fields(choose_struct(node, structs, path))}
    if step not in fields:
        raise unknown_field(step, fields, path)
    return fields[step].type


def _default(node: dict[str, Any], kind: Any, step: str, path: str) -> Any:
    """What a part that the file leaves out begins from, as plain data."""
    if not structs_of(kind):
        return {}
    fields = {f.name: f for f in msgspec.structs.fields(choose_struct(node, structs_of(kind), path))}
    default = fields[step].default
    if default is msgspec.NODEFAULT or default is None:
        return [] if entry_kind(fields[step].type) is not None else {}
    return to_plain(default, "")


def _position(entries: list[Any], kind: Any, step: str, here: str) -> int:
    """Where the entry called `step` stands; one that needs nothing but its name is added."""
    names = [entry_name(entry, i) for i, entry in enumerate(entries)]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(entries):
        return int(step)
    needed = [f.name for cls in structs_of(kind) for f in msgspec.structs.fields(cls) if f.required]
    if needed == ["name"]:
        entries.append({"name": step})
        return len(entries) - 1
    raise ConfigError(f"{here} is not known{nearest(step, names) or f'; there are {len(entries)} entries'}")


def _change_kind(node: dict[str, Any], structs: list[type[msgspec.Struct]], text: str, path: str) -> None:
    """Make a table another kind of its union; the fields that the new kind has too stay as they are."""
    tag_field = str(structs[0].__struct_config__.tag_field)
    cls = choose_struct({tag_field: _fitting(text, str, join_path(path, tag_field))}, structs, path)
    known = {f.name for f in msgspec.structs.fields(cls)}
    kept = {k: v for k, v in node.items() if k in known}
    node.clear()
    node.update({tag_field: cls.__struct_config__.tag, **kept})


def _fitting(text: str, kind: Any, path: str) -> Any:
    """`text` as a value of type `kind`: as TOML, as plain text, or as the one entry of a list of either."""
    value = _toml_or_text(text)
    refusal: SfctrError | None = None
    for candidate in (value, text, [value], [text]):
        try:
            build(candidate, kind, path)
        except SfctrError as error:
            refusal = refusal or error
        else:
            return candidate
    assert refusal is not None
    raise refusal


def _toml_or_text(text: str) -> Any:
    try:
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return to_plain(tree["value"], "") if list(tree) == ["value"] else text

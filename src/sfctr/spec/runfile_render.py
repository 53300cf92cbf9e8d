"""A run as the text of a run file: every field is there, with the words that its struct has for it.

A field that is not set stands as a commented-out line with an example value. Entries of `schema.features` take one
line each, below a legend of the kinds in use; entries of `tables` take a block each, explained in the first.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from .field_words import words_of
from .runfile import RunFile
from .struct_tree import entry_kind, join_path, members_of, one_of, structs_of, to_plain
from .toml_text import toml_comment, toml_value

Comments = Mapping[str, str]

_SHORT_STRUCT = 3
"""Structs of at most so many fields are written inline, others as a section of their own."""
_WIDEST_PADDING = 44
"""Explanations line up behind assignments as long as this, and follow longer ones at once."""
_INDENT = "    "


def render_run_file(run: RunFile, comments: Comments = types.MappingProxyType({})) -> str:
    """`run` as TOML. `comments` are placed above what they speak of, by path: "schema.features.item", "train.clip".

    The path "" is the head of the file, a section's path ("train", "schema.features") stands above the section. Raises
    ConfigError where a value is none that TOML can hold.
    """
    plain = [line for line in _assignments(run, "") if not isinstance(getattr(run, line[0]), msgspec.Struct)]
    lines = [*_above("", comments), *_explained(plain, comments)]
    for field in msgspec.structs.fields(run):
        value, doc = getattr(run, field.name), words_of(RunFile)[field.name]
        if isinstance(value, msgspec.Struct):
            lines += _section(value, field.name, comments)
        elif structs_of(entry_kind(field.type)):
            lines += _blocks(value, entry_kind(field.type), field.name, doc, comments)
    return "\n".join(lines).strip("\n") + "\n"


def _section(struct: msgspec.Struct, path: str, comments: Comments, kind: Any = None) -> list[str]:
    """[path] with its plain fields first, then its lists of entries, then its parts as sections of their own."""
    lines = ["", *_above(path, comments), *toml_comment(words_of(type(struct))[""]), f"[{path}]"]
    entries, parts = [], []
    for field in msgspec.structs.fields(struct):
        value, here = getattr(struct, field.name), join_path(path, field.name)
        if structs_of(entry_kind(field.type)):
            entries += _one_line_entries(
                value, entry_kind(field.type), here, words_of(type(struct))[field.name], comments
            )
        elif isinstance(value, msgspec.Struct) and len(value.__struct_fields__) > _SHORT_STRUCT:
            parts += _section(value, here, comments, field.type)
    return lines + _explained(list(_assignments(struct, path, kind)), comments) + entries + parts


def _assignments(
    struct: msgspec.Struct, path: str, kind: Any = None, *, inline: bool = False
) -> Iterator[tuple[str, str, str]]:
    """(path, assignment, explanation) of each field that takes one line; `kind` is the union the struct is one of."""
    config, words = struct.__struct_config__, words_of(type(struct))
    if config.tag_field:
        choice = "" if kind is None else _choices([s.__struct_config__.tag for s in structs_of(kind)]).strip()
        yield join_path(path, config.tag_field), f"{config.tag_field} = {toml_value(config.tag)}", choice
    for field in msgspec.structs.fields(struct):
        value, here = getattr(struct, field.name), join_path(path, field.name)
        own_section = isinstance(value, msgspec.Struct) and len(value.__struct_fields__) > _SHORT_STRUCT
        if structs_of(entry_kind(field.type)) or (own_section and not inline):
            continue
        explanation = words.get(field.name, "") + _choices_of(field.type)
        if value is None:
            yield here, f"# {field.name} = {toml_value(_example(field.type))}", explanation
        else:
            yield here, f"{field.name} = {toml_value(to_plain(value, here))}", explanation


def _explained(assignments: list[tuple[str, str, str]], comments: Comments) -> list[str]:
    width = max((len(a) for _, a, _ in assignments if len(a) <= _WIDEST_PADDING), default=0)
    lines = []
    for path, assignment, explanation in assignments:
        (behind,) = toml_comment(explanation)
        lines += _above(path, comments)
        lines.append(f"{assignment:{width}}  {behind}" if explanation else assignment)
    return lines


def _one_line_entries(entries: tuple[Any, ...], kind: Any, path: str, doc: str, comments: Comments) -> list[str]:
    lines = ["", *toml_comment(doc), *_legend(entries, kind), *_above(path, comments)]
    lines.append(f"{path.rpartition('.')[2]} = [")
    for entry in entries:
        here = join_path(path, entry.name)
        lines += [_INDENT + line for line in _above(here, comments)]
        lines.append(f"{_INDENT}{toml_value(to_plain(entry, here))},")
    return [*lines, "]"]


def _legend(entries: tuple[Any, ...], kind: Any) -> list[str]:
    """What the kinds in use are, field by field, and the names of the others."""
    used: list[type[msgspec.Struct]] = list(dict.fromkeys(type(entry) for entry in entries))
    lines = ["# A field that an entry does not show is not set."]
    for cls in used:
        lines += ["#", *toml_comment(f'kind = "{cls.__struct_config__.tag}": {words_of(cls)[""]}')]
        fields = [f"{f.name} = {toml_value(_default_or_example(f))}" for f in msgspec.structs.fields(cls)]
        width = max(map(len, fields))
        for field, text in zip(msgspec.structs.fields(cls), fields, strict=True):
            lines += toml_comment(f"  {text:{width}}  {words_of(cls).get(field.name, '')}{_choices_of(field.type)}")
    others = [f"{s.__struct_config__.tag} ({words_of(s)[''].split('.')[0]})" for s in structs_of(kind) if s not in used]
    return [*lines, "#", *toml_comment("Other kinds: " + "; ".join(others) + ".")] if others else lines


def _blocks(entries: tuple[Any, ...], kind: Any, path: str, doc: str, comments: Comments) -> list[str]:
    """[[path]] for each entry; without any, one commented-out block that shows the defaults."""
    (cls,) = structs_of(kind)
    lines = ["", *_above(path, comments), *toml_comment(words_of(cls)[""]), *toml_comment(doc)]
    if not entries:
        example = list(_assignments(cls(name="..."), path, inline=True))
        shown = _explained([(p, a.removeprefix("# "), e) for p, a, e in example], {})
        return [*lines, f"# [[{path}]]", *(f"# {line}" for line in shown)]
    for number, entry in enumerate(entries):
        here = join_path(path, entry.name)
        assignments = list(_assignments(entry, here, inline=True))
        if number > 0:
            assignments = [(p, a, "") for p, a, _ in assignments if not a.startswith("# ")]
        lines += ["", *_above(here, comments), f"[[{path}]]", *_explained(assignments, comments)]
    return lines


def _above(path: str, comments: Comments) -> list[str]:
    return toml_comment(comments[path]) if path in comments else []


def _choices_of(kind: Any) -> str:
    """The words to choose from, where there are words alone to choose from."""
    members = [member for member in members_of(kind) if member is not type(None)]
    if any(get_origin(member) is not Literal for member in members):
        return ""
    return _choices([name for member in members for name in get_args(member)])


def _choices(names: list[Any]) -> str:
    return f" One of {one_of(names)}." if names else ""


def _default_or_example(field: msgspec.structs.FieldInfo) -> Any:
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return _example(field.type) if default is msgspec.NODEFAULT or default is None else to_plain(default, "")


def _example(kind: Any) -> Any:
    """Some value of the type `kind`, to show how it is written."""
    member = min((m for m in members_of(kind) if m is not type(None)), key=lambda m: bool(structs_of(m)))
    simple: dict[Any, Any] = {int: 1, float: 0.5, str: "...", bool: True}
    if member in simple:
        return simple[member]
    if get_origin(member) is Literal:
        return get_args(member)[0]
    if get_origin(member) is tuple:
        return [_example(arg) for arg in get_args(member) if arg is not Ellipsis]
    return to_plain(member(), "")

"""Values and keys as TOML text: what tomllib reads back as the same value.

Python's library reads TOML and does not write it; a run file needs only these few kinds of value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def toml_key(name: str) -> str:
    """`name` bare where TOML allows it, quoted elsewhere."""
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def toml_value(value: object) -> str:
    """`value` on one line: text, bool, integer, float, list or table of these."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"TOML has no value for {value!r}")


def toml_comment(text: str) -> list[str]:
    """`text` as comment lines; what TOML forbids in a comment is shown as an escape."""
    return [f"# {_visible(line)}".rstrip() for line in text.split("\n")]


def _quoted(text: str) -> str:
    return '"' + "".join(_SHORT_ESCAPES.get(c) or (f"\\u{ord(c):04x}" if _is_control(c) else c) for c in text) + '"'


def _visible(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if _is_control(c) else c for c in text)


def _is_control(c: str) -> bool:
    return c < " " or c == "\x7f"

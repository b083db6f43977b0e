"""Writes JSON values as YAML in block style. Texts are quoted if they could be read as something else.
Pure."""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


def yaml_text(value: Any) -> str:
    """Return a value as a YAML document, without a line end at its end."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in cast(dict[str, Any], value).items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list) and value:
        for item in cast(list[Any], value):
            first, *more = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in more)
    else:
        yield _scalar(value)


def _entry(head: str, value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)) and value:
        yield head
        inset = "" if isinstance(value, list) else "  "
        yield from (inset + line for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else _quoted(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)

"""Makes text out of what programs, names and errors hold, before a terminal sees it. Pure.

Whoever writes to a terminal can do with it what he likes: set its title, clear it, have lines appear that
nobody wrote, turn the direction of text. So only text passes, and in lines of logs colours; everything else
is shown as what it is: `\\x1b`.
"""

import re
from collections.abc import Callable
from typing import Any, Final, cast

_SIGNS: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control codes of both sets but tab and line feed, marks that turn the direction of text, halves of
characters."""
_CONTROL: Final = re.compile(f"[{_SIGNS}]")
_CONTROL_OR_COLOUR: Final = re.compile(rf"\x1b\[[0-9;:]*m|[{_SIGNS}]")
_RETURN: Final = re.compile(r"\r+\n?")
_PLAIN: Final = ("\x1b[m", "\x1b[0m")
"""The end of all colours."""


def plain(text: str) -> str:
    """A name or an error: without colours. Line feeds and tabs stay."""
    return text if text.isprintable() else _CONTROL.sub(_shown, text)


def one_line(text: str) -> str:
    """The same of a name that stands in a line with others."""
    return " ".join(plain(text).split("\n"))


def coloured(text: str) -> str:
    """A line that a program printed: with its colours, which end where its line ends. What the program wrote
    over itself, as progress bars do, stands in lines of its own."""
    if text.isprintable():
        return text
    return "\n".join(_line(line) for line in _RETURN.sub("\n", text.removesuffix("\r")).split("\n"))


def cleaned(value: Any, text: Callable[[str], str] = plain) -> Any:
    """A JSON value with all its texts made plain."""
    match value:
        case str():
            return text(value)
        case dict():
            members = cast("dict[str, Any]", value)
            return {plain(name): cleaned(member, text) for name, member in members.items()}
        case list():
            return [cleaned(element, text) for element in cast("list[Any]", value)]
        case _:
            return value


def _line(line: str) -> str:
    last = ""

    def shown(match: re.Match[str]) -> str:
        nonlocal last
        if len(match[0]) == 1:
            return _shown(match)
        last = match[0]
        return last

    text = _CONTROL_OR_COLOUR.sub(shown, line)
    return text if not last or last in _PLAIN else text + _PLAIN[1]


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

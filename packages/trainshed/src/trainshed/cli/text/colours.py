"""Text for terminals: makes untrusted texts printable, and colours states and replicas. `click.echo` removes
the colours if the output is not a terminal."""

import re
import zlib
from typing import Any, Final, assert_never, cast

import click

from trainshed.core.lifecycle.states import JobState, ReplicaState

_SIGNS: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""The control codes of ASCII and Latin-1 except for tab and line feed, characters that change the direction
of text, and surrogates."""
_CONTROL: Final = re.compile(f"[{_SIGNS}]")
_CONTROL_OR_COLOUR: Final = re.compile(rf"\x1b\[[0-9;:]*m|[{_SIGNS}]")
_RETURN: Final = re.compile(r"\r+\n?")
_PLAIN: Final = ("\x1b[m", "\x1b[0m")
"""Escape sequences that end all colours."""


def plain(text: str) -> str:
    """Return a text that is safe to print on a terminal, without colours. Line feeds and tabs remain."""
    return text if text.isprintable() else _CONTROL.sub(_shown, text)


def one_line(text: str) -> str:
    """Return a text as `plain` does, but in one line: line feeds become spaces."""
    return " ".join(plain(text).split("\n"))


def keep_colours(text: str) -> str:
    """Return a line of a program's output for a terminal. Its colours are kept, and end with the line. Parts
    that the program overwrote with carriage returns, as progress bars do, become separate lines."""
    if text.isprintable():
        return text
    return "\n".join(_line(line) for line in _RETURN.sub("\n", text.removesuffix("\r")).split("\n"))


def make_plain(value: Any) -> Any:
    """Return a JSON value whose texts and names are changed by `plain`."""
    match value:
        case str():
            return plain(value)
        case dict():
            members = cast("dict[str, Any]", value)
            return {plain(name): make_plain(member) for name, member in members.items()}
        case list():
            return [make_plain(element) for element in cast("list[Any]", value)]
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


_REPLICA_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta")
_SERVICE = "service"


def state_colour(state: JobState | ReplicaState) -> str:
    """Return the colour of a state. Waiting states are grey or yellow, running is cyan, stopping is magenta,
    final states are green and red."""
    match state:
        case JobState.QUEUED | ReplicaState.WAITING:
            return "bright_black"
        case JobState.PREPARING:
            return "yellow"
        case JobState.RUNNING | ReplicaState.RUNNING:
            return "cyan"
        case JobState.SUCCEEDED | ReplicaState.EXITED:
            return "green"
        case JobState.CANCELLING | JobState.CANCELLED | ReplicaState.STOPPING:
            return "magenta"
        case JobState.FAILED | ReplicaState.LOST:
            return "red"
        case _:
            assert_never(state)


def replica_colour(replica: str) -> str:
    """Return the colour of a replica, which is the same in every command. The first replicas of a job have
    different colours."""
    if replica == _SERVICE:
        return "bright_black"
    pool, _, index = replica.removeprefix("workerpool").partition("-")
    if pool.isdigit() and index.isdigit():
        return _REPLICA_COLOURS[(2 * int(pool) + int(index)) % len(_REPLICA_COLOURS)]
    return _REPLICA_COLOURS[zlib.crc32(replica.encode()) % len(_REPLICA_COLOURS)]


def faint(text: str) -> str:
    """Return a text in grey, for minor details."""
    return click.style(text, fg="bright_black")

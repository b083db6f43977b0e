"""URIs that name several objects: `*` stands for characters but `/`, `**` for any, `?` for one but `/`."""

import re
from typing import Final

MOST: Final = 4
"""Wildcards in one URI: matching a name takes time in proportion to them."""
_WILD: Final = re.compile(r"\*\*+|\*|\?")


def fixed_part(pattern: str) -> str:
    """What all names that it stands for begin with."""
    found = _WILD.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def count(pattern: str) -> int:
    """How many wildcards it has."""
    return len(_WILD.findall(pattern))


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern names this object."""
    tokens = _tokens(pattern)
    # Where in the pattern one may stand: never more places than wildcards, and one.
    places = _reached({0}, tokens)
    for letter in name:
        after: set[int] = set()
        for place in places:
            token = tokens[place] if place < len(tokens) else ""
            if token == "**" or (token == "*" and letter != "/"):
                after.add(place)
            elif token == letter or (token == "?" and letter != "/"):
                after.add(place + 1)
        places = _reached(after, tokens)
        if not places:
            return False
    return len(tokens) in places


def _tokens(pattern: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    for found in _WILD.finditer(pattern):
        tokens += pattern[at : found.start()]
        tokens.append(found[0][:2])
        at = found.end()
    return [*tokens, *pattern[at:]]


def _reached(places: set[int], tokens: list[str]) -> set[int]:
    """With the places behind stars, which may stand for nothing."""
    reached = set(places)
    for place in places:
        at = place
        while at < len(tokens) and tokens[at] in ("*", "**"):
            at += 1
            reached.add(at)
    return reached

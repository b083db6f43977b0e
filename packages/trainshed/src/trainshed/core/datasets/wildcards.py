"""URIs that name several objects: `*` stands for characters except `/`, `**` for any, `?` for one except
`/`."""

import re
from typing import Final

MOST: Final = 4
"""The most wildcards in one URI: matching a name takes time in proportion to them."""
_WILD: Final = re.compile(r"\*\*+|\*|\?")


def fixed_part(pattern: str) -> str:
    """Return the part with which all names that match begin."""
    wildcard = _WILD.search(pattern)
    return pattern if wildcard is None else pattern[: wildcard.start()]


def count(pattern: str) -> int:
    """Return how many wildcards it has."""
    return len(_WILD.findall(pattern))


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name of an object."""
    tokens = _tokens(pattern)
    # The places in the pattern that the name so far may have reached: at most one more than there are
    # wildcards.
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
    for wildcard in _WILD.finditer(pattern):
        tokens += pattern[at : wildcard.start()]
        tokens.append(wildcard[0][:2])
        at = wildcard.end()
    return [*tokens, *pattern[at:]]


def _reached(places: set[int], tokens: list[str]) -> set[int]:
    """Return the places, and those after stars, which may stand for nothing."""
    reached = set(places)
    for place in places:
        at = place
        while at < len(tokens) and tokens[at] in ("*", "**"):
            at += 1
            reached.add(at)
    return reached

"""URIs that name several objects: `*` stands for characters except `/`, `**` for any, `?` for one except
`/`."""

import re
from functools import lru_cache
from typing import Final

from trainshed.core.patterns import Regex, compile_regex

MOST: Final = 4
"""The most wildcards in one URI: matching a name takes time in proportion to them."""
_WILD: Final = re.compile(r"\*\*+|\*|\?")
_MEANING: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_MOST_STEPS: Final = 1 << 16
"""More than the longest name of an object makes of a pattern."""


def fixed_part(pattern: str) -> str:
    """Return the part with which all names that match begin."""
    wildcard = _WILD.search(pattern)
    return pattern if wildcard is None else pattern[: wildcard.start()]


def count(pattern: str) -> int:
    """Return how many wildcards it has."""
    return len(_WILD.findall(pattern))


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name of an object."""
    return _compiled(pattern).is_all_of(name)


@lru_cache(64)
def _compiled(pattern: str) -> Regex:
    text, at = "", 0
    for wildcard in _WILD.finditer(pattern):
        text += re.escape(pattern[at : wildcard.start()]) + _MEANING[wildcard[0][:2]]
        at = wildcard.end()
    text += re.escape(pattern[at:])
    return compile_regex(text, dot_matches_newline=True, longest=len(text), most_steps=_MOST_STEPS)

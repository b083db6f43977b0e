"""The public glob language of listings: what it means, and how long one call looks for names that match. Blocking.

Names are matched by RE2, in time linear in the name; a bucket may hold millions of them, so that a call ends its page
after a while and the client goes on from there, as the public API allows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from trainshed.buckets.errors import InvalidRequest
from trainshed.buckets.paths import MAX_OBJECT_NAME_BYTES
from trainshed.core.patterns import PatternError, Regex, compile_regex

SEARCH_S: Final = 2.0
"""Seconds that one call may look for names that match; then it answers what it has."""
_TOKENS = re.compile(r"\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{[^{}]*\}|.", re.DOTALL)
_LONGEST_TRANSLATION: Final = 16 * MAX_OBJECT_NAME_BYTES
"""Characters; an escaped one has two, a wildcard five."""
_MOST_STEPS: Final = 20_000
"""Names are short, so that a glob may be more work for each character than other expressions."""


class Search:
    """One call's look for names that a glob matches; without a glob all do, and it is never over."""

    def __init__(self, glob: Regex | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._glob = glob
        self._clock = clock
        self._end = clock() + SEARCH_S
        self._looked = 0

    def passes(self, name: str) -> bool:
        self._looked += 1
        return self._glob is None or self._glob.is_all_of(name)

    def is_over(self) -> bool:
        """Whether the page has to end before the next name. At least one is looked at, so that a client comes on."""
        return self._glob is not None and self._looked > 0 and self._clock() >= self._end


def compile_glob(pattern: str) -> Regex:
    """``*`` and ``?`` stop at '/', ``**`` does not, sets, ``{a,b}``. Raises ``InvalidRequest``."""
    if len(pattern.encode(errors="replace")) > MAX_OBJECT_NAME_BYTES:
        raise InvalidRequest(
            f"Invalid matchGlob: it has over {MAX_OBJECT_NAME_BYTES} bytes, more than a name can have. Shorten it."
        )
    try:
        return compile_regex(
            _translated(pattern),
            dot_matches_newline=True,
            longest=_LONGEST_TRANSLATION,
            most_steps=_MOST_STEPS,
        )
    except PatternError as error:
        raise InvalidRequest(f"Invalid matchGlob '{pattern}': {error} Correct it.") from error


def _translated(pattern: str) -> str:
    parts: list[str] = []
    for token in _TOKENS.findall(pattern):
        match token[0], len(token):
            case "*", 2:
                parts.append(".*")
            case "*", _:
                parts.append("[^/]*")
            case "?", _:
                parts.append("[^/]")
            case "[", size if size > 1:
                negated = token[1] in "!^"
                body = token[2:-1] if negated else token[1:-1]
                # A closing bracket that comes first is one of the set.
                escaped = "".join(f"\\{sign}" if sign in "\\[]^" else sign for sign in body)
                parts.append(f"[{'^' if negated else ''}{escaped}]")
            case "{", size if size > 1:
                parts.append(f"(?:{'|'.join(map(_translated, token[1:-1].split(',')))})")
            case _:
                parts.append(re.escape(token))
    return "".join(parts)

"""Matches wildcards and regular expressions from callers in time linear in the text. Pure.

Python's own `re` backtracks, and a short expression such as `(a+)+$` can occupy it for hours. It is therefore
never used for callers' regular expressions. `fnmatch` translates wildcards into patterns without
backtracking. RE2 matches regular expressions. RE2 does not support look-around and back-references, and never
exceeds its memory limit. It is loaded with the first regular expression, because its C++ library needs 2.5 MB
of memory.
"""

import enum
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final


class Operator(enum.StrEnum):
    """A comparison operator as written in a filter. HAS: a text contains another text, or matches a text with
    `*`."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    HAS = ":"


if TYPE_CHECKING:
    import re2

MAX_LENGTH: Final = 1000
"""Maximum number of characters of a regular expression."""
MAX_STEPS: Final = 2000
"""Maximum number of RE2 instructions of a regular expression. `((a{30}){30})` is short, but needs much work
for each character of a text."""
_MEMORY: Final = 1 << 20
"""Bytes that RE2 may use to cache its intermediate results."""
_SIGNS: Final = re.compile(r"[?\[]")
"""Characters in addition to `*` that have a special meaning for `fnmatch`."""
_ABSENT: Final = ("invalid perl operator", "invalid escape sequence")
"""RE2's error texts for features of other regular expression libraries."""


class PatternError(ValueError):
    """The text is not a supported pattern. The message contains the error."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression in the syntax of RE2. Two expressions with the same text are equal."""

    text: str
    _compiled: "re2.Pattern" = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        """Return whether any part of the text matches."""
        return self._compiled.search(_bytes(text)) is not None

    def is_all_of(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self._compiled.fullmatch(_bytes(text)) is not None


def compile_regex(
    text: str, *, dot_matches_newline: bool = False, longest: int = MAX_LENGTH, most_steps: int = MAX_STEPS
) -> Regex:
    """Compile a regular expression of at most `longest` characters. Raise PatternError if it is invalid, too
    long, or has more than `most_steps` instructions."""
    import re2

    if len(text) > longest:
        raise PatternError(f"The pattern has {len(text)} characters. The maximum is {longest}.")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.dot_nl = dot_matches_newline
    try:
        compiled = re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise PatternError(
            f"{text!r} contains an incomplete character (an unpaired surrogate). Remove this character."
        ) from None
    except re2.error as error:
        raise PatternError(_fault(text, error)) from None
    if compiled.programsize > most_steps:
        raise PatternError(
            f"{text!r} is too complex: its compiled form has {compiled.programsize} instructions. The "
            f"maximum is {most_steps}. Use fewer repetitions ({{m,n}})."
        )
    return Regex(text, compiled)


def compile_wildcard(pattern: str) -> Callable[[str], bool]:
    """Return a function that checks whether a whole text matches the pattern. `*` matches any text, including
    an empty one."""
    compiled = re.compile(fnmatch.translate(_SIGNS.sub(r"[\g<0>]", pattern)))
    return lambda text: compiled.match(text) is not None


def _fault(text: str, error: "re2.error") -> str:
    reason = error.args[0]
    message = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    if message.startswith(_ABSENT):
        return (
            f"{text!r} is not a regular expression of RE2: {message}. RE2 has no "
            "look-around, no back-references and no \\Z (use \\z for the end); see "
            "github.com/google/re2/wiki/Syntax."
        )
    if "repetition" in message:
        return f"{text!r} is not a regular expression: {message}. Use at most 1000 repetitions in total."
    return f"{text!r} is not a regular expression: {message}. Put \\ before literal special characters."


def _bytes(text: str) -> bytes:
    """Encode a text as UTF-8. Unpaired surrogates, which JSON can contain, become question marks."""
    return text.encode(errors="replace")


MAX_WILDCARDS: Final = 4
"""Maximum number of wildcards in one URI. The time for matching a name grows with their number."""
_WILD: Final = re.compile(r"\*\*+|\*|\?")
_MEANING: Final = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_MAX_STEPS: Final = 1 << 16
"""Maximum number of RE2 instructions of a wildcard. Patterns for the longest object names need fewer."""


def fixed_part(pattern: str) -> str:
    """Return the common prefix of all names that match the pattern."""
    wildcard = _WILD.search(pattern)
    return pattern if wildcard is None else pattern[: wildcard.start()]


def count(pattern: str) -> int:
    """Return the number of wildcards in the pattern."""
    return len(_WILD.findall(pattern))


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the name of an object."""
    return _compile(pattern).is_all_of(name)


@lru_cache(64)
def _compile(pattern: str) -> Regex:
    text, at = "", 0
    for wildcard in _WILD.finditer(pattern):
        text += re.escape(pattern[at : wildcard.start()]) + _MEANING[wildcard[0][:2]]
        at = wildcard.end()
    text += re.escape(pattern[at:])
    return compile_regex(text, dot_matches_newline=True, longest=len(text), most_steps=_MAX_STEPS)

"""Patterns that callers bring: wildcards and regular expressions, matched in time linear in the text. Pure.

Python's own `re` tries one way after the other, and a short expression such as `(a+)+$` has it try for hours.
So no text of a caller becomes a pattern of `re`: wildcards are matched by looking for one part after the
other, regular expressions by RE2, which has no look-around and no back-references and takes no more than its
limit of memory. RE2 is loaded with the first of them: with the C++ library that it needs it takes a service
2.5 MB.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re2

MAX_LENGTH: Final = 1000
"""Characters of a regular expression."""
MAX_STEPS: Final = 2000
"""Instructions that an expression may become: `((a{30}){30})` is short, and much work for each character of a
text."""
_MEMORY: Final = 1 << 20
"""Bytes that matching may take for what it has worked out before."""
_ABSENT: Final = ("invalid perl operator", "invalid escape sequence")
"""RE2's words for what others have and it has not."""


class PatternError(ValueError):
    """The text is no pattern that can be served; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression in the syntax of RE2. Equal to another one of the same text."""

    text: str
    _compiled: "re2.Pattern" = field(repr=False, compare=False)

    def found_in(self, text: str) -> bool:
        """Whether any part of the text matches."""
        return self._compiled.search(_bytes(text)) is not None

    def is_all_of(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(_bytes(text)) is not None

    def first_in(self, text: str) -> str | None:
        """The first group of the first match, or all that matched if there are no groups; None without a
        match."""
        match = self._compiled.search(_bytes(text))
        if match is None:
            return None
        part = match.group(1 if self._compiled.groups else 0)
        return (part or b"").decode(errors="replace")


def compile_regex(
    text: str,
    *,
    dot_matches_newline: bool = False,
    longest: int = MAX_LENGTH,
    most_steps: int = MAX_STEPS,
) -> Regex:
    """Read a regular expression of at most `longest` characters. Raises PatternError."""
    import re2

    if len(text) > longest:
        raise PatternError(f"It has {len(text)} characters; at most {longest}.")
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.dot_nl = dot_matches_newline
    try:
        compiled = re2.compile(text.encode(), options)
    except UnicodeEncodeError:
        raise PatternError(f"{text!r} holds half a character; spell it as a whole one.") from None
    except re2.error as error:
        raise PatternError(_fault(text, error)) from None
    if compiled.programsize > most_steps:
        raise PatternError(
            f"{text!r} is too much work for each character of a text: it has {compiled.programsize} steps;"
            f" at most {most_steps}. Repeat less often ({{m,n}})."
        )
    return Regex(text, compiled)


def compile_wildcard(pattern: str) -> Callable[[str], bool]:
    """Whether a whole text is like the pattern, in which `*` stands for any text, the empty one included."""
    first, *middle = pattern.split("*")
    if not middle:
        return lambda text: text == pattern
    last = middle.pop()
    # The leftmost place of each part leaves the most for those behind it, so that no other needs to be tried.
    parts = tuple(part for part in middle if part)
    fixed = len(first) + len(last)

    def matches(text: str) -> bool:
        if len(text) < fixed or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in parts:
            at = text.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def _fault(text: str, error: "re2.error") -> str:
    reason = error.args[0]
    said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    if said.startswith(_ABSENT):
        return (
            f"{text!r} is no regular expression of RE2: {said}. RE2 has no look-around, no back-references "
            "and no \\Z (\\z is the end); see github.com/google/re2/wiki/Syntax."
        )
    if "repetition" in said:
        return f"{text!r} is no regular expression: {said}. Repeat at most 1000 times, all in all."
    return (
        f"{text!r} is no regular expression: {said}. Put \\ before signs that are meant literally."
    )


def _bytes(text: str) -> bytes:
    """UTF-8; half a character, which JSON can spell, becomes a question mark."""
    return text.encode(errors="replace")

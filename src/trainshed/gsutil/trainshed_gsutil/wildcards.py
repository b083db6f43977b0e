"""From a wildcard to what has to be listed, and what of that matches. Pure.

`*` and `?` stay within one part between slashes, because only that part is listed; `**` goes through all of
them.
"""

import fnmatch
import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Pattern

_FIRST = re.compile(r"[*?\[\]]")


class Step(NamedTuple):
    """One listing. `prefix`: of the names to list; `delimiter`: "/" lists one level, "" all below;
    `patterns`: one of them must match a name; `rest`: what has to follow behind a matching level, "" =
    nothing."""

    prefix: str
    delimiter: str
    patterns: "tuple[Pattern[str], ...]"
    rest: str

    def matches(self, name: str) -> bool:
        return any(pattern.match(name) for pattern in self.patterns)


def step(wildcard: str) -> Step:
    """The first listing that an object's name, perhaps with wildcards, needs."""
    match = _FIRST.search(wildcard)
    if match is None:
        return Step(wildcard, "/", _compiled(wildcard), "")
    prefix = wildcard[: match.start()]
    level, slash, rest = wildcard[match.start() :].partition("/")
    if "**" in level:
        return Step(prefix, "", _compiled(prefix + level + slash + rest), "")
    return Step(prefix, "/", _compiled(prefix + level), rest)


def without_slash(name: str) -> str:
    """Less one slash at its end."""
    return name[:-1] if name.endswith("/") else name


def _compiled(pattern: str) -> "tuple[Pattern[str], ...]":
    # `a/**/b` is `a/b` as well.
    texts = [pattern, pattern.replace("/**/", "/")]
    texts += [text[3:] for text in texts if text.startswith("**/")]
    return tuple(re.compile(fnmatch.translate(text)) for text in dict.fromkeys(texts))


def split_path(path: str) -> "tuple[str, str] | None":
    """(directory, pattern of names) of a path with `**`; None: there is none in it."""
    before, stars, behind = path.partition("**")
    if not stars:
        return None
    return before[:-1], behind.lstrip("/") or "*"

"""Finds the handler of a request line: templates of paths, and the router that matches them.

Templates are those of google.api.http: `/v1/{parent=projects/*}/jobs:cancel`. `*` is one segment; `**` is all
that follow, or all up to the segments that stand behind it; `{name}` is `{name=*}`; what follows the last
colon is a verb of the API's own, or a part of the name if no template has it. A path is given as it was sent
(percent-encoded): it is split into segments first and decoded after, so that `models/ID%401` and an encoded
slash reach the right variable (spec/clients#surface). The module knows no handler and no server.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from msgspec import Struct

T = TypeVar("T")
_PART: Final = re.compile(r"([^{]*)(?:\{([^{}=]+)(?:=([^{}]*))?\})?")
"""What stands before a variable, its name, and its pattern."""
ANY: Final = ""
"""Stands in place of an HTTP method: the route takes any method, and its handler refuses those it lacks."""


class Template(Struct, frozen=True):
    #: The template as it was written.
    text: str
    #: The segments of the path, with `*` and `**` for variable ones.
    segments: tuple[str, ...]
    #: The verb after the last colon; None = there is none.
    custom: str | None
    #: Dotted field path, and the half-open range of path segments that it takes. Negative bounds count from
    #: the end of the path, and an end of 0 is the end.
    variables: tuple[tuple[str, int, int], ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        path, custom = text.lstrip("/"), None
        head, colon, tail = path.rpartition(":")
        if colon and "}" not in tail:
            path, custom = head, tail
        segments: list[str] = []
        ranges: list[tuple[str, int, int]] = []
        for literal, name, pattern in _PART.findall(path):
            segments += filter(None, literal.split("/"))
            if name:
                inner = (pattern or "*").split("/")
                ranges.append((name, len(segments), len(segments) + len(inner)))
                segments += inner
        return cls(text, tuple(segments), custom, _anchored(segments, ranges))


def _anchored(
    segments: Sequence[str], ranges: Iterable[tuple[str, int, int]]
) -> tuple[tuple[str, int, int], ...]:
    """The ranges, with the bounds behind a `**` counted from the end."""
    rest = segments.index("**") if "**" in segments else len(segments)
    count = len(segments)
    return tuple(
        (name, start if start <= rest else start - count, end if end <= rest else end - count)
        for name, start, end in ranges
    )


class _Node(Generic[T]):
    """One path segment in the router's tree."""

    __slots__ = ("depth", "ends", "literals", "rest", "wildcard")

    def __init__(self) -> None:
        #: Children by the literal segment that leads to them.
        self.literals: dict[str, _Node[T]] = {}
        #: The child behind `*`; None if there is none.
        self.wildcard: _Node[T] | None = None
        #: The child behind `**`; None if there is none.
        self.rest: _Node[T] | None = None
        #: The number of segments of the longest template below this node.
        self.depth = 0
        #: The templates that end here, by HTTP method and verb.
        self.ends: dict[tuple[str, str | None], tuple[Template, T]] = {}


class Router(Generic[T]):
    """Finds the target of a request line. It is built once, and can be read by any thread.

    Where two routes have the same method and shape, the first one added wins, so the API that owns a shared
    path is added first. A literal segment is preferred to `*`, and `*` to `**`; of two templates with `**`,
    the one with more segments behind it.
    """

    def __init__(self, routes: Iterable[tuple[str, Template, T]] = ()) -> None:
        """`routes`: HTTP method (or `ANY`), template, and target."""
        self._root = _Node[T]()
        self._customs: set[str] = set()
        for method, template, target in routes:
            self.add(method, template, target)

    def add(self, method: str, template: Template, target: T) -> bool:
        """Add a route. Returns False if an earlier one has its method and shape, so that this one is never
        reached."""
        if template.custom is not None:
            self._customs.add(template.custom)
        node, below = self._root, len(template.segments)
        for segment in template.segments:
            node.depth = max(node.depth, below)
            below -= 1
            if segment == "**":
                node.rest = node = node.rest or _Node()
            elif segment == "*":
                node.wildcard = node = node.wildcard or _Node()
            else:
                node = node.literals.setdefault(segment, _Node())
        end = template, target
        return node.ends.setdefault((method, template.custom), end) is end

    def match(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """Returns the target of `method` at the encoded `path` (without query), and the decoded variables;
        None if no route fits."""
        if not path.startswith("/"):
            return None
        parts = path.split("/")[1:] if path != "/" else []
        head, colon, custom = parts[-1].rpartition(":") if parts else ("", "", "")
        match = None
        if colon and custom in self._customs:
            last, parts[-1] = parts[-1], head
            match = self._find(self._root, parts, 0, (method, custom))
            if match is None:
                parts[-1] = last
        if match is None:
            match = self._find(self._root, parts, 0, (method, None))
        if match is None:
            return self._match_encoded_verb(method, path)
        template, target = match
        return target, {
            name: unquote("/".join(parts[start : end or None]))
            for name, start, end in template.variables
        }

    def _match_encoded_verb(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """Match a path whose verb's colon is percent-encoded: some clients encode whatever they can."""
        for colon in ("%3A", "%3a"):
            head, separator, custom = path.rpartition(colon)
            if separator and custom in self._customs:
                return self.match(method, f"{head}:{custom}")
        return None

    def _find(
        self, node: _Node[T], parts: Sequence[str], at: int, key: tuple[str, str | None]
    ) -> tuple[Template, T] | None:
        if at == len(parts):
            return node.ends.get(key) or node.ends.get((ANY, key[1]))
        child = node.literals.get(parts[at])
        match = self._find(child, parts, at + 1, key) if child is not None else None
        if match is None and node.wildcard is not None:
            match = self._find(node.wildcard, parts, at + 1, key)
        if match is None and node.rest is not None:
            # Leave at least as many segments as a template has behind its `**`: those are not a part of it.
            for split in range(max(at + 1, len(parts) - node.rest.depth), len(parts) + 1):
                match = self._find(node.rest, parts, split, key)
                if match is not None:
                    break
        return match

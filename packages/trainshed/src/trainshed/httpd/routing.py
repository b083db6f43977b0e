"""Finds the handler of a request line, with path templates and a router that matches them.

Templates have the form of google.api.http: `/v1/{parent=projects/*}/jobs:cancel`.

- `*` is one segment.
- `**` is all remaining segments except those that follow `**` in the template.
- `{name}` is `{name=*}`.
- The text after the last colon is a custom verb of the API. If no template has that verb, the text is part of
  the name.

Paths are percent-encoded. The router splits a path into segments before it decodes them. Therefore
`models/ID%401` and an encoded slash are assigned to the right variable (spec/clients#surface), and an encoded
`..` causes no path traversal.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from msgspec import Struct

T = TypeVar("T")
_PART: Final = re.compile(r"([^{]*)(?:\{([^{}=]+)(?:=([^{}]*))?\})?")
"""Matches the text before a variable, the variable's name, and its pattern."""
ANY: Final = ""
"""Any HTTP method. The handler rejects methods that it does not support."""


class Template(Struct, frozen=True):
    #: The template as text.
    text: str
    #: The segments of the path, with `*` and `**` for variable segments.
    segments: tuple[str, ...]
    #: The verb after the last colon; None = no verb.
    custom: str | None
    #: The dotted field path of each variable, and the half-open range of its path segments. Negative bounds
    #: count from the end of the path. An end of 0 is the end of the path.
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
        return cls(text, tuple(segments), custom, _anchor_ranges(segments, ranges))


def _anchor_ranges(
    segments: Sequence[str], ranges: Iterable[tuple[str, int, int]]
) -> tuple[tuple[str, int, int], ...]:
    """Return the ranges with the bounds after a `**` counted from the end."""
    rest = segments.index("**") if "**" in segments else len(segments)
    count = len(segments)
    return tuple(
        (name, start if start <= rest else start - count, end if end <= rest else end - count)
        for name, start, end in ranges
    )


class _Node(Generic[T]):
    """A node of the router's tree: one path segment."""

    __slots__ = ("depth", "ends", "literals", "rest", "wildcard")

    def __init__(self) -> None:
        #: Children by literal segment.
        self.literals: dict[str, _Node[T]] = {}
        #: The child for `*`, or None.
        self.wildcard: _Node[T] | None = None
        #: The child for `**`, or None.
        self.rest: _Node[T] | None = None
        #: The number of segments that the longest template has below this node.
        self.depth = 0
        #: The templates that end at this node, by HTTP method and custom verb.
        self.ends: dict[tuple[str, str | None], tuple[Template, T]] = {}


class Router(Generic[T]):
    """Finds the target of a request line. After it is built, threads may use it concurrently.

    Priorities:

    - Of two routes with the same method and shape, the route that was added first. The API that owns a shared
      path is therefore added first.
    - A literal segment before `*`, and `*` before `**`.
    - Of two templates with `**`, the template with more segments after it.
    """

    def __init__(self, routes: Iterable[tuple[str, Template, T]] = ()) -> None:
        """`routes`: (HTTP method or `ANY`, template, target)."""
        self._root = _Node[T]()
        self._customs: set[str] = set()
        for method, template, target in routes:
            self.add(method, template, target)

    def add(self, method: str, template: Template, target: T) -> bool:
        """Add a route. Return False if an earlier route has the same method and shape, because the new route
        cannot be reached."""
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
        """Return the target of `method` at the encoded `path` (without query) and the decoded variables, or
        None if no route matches."""
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
            name: unquote("/".join(parts[start : end or None])) for name, start, end in template.variables
        }

    def _match_encoded_verb(self, method: str, path: str) -> tuple[T, dict[str, str]] | None:
        """Match a path with a percent-encoded colon before its verb, as some clients send it."""
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
            # Leave as many segments as the longest template has after `**`.
            for split in range(max(at + 1, len(parts) - node.rest.depth), len(parts) + 1):
                match = self._find(node.rest, parts, split, key)
                if match is not None:
                    break
        return match

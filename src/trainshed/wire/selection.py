"""Implements the system parameter `fields`, which says what parts of an answer a caller wants.

It owns the grammar and what remains of an answer. It knows the plan of the answer's message, so that a name
which the answer cannot have is refused before anything is done.
"""

import re
from typing import Any, Final, cast

from trainshed.wire.plans import Plan, Shape
from trainshed.wire.status import Violation, WireError

Selection = dict[str, "Selection"]
"""By field, in JSON spelling or `*`, what is wanted of it; empty = everything."""

_TOKEN: Final = re.compile(r"\s*([^\s,/.()]+|[,/.()])\s*")
_MOST: Final = 4_096
"""Most characters of a `fields` parameter."""
_DEEPEST: Final = 50


def parse(text: str, answer: Plan) -> Selection:
    """Parse `a,b/c,d(e,f/*)`, also with dots in place of slashes. Raises WireError for other syntax, and for
    a field that the answer cannot have."""
    if len(text) > _MOST:
        raise _refused(text[:40] + "…", f"It has more than {_MOST} characters.")
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise _refused(text, "It cannot be read.")
    reader = _Reader(text, tokens)
    selection = reader.alternatives(answer, (), 0)
    if reader.tokens:
        raise _refused(text, f"'{reader.tokens[-1]}' is not expected there.")
    return selection


def select(value: Any, wanted: Selection) -> Any:
    """Return what is wanted of a JSON value; for a list, of each of its elements."""
    if not wanted:
        return value
    if isinstance(value, list):
        return [select(each, wanted) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    selected: dict[str, Any] = {}
    for name, content in cast(dict[str, Any], value).items():
        of_it = wanted.get(name, wanted.get("*"))
        if of_it is not None:
            selected[name] = select(content, of_it)
    return selected


class _Reader:
    """Reads tokens from the front. `tokens`: the remaining ones, in reverse."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self.tokens = tokens[::-1]

    def alternatives(self, plan: Plan | None, above: tuple[str, ...], depth: int) -> Selection:
        """Read paths separated by commas. `plan` is None below a value that may hold anything."""
        selection: Selection = {}
        while True:
            _merge(selection, self._path(plan, above, depth))
            if not self._takes(","):
                return selection

    def _path(self, plan: Plan | None, above: tuple[str, ...], depth: int) -> Selection:
        if depth > _DEEPEST:
            raise _refused(self._text, "It is nested too deep.")
        name = self.tokens.pop() if self.tokens else ""
        if not name or name in ",/.()":
            raise _refused(self._text, "A field's name is missing.")
        path = (*above, name)
        below: Plan | None = None
        if plan is not None and name != "*":
            field = plan.by_key.get(name)
            if field is None:
                raise _refused(".".join(path))
            name = field.json_name
            is_open = field.shape is Shape.MAP or field.value.special is not None
            if field.value.is_message and not is_open:
                below = field.value.plan
            elif not is_open and self.tokens and self.tokens[-1] in "/.(":
                raise _refused(".".join((*path, *self.tokens[-2:-1])))
        if self._takes("/") or self._takes("."):
            return {name: self._path(below, path, depth + 1)}
        if self._takes("("):
            inner = self.alternatives(below, path, depth + 1)
            if not self._takes(")"):
                raise _refused(self._text, "A bracket is not closed.")
            return {name: inner}
        return {name: {}}

    def _takes(self, token: str) -> bool:
        if self.tokens and self.tokens[-1] == token:
            self.tokens.pop()
            return True
        return False


def _merge(into: Selection, more: Selection) -> None:
    """Add another selection. Whoever wants all of a field gets all of it."""
    for name, wanted in more.items():
        if name not in into:
            into[name] = wanted
        elif not into[name] or not wanted:
            into[name] = {}
        else:
            _merge(into[name], wanted)


def _refused(path: str, why: str = "") -> WireError:
    text = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{path}'."
    described = f"{text} {why}" if why else text
    return WireError((Violation(path, described),))

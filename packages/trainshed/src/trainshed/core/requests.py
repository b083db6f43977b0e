"""Reads the typed fields of a request and collects all of its errors.

Determines the field paths for errors, but contains no rules about particular fields. The package `wire` has
already rejected unknown fields and wrong types, so values have the types of the public message.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct

from trainshed.core.errors import InvalidRequest, Violation

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DURATION = re.compile(r"(-?)(\d+)(?:\.(\d{1,9}))?s")
_PLAIN = (str, int, float)
_MAPPINGS = (dict, Mapping)
"""`dict` comes first, because the check for the protocol `Mapping` is ten times slower."""


def snake_case(name: str) -> str:
    """Return a camelCase name in snake_case: `worker_pool_specs` for `workerPoolSpecs`."""
    return _HUMP.sub("_", name).lower()


_own_name = lru_cache(4096)(snake_case)
"""Cached conversion for names in the code only. Names from callers may be long and must not be cached."""


class Faults:
    """All errors of one request, in the order in which they were found."""

    def __init__(self) -> None:
        self._found: dict[Violation, None] = {}

    def add(self, field: str, description: str) -> None:
        self._found[Violation(field, description)] = None

    @contextmanager
    def collect(self, at: str = "") -> Generator[None]:
        """Add the violations of an InvalidRequest that the block raises. `at`: the prefix for the field paths
        of these violations, including the dot at the end of the prefix."""
        try:
            yield
        except InvalidRequest as error:
            for violation in error.violations:
                self.add(f"{at}{violation.field}", violation.description)

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(self._found)

    def refuse(self) -> None:
        """Raise InvalidRequest if there are violations."""
        if self._found:
            raise InvalidRequest(self.violations)


class Section(Struct, eq=False):
    """One message of a request: `values` in public JSON, at `path` (snake_case, "" for the request itself).

    The fields of a section never change. The class is not frozen because creation would take three times as
    long, and a request has dozens of sections.
    """

    values: Mapping[str, Any]
    path: str
    faults: Faults

    def path_of(self, name: str) -> str:
        """Return the path of the field `name` (camelCase)."""
        own = _own_name(name)
        return f"{self.path}.{own}" if self.path else own

    def fault(self, name: str, description: str) -> None:
        """Report an error in the field `name`, or in the section itself for ""."""
        self.faults.add(self.path_of(name) if name else self.path, description)

    def check(self, name: str, fault: str | None) -> None:
        """Report `fault` for the field `name`, unless `fault` is empty."""
        if fault:
            self.fault(name, fault)

    def has(self, name: str) -> bool:
        """Return whether the request contains the field, even with its default value."""
        return name in self.values

    def is_set(self, name: str) -> bool:
        """Return whether the field differs from its default value."""
        value = self.values.get(name)
        return value is not None and not is_blank(value)

    def text(self, name: str) -> str:
        return str(self.values.get(name) or "")

    def enum(self, name: str) -> str:
        """Return the enum value of the field, or "" for the unspecified value."""
        value = self.text(name)
        return "" if value.endswith("_UNSPECIFIED") else value

    def integer(self, name: str) -> int:
        """Return an int32 or int64 field (a string in proto3 JSON), or 0 if unset."""
        return int(self.values.get(name) or 0)

    def number(self, name: str) -> float:
        """Return a double field, or 0 if unset. The value may be infinite or NaN, which public JSON encodes
        as text."""
        return float(self.values.get(name) or 0)

    def _items(self, name: str) -> Sequence[Any]:
        return cast("Sequence[Any]", self.values.get(name) or ())

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(float(item) for item in self._items(name))

    def flag(self, name: str) -> bool:
        return bool(self.values.get(name, False))

    def count(self, name: str) -> int:
        """Return the number of elements of the repeated field `name`."""
        return len(self._items(name))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self._items(name))

    def checked_texts(self, name: str, fault: Callable[[str], str | None]) -> tuple[str, ...]:
        """Return the texts of the field `name`, and report errors in any of them."""
        texts = self.texts(name)
        for index, text in enumerate(texts):
            if wrong := fault(text):
                self.faults.add(f"{self.path_of(name)}[{index}]", wrong)
        return texts

    def duration(self, name: str) -> int | None:
        """Return a duration field in nanoseconds, or None if unset."""
        value = self.values.get(name)
        return None if value is None else nanoseconds(str(value))

    def section(self, name: str) -> "Section":
        """Return the message in the field `name`, or an empty message if unset."""
        return Section(_mapping(self.values.get(name)), self.path_of(name), self.faults)

    def sections(self, name: str) -> Iterator["Section"]:
        """Yield the messages of the repeated field `name`. The path of each message contains its index."""
        for index, item in enumerate(self._items(name)):
            yield Section(_mapping(item), f"{self.path_of(name)}[{index}]", self.faults)


def is_blank(value: object) -> bool:
    """Return whether a JSON value is blank: null, empty, zero, or an object with only blank values."""
    if value is None or isinstance(value, _PLAIN):
        return value in (None, "", 0, "0", False)
    if isinstance(value, _MAPPINGS):
        return all(is_blank(item) for item in cast("Mapping[str, object]", value).values())
    if isinstance(value, list):
        return not value
    return False


def nanoseconds(duration: str) -> int:
    """Return a proto3 JSON duration (`"7200s"`, `"-1.5s"`) in nanoseconds. Raise ValueError for another
    text."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(f"{duration!r} is not a duration such as 7200s")
    total = int(match[2]) * 10**9 + int((match[3] or "").ljust(9, "0"))
    return -total if match[1] else total


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, _MAPPINGS) else {}

"""One call of a method of ours: a path, a query and perhaps a JSON body come in, JSON or lines of it go out."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.api.trainshed_v1.fields import Fields
from trainshed.core.errors import InvalidRequest, Violation


@dataclass(frozen=True, slots=True)
class JsonCall:
    """`target`: the decoded part of the path that names a job, node or plan, "" where there is none. `query`: values
    by name. `body`: the JSON object that came with it, empty if none did."""

    principal: Principal
    services: Services
    target: str
    query: Mapping[str, Sequence[str]]
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def fields(self) -> Fields:
        """The body to be read field by field; `Fields.refuse` must follow."""
        return Fields(self.body)

    def parameter(self, name: str) -> str:
        """The last value of a query parameter, "" if it was not given."""
        values = self.query.get(name)
        return values[-1] if values else ""

    def number(self, name: str) -> int:
        """A whole number, 0 if it was not given. Raises InvalidRequest."""
        text = self.parameter(name)
        if not text:
            return 0
        if not text.isdecimal() or len(text) > 9:
            raise InvalidRequest((Violation(name, f"{text!r} is not a whole number."),))
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether the parameter was given as `true`, `1`, or without a value. Raises InvalidRequest."""
        if name not in self.query:
            return False
        text = self.parameter(name).lower()
        if text in ("", "true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise InvalidRequest((Violation(name, f"{text!r} is neither true nor false."),))

    def texts(self, name: str) -> tuple[str, ...]:
        """All values of a parameter that may be repeated or hold commas."""
        return tuple(
            part for value in self.query.get(name, ()) for part in value.split(",") if part
        )


JsonHandler = Callable[[JsonCall], Awaitable[dict[str, Any]]]
StreamHandler = Callable[[JsonCall], Awaitable[AsyncGenerator[bytes]]]
"""Raises what is wrong before the first line is asked for; the lines are JSON, each with its line end."""

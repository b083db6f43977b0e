"""Defines google.rpc statuses and the error body of the REST surfaces.

It owns the code table and the JSON shape, and does not decide which error is meant. A violation is the pair
that BadRequest carries. Sources: facts/limits#error-texts; google.rpc.Code.
"""

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.wire import pool


class StatusCode(Enum):
    """google.rpc.Code: the name, the number on the wire and the HTTP status of each code."""

    OK = (0, 200)
    CANCELLED = (1, 499)
    UNKNOWN = (2, 500)
    INVALID_ARGUMENT = (3, 400)
    DEADLINE_EXCEEDED = (4, 504)
    NOT_FOUND = (5, 404)
    ALREADY_EXISTS = (6, 409)
    PERMISSION_DENIED = (7, 403)
    RESOURCE_EXHAUSTED = (8, 429)
    FAILED_PRECONDITION = (9, 400)
    ABORTED = (10, 409)
    OUT_OF_RANGE = (11, 400)
    # Not 501, which clients retry for half a minute (docs/clients.md).
    UNIMPLEMENTED = (12, 400)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)
    DATA_LOSS = (15, 500)
    UNAUTHENTICATED = (16, 401)

    @property
    def number(self) -> int:
        """The google.rpc.Code number, also gRPC's."""
        return self.value[0]

    @property
    def http(self) -> int:
        """The HTTP status that the public services answer with, except for UNIMPLEMENTED."""
        return self.value[1]

    @classmethod
    def of(cls, number: int) -> "StatusCode":
        """Return the code with this number; an unknown number is UNKNOWN, as gRPC treats it."""
        return _BY_NUMBER.get(number, cls.UNKNOWN)


_BY_NUMBER = {code.number: code for code in StatusCode}


class Violation(Struct, frozen=True):
    """One offending field of a request: its path in proto names, and the public text."""

    field: str
    description: str


MOST_TOLD: Final = 100
"""Most violations of one request that are listed; further ones are only counted."""


def told(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Return the violations that a caller is shown."""
    if len(violations) <= MOST_TOLD:
        return violations
    more = f"And {len(violations) - MOST_TOLD} more faults, which are not listed."
    return (*violations[:MOST_TOLD], Violation("", more))


class Undecided(Struct, frozen=True):
    """An enum field of a message that was given an unknown value, with the numbers of its known values."""

    message: Message
    field: str
    numbers: tuple[int, ...]

    def decide(self, number: int) -> None:
        """Give the field a value; 0 leaves it unset, as it is until this is called."""
        setattr(self.message, self.field, number)


class WireError(ValueError):
    """A body or a query is not the message it should be; carries every violation found.

    The message is what the public services put into `error.message`: the texts, one per line, unless
    `message` is given. `partial` is the request as far as it could be read, None if it is no JSON object at
    all; `undecided` are its enum fields whose values could not be read.
    """

    def __init__(
        self,
        violations: tuple[Violation, ...],
        partial: Message | None = None,
        *,
        message: str | None = None,
        undecided: tuple[Undecided, ...] = (),
    ) -> None:
        super().__init__(message or "\n".join(v.description for v in told(violations)))
        self.violations = violations
        self.partial = partial
        self.undecided = undecided


class Refused(Exception):
    """A request made within the process was refused; carries what its caller is told."""

    def __init__(
        self, code: StatusCode, message: str, violations: tuple[Violation, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.violations = violations


def error_body(code: StatusCode, message: str, violations: Iterable[Violation] = ()) -> bytes:
    """Return the REST error object: `{"error": {code, message, status, details}}` as UTF-8 JSON.
    `violations` become a google.rpc.BadRequest; `details` is omitted without any."""
    error: dict[str, Any] = {"code": code.http, "message": message, "status": code.name}
    if listed := [{"field": v.field, "description": v.description} for v in violations]:
        kind = "type.googleapis.com/google.rpc.BadRequest"
        error["details"] = [{"@type": kind, "fieldViolations": listed}]
    return json.dumps({"error": error}, indent=2, ensure_ascii=False).encode() + b"\n"


def status_message(
    code: StatusCode, message: str, violations: Iterable[Violation] = (), reason: str | None = None
) -> Message:
    """Return the same as a google.rpc.Status message, for gRPC trailers and a resource's `error`."""
    status = pool.message_class("google.rpc.Status")(code=code.number, message=message)
    details: list[Message] = []
    if reason:
        details.append(
            pool.message_class("google.rpc.ErrorInfo")(reason=reason, domain="googleapis.com")
        )
    listed = [{"field": v.field, "description": v.description} for v in violations]
    if listed:
        details.append(pool.message_class("google.rpc.BadRequest")(field_violations=listed))
    packed: Any = getattr(status, "details")  # noqa: B009  a field of a dynamic message
    for detail in details:
        packed.add().Pack(detail)
    return status

"""Defines the google.rpc status codes, and the error body of the REST surfaces.

This module owns the table of codes and the JSON form. Callers choose the code. Sources:
facts/limits#error-texts, google.rpc.Code.
"""

import json
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.wire import pool


class StatusCode(Enum):
    """google.rpc.Code: each code with its number and HTTP status."""

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
    # The HTTP status is not 501, because clients retry for 30 seconds after a 501 (docs/clients.md).
    UNIMPLEMENTED = (12, 400)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)
    DATA_LOSS = (15, 500)
    UNAUTHENTICATED = (16, 401)

    @property
    def number(self) -> int:
        """The number in google.rpc.Code and gRPC."""
        return self.value[0]

    @property
    def http(self) -> int:
        """The HTTP status. It equals that of the public services, except for UNIMPLEMENTED."""
        return self.value[1]

    @classmethod
    def of(cls, number: int) -> "StatusCode":
        """Return the code with this number. An unknown number is UNKNOWN, as in gRPC."""
        return _BY_NUMBER.get(number, cls.UNKNOWN)


_BY_NUMBER = {code.number: code for code in StatusCode}


class Violation(Struct, frozen=True):
    """An invalid field of a request: its path in proto names, and the public error text."""

    field: str
    description: str


MAX_LISTED_VIOLATIONS: Final = 100
"""Maximum number of violations in one response. Additional violations are only counted.
"""


def limit_violations(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
    """Return the violations for a response: the first ones, and one more with the number of omitted
    violations."""
    if len(violations) <= MAX_LISTED_VIOLATIONS:
        return violations
    more = f"And {len(violations) - MAX_LISTED_VIOLATIONS} more faults, which are not listed."
    return (*violations[:MAX_LISTED_VIOLATIONS], Violation("", more))


class UnknownEnum(Struct, frozen=True):
    """An enum field of a message with an unknown value, and the numbers of the enum's known values."""

    message: Message
    field: str
    numbers: tuple[int, ...]

    def decide(self, number: int) -> None:
        """Set the field to a number. The field is unset before the first call, and if the number is 0."""
        setattr(self.message, self.field, number)


class WireError(ValueError):
    """A body or a query is invalid.

    - The exception's message is the public `error.message`: `message`, or the texts of the violations, one
      per line.
    - `violations`: all violations.
    - `partial`: the readable part of the request; None = the body is not a JSON object.
    - `unknown_enums`: the enum fields with unknown values.
    """

    def __init__(
        self,
        violations: tuple[Violation, ...],
        partial: Message | None = None,
        *,
        message: str | None = None,
        unknown_enums: tuple[UnknownEnum, ...] = (),
    ) -> None:
        super().__init__(message or "\n".join(v.description for v in limit_violations(violations)))
        self.violations = violations
        self.partial = partial
        self.unknown_enums = unknown_enums


class CallRejected(Exception):
    """A call within the process was rejected. The exception contains the error for the caller."""

    def __init__(self, code: StatusCode, message: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.violations = violations


def error_body(code: StatusCode, message: str, violations: Iterable[Violation] = ()) -> bytes:
    """Return the REST error object as UTF-8 JSON: `{"error": {code, message, status, details}}`. `violations`
    become a google.rpc.BadRequest in `details`. Without violations, `details` is omitted."""
    error: dict[str, Any] = {"code": code.http, "message": message, "status": code.name}
    if listed := [{"field": v.field, "description": v.description} for v in violations]:
        kind = "type.googleapis.com/google.rpc.BadRequest"
        error["details"] = [{"@type": kind, "fieldViolations": listed}]
    return json.dumps({"error": error}, indent=2, ensure_ascii=False).encode() + b"\n"


def status_message(
    code: StatusCode, message: str, violations: Iterable[Violation] = (), reason: str | None = None
) -> Message:
    """Return an error as a google.rpc.Status message, for gRPC trailers and a resource's `error`. `reason`:
    the reason of a google.rpc.ErrorInfo; None = no ErrorInfo."""
    status = pool.message_class("google.rpc.Status")(code=code.number, message=message)
    details: list[Message] = []
    if reason:
        details.append(pool.message_class("google.rpc.ErrorInfo")(reason=reason, domain="googleapis.com"))
    listed = [{"field": v.field, "description": v.description} for v in violations]
    if listed:
        details.append(pool.message_class("google.rpc.BadRequest")(field_violations=listed))
    packed: Any = getattr(status, "details")  # noqa: B009  a field of a dynamic message
    for detail in details:
        packed.add().Pack(detail)
    return status

"""Converts exceptions to public errors: a table of google.rpc codes by exception, the public texts of invalid
requests, and advice about methods that are not served.

A test checks that the table contains every leaf class of `core.errors.RequestError`.
"""

import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from trainshed.core import errors as core
from trainshed.httpd.messages import BodyNotRead, BodyTooLarge
from trainshed.wire.routes import KnownMethod
from trainshed.wire.status import StatusCode, Violation, WireError, limit_violations

_log = logging.getLogger("trainshed.api")


class NotServed(core.RequestError):
    """The method exists in the public APIs, but this service does not serve it."""


CODES: Final[Mapping[type[Exception], StatusCode]] = {
    core.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    core.NotFound: StatusCode.NOT_FOUND,
    core.AlreadyExists: StatusCode.ALREADY_EXISTS,
    core.FailedPrecondition: StatusCode.FAILED_PRECONDITION,
    core.Aborted: StatusCode.ABORTED,
    core.Unauthenticated: StatusCode.UNAUTHENTICATED,
    core.PermissionDenied: StatusCode.PERMISSION_DENIED,
    core.ResourceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    core.Unavailable: StatusCode.UNAVAILABLE,
    NotServed: StatusCode.UNIMPLEMENTED,
    WireError: StatusCode.INVALID_ARGUMENT,
    BodyTooLarge: StatusCode.INVALID_ARGUMENT,
    BodyNotRead: StatusCode.INVALID_ARGUMENT,
}

_REASONS: Final[Mapping[type[Exception], str]] = {core.PermissionDenied: "IAM_PERMISSION_DENIED"}
"""The reason of a google.rpc.ErrorInfo, by exception. The table contains only errors for which the public
services have a matching reason."""


class PublicError(Struct, frozen=True):
    """The public form of an error, which all transports report."""

    code: StatusCode
    message: str
    violations: tuple[Violation, ...] = ()
    #: Reason of the google.rpc.ErrorInfo; None = no ErrorInfo.
    reason: str | None = None


def public_error(error: Exception, api: str, subject: str) -> PublicError:
    """Return the public form of an exception. `api`: the caller's API (a descriptor set of `wire.pool`).

    An internal error is logged together with the text `subject`. Its public form does not contain the cause.
    """
    code = CODES.get(type(error))
    if code is None:
        _log.error("%s failed", subject, exc_info=error)
        return PublicError(
            StatusCode.INTERNAL, "Internal error encountered. The log of the service contains details."
        )
    if isinstance(error, WireError):
        return PublicError(code, str(error), limit_violations(error.violations))
    if isinstance(error, BodyTooLarge | BodyNotRead):
        return PublicError(code, str(error), (Violation("", str(error)),))
    if isinstance(error, core.InvalidRequest):
        violations = limit_violations(tuple(Violation(v.field, v.description) for v in error.violations))
        return PublicError(code, _violation_text(violations, api), violations)
    return PublicError(code, str(error), reason=_REASONS.get(type(error)))


def _violation_text(violations: tuple[Violation, ...], api: str) -> str:
    """Return the public text of all violations, in the form of the API (facts/limits#error-texts)."""
    if api == "aiplatform_v1":
        errors = "".join(
            f"{number}.Field: {violation.field}; Message: {violation.description}\t"
            for number, violation in enumerate(violations, 1)
        )
        return f"List of found errors:\t{errors}"
    return "\n".join(f"Field: {v.field} Error: {v.description}" for v in violations)


_UNSERVED: Final = tomllib.loads(Path(__file__).with_name("unserved.toml").read_text("utf-8"))
_EXTRAS: Final[dict[str, str]] = {
    service: extra for extra, services in _UNSERVED["extras"].items() for service in services
}
"""Services of the public APIs that an addition serves, by full name, each with the extra of `trainshed` that
installs the addition."""
_ADVICE: Final[dict[str, str]] = {word: row["text"] for row in _UNSERVED["advice"] for word in row["of"]}
"""Advice about methods that are not served, by custom verb, by a collection in the path, or by API."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of `trainshed`."""
    return f"pip install 'trainshed[{extra}]'"


def not_served(method: KnownMethod, handlers: Iterable[str]) -> NotServed:
    """Return the error for a method without a handler. `handlers`: the full names of all methods with a
    handler."""
    service = method.name.rpartition(".")[0]
    if service in _EXTRAS and not any(name.startswith(f"{service}.") for name in handlers):
        command = install_command(_EXTRAS[service])
        return NotServed(
            f"{method.name} is not served, because its addition is not installed. On the service's "
            f"machine, run {command} and restart the service."
        )
    served = sorted(handler.rpartition(".")[2] for handler in handlers if handler.startswith(f"{service}."))
    provided = f" {service.rpartition('.')[2]} provides {', '.join(served)}." if served else ""
    path, _, verb = method.path.partition(":")
    api = method.name.split(".")
    words = (verb, *path.split("/"), ".".join(api[:3]), *api)
    advice = next((_ADVICE[word] for word in words if word in _ADVICE), "")
    return NotServed(f"{method.name} is not served here.{f' {advice}.' if advice else ''}{provided}")

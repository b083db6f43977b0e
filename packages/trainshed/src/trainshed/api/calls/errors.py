"""The table from exceptions to google.rpc codes, the public texts of refused requests, and what is advised
instead of methods that are not served.

A test proves that every leaf class of `core.errors.RequestError` has a row.
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
    """The method is known, and this service does not serve it."""


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
"""google.rpc.ErrorInfo reasons of those errors for which the public services have one that is true here."""


class Refusal(Struct, frozen=True):
    """An error as every transport reports it."""

    code: StatusCode
    message: str
    violations: tuple[Violation, ...] = ()
    #: Reason of a google.rpc.ErrorInfo; None = there is none.
    reason: str | None = None


def refusal(error: Exception, api: str, what: str) -> Refusal:
    """Return what a caller of `api` (a set of `wire.pool`) is told. A fault of the service itself is logged
    as one of `what`, and nothing is told of its cause."""
    code = CODES.get(type(error))
    if code is None:
        _log.error("%s failed", what, exc_info=error)
        return Refusal(
            StatusCode.INTERNAL,
            "Internal error encountered. The log of the service contains details.",
        )
    if isinstance(error, WireError):
        return Refusal(code, str(error), limit_violations(error.violations))
    if isinstance(error, BodyTooLarge | BodyNotRead):
        return Refusal(code, str(error), (Violation("", str(error)),))
    if isinstance(error, core.InvalidRequest):
        violations = limit_violations(
            tuple(Violation(v.field, v.description) for v in error.violations)
        )
        return Refusal(code, _listed(violations, api), violations)
    return Refusal(code, str(error), reason=_REASONS.get(type(error)))


def _listed(violations: tuple[Violation, ...], api: str) -> str:
    """Return the public text that names every violation, in the form of the API that was called
    (facts/limits#error-texts)."""
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
"""The extra of `trainshed` whose addition serves a service of the public APIs, by the service's full name."""
_INSTEAD: Final[dict[str, str]] = {
    word: row["text"] for row in _UNSERVED["advice"] for word in row["of"]
}
"""What to do instead of a method, by its custom verb, else by a collection of its path, else by its API."""


def installing(extra: str) -> str:
    """Return the command that installs the addition of an extra."""
    return f"pip install 'trainshed[{extra}]'"


def not_served(method: KnownMethod, handlers: Iterable[str]) -> NotServed:
    """Return the error for a method without a handler. `handlers`: full names of the methods that have
    one."""
    service = method.name.rpartition(".")[0]
    if service in _EXTRAS and not any(name.startswith(f"{service}.") for name in handlers):
        command = installing(_EXTRAS[service])
        return NotServed(
            f"{method.name} is not served, because its addition is not installed. On the service's "
            f"machine, run {command} and restart the service."
        )
    beside = sorted(
        handler.rpartition(".")[2] for handler in handlers if handler.startswith(f"{service}.")
    )
    there = f" Of {service.rpartition('.')[2]} there is {', '.join(beside)}." if beside else ""
    path, _, verb = method.path.partition(":")
    api = method.name.split(".")
    words = (verb, *path.split("/"), ".".join(api[:3]), *api)
    instead = next((_INSTEAD[word] for word in words if word in _INSTEAD), "")
    return NotServed(f"{method.name} is not served here.{f' {instead}.' if instead else ''}{there}")

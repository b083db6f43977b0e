"""What can go wrong in the data plane, each with the public status and reason it is answered with.

Owns the exception classes of the package and nothing else: the HTTP layer turns any of them into the
JSON error of the public storage API (spec/clients#storage), so a class carries its own
status code, reason and, where the public API names one, the location of the fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


class BucketsError(Exception):
    """A request that cannot be carried out."""

    #: The public one, as is `reason`.
    status: int = 500
    reason: str = "backendError"
    #: Kind and name of what in the request is at fault; None = nothing is named.
    location: tuple[str, str] | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(BucketsError):
    """The request is malformed or breaks a rule of the API; repeating it does not help."""

    status = 400
    reason = "invalid"


class Unauthenticated(BucketsError):
    """The request does not say who calls, or by a token that nobody knows."""

    status = 401
    reason = "required"
    location = ("header", "Authorization")


class Forbidden(BucketsError):
    """The caller, or the operating system for us, may not do this."""

    status = 403
    reason = "forbidden"


class NotFound(BucketsError):
    """The bucket, object, generation or upload session does not exist."""

    status = 404
    reason = "notFound"


class Conflict(BucketsError):
    """The resource exists already, or is not empty."""

    status = 409
    reason = "conflict"


class PreconditionFailed(BucketsError):
    """An ``if…Match`` condition of the request does not hold."""

    status = 412
    reason = "conditionNotMet"
    location = ("header", "If-Match")


class NotModified(BucketsError):
    """An ``if…NotMatch`` condition of a read does not hold: the caller's copy is current."""

    status = 304
    reason = "notModified"


class RangeNotSatisfiable(BucketsError):
    """A byte range starts behind the end of the object; ``size`` is the object's, in bytes."""

    status = 416
    reason = "requestedRangeNotSatisfiable"

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size


class UploadCancelled(BucketsError):
    """The upload session was cancelled, which the public API answers with 499."""

    status = 499
    reason = "clientClosedRequest"


class NotSupported(BucketsError):
    """A method of the public API that this service does not offer: never an empty success.

    Not a 501, which clients take for a passing fault: gcloud tries again for half a minute.
    """

    status = 400
    reason = "notSupported"


class Unavailable(BucketsError):
    """A passing fault (a lost race, a full disk, a broken connection): the client tries again."""

    status = 503
    reason = "backendError"


def require_object(value: Any, field: str) -> Mapping[str, Any]:
    """A property that holds names and values, {} for none; raises ``InvalidRequest`` for another type."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{field}' is not a JSON object. Send names with their values.")
    return cast("dict[str, Any]", value)


def no_such_object(bucket: str, name: str) -> NotFound:
    """The public text for an object that is not there."""
    return NotFound(f"No such object: {bucket}/{name}")


def no_such_bucket(bucket: str) -> NotFound:
    """The public text for a bucket that is not there; the name is part of our own addition."""
    return NotFound(f"The specified bucket does not exist. (bucket: {bucket})")


def condition_failed() -> PreconditionFailed:
    """The public text for a precondition that does not hold."""
    return PreconditionFailed("At least one of the pre-conditions you specified did not hold.")

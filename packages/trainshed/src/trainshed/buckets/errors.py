"""The errors of the storage API with their public status and reason.

The HTTP layer converts each of these errors to the form of the public storage API (spec/clients#storage).
`errors.toml` contains for each class the status code, the reasons of the JSON and the XML API, and the
location of the error in the request.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

_PUBLIC: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class BucketsError(Exception):
    """A storage request failed."""

    #: The public HTTP status. `reason` and `code` are also those of the public API.
    status: int = 500
    reason: str = "backendError"
    code: str = "InternalError"
    #: Kind and name of the invalid part of the request; None = not specified.
    location: tuple[str, str] | None = None

    def __init_subclass__(cls) -> None:
        for field, value in _PUBLIC[cls.__name__].items():
            setattr(cls, field, value)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(BucketsError):
    """The request is malformed or violates a rule of the API. A retry does not help."""


class Unauthenticated(BucketsError):
    """The request has no credentials, or an unknown token."""


class Forbidden(BucketsError):
    """The caller lacks the permission, or the operating system denies the access to the service."""


class Held(Forbidden):
    """The object is under a hold. It can be neither deleted nor replaced."""


class SignatureDoesNotMatch(Forbidden):
    """A signed URL was modified, or the account has no such key."""


class ExpiredToken(InvalidRequest):
    """A signed URL has expired."""


class NotFound(BucketsError):
    """The bucket, object, generation or upload session does not exist."""


class NoSuchBucket(NotFound):
    """The bucket does not exist."""


class NoSuchUpload(NotFound):
    """The upload session does not exist."""


class Conflict(BucketsError):
    """The resource exists already, or is not empty."""


class PreconditionFailed(BucketsError):
    """An `if…Match` or `if…NotMatch` condition of the request is not met."""


class NotModified(BucketsError):
    """The caller's copy is current: an `if…NotMatch` condition of a read is not met."""


class RangeNotSatisfiable(BucketsError):
    """A byte range starts after the end of the object. `size`: the object's size in bytes."""

    def __init__(self, message: str, size: int) -> None:
        super().__init__(message)
        self.size = size


class UploadCancelled(BucketsError):
    """The upload session was cancelled. The public API responds with status 499."""


class NotSupported(BucketsError):
    """This service does not implement the method or property of the public API. The service reports this
    error instead of a success without an effect. The status is not 501, because clients treat 501 as
    temporary: gcloud retries for half a minute."""


class Unavailable(BucketsError):
    """A temporary failure (a concurrent change, a full disk, a broken connection). The client retries."""


def require_object(value: Any, field: str) -> Mapping[str, Any]:
    """Return a property that is a JSON object; {} if it is not set. Raises `InvalidRequest` otherwise."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{field}' is not a JSON object. Send names with their values.")
    return cast("dict[str, Any]", value)


def no_such_object(bucket: str, name: str) -> NotFound:
    return NotFound(f"No such object: {bucket}/{name}")


def no_such_bucket(bucket: str) -> NoSuchBucket:
    """Return the error for a bucket that does not exist, with the message of the public service."""
    return NoSuchBucket(f"The specified bucket does not exist. (bucket: {bucket})")


def hold_error(bucket: str, name: str, holds: Sequence[str]) -> Held:
    kind = "Temporary" if "temporaryHold" in holds else "Event-Based"
    return Held(
        f"Object '{bucket}/{name}' is under active {kind} hold and cannot be deleted, overwritten or "
        "archived until hold is removed."
    )


def condition_failed() -> PreconditionFailed:
    """Return the error for an unmet precondition, with the message of the public service."""
    return PreconditionFailed("At least one of the pre-conditions you specified did not hold.")

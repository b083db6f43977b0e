"""The errors of gsutil, with the names that gsutil prints and scripts look for."""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Failure(Exception):
    """A failure that is printed as `NAME: message`; the command then exits with 1."""

    name = "CommandException"


class CommandFailure(Failure):
    """The command cannot do what was asked for."""


class InvalidUrl(Failure):
    """An argument is not a valid URL."""

    name = "InvalidUrlError"


class Unreachable(Failure):
    """The endpoint does not answer, or there is none."""

    name = "ServiceException"


class HashMismatch(Failure):
    """The data that arrived are not those that were sent."""

    name = "HashMismatchException"


class ServiceFailure(Failure):
    """The storage API refused. `status`: the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("%d %s" % (status, message))
        self.status = status
        self.message = message
        self.name = _NAMES.get(status, "ServiceException")


class BucketNotFound(ServiceFailure):
    """There is no such bucket."""

    def __init__(self, bucket: str) -> None:
        super().__init__(404, f"gs://{bucket} bucket does not exist.")
        self.name = "BucketNotFoundException"


_NAMES = {
    400: "BadRequestException",
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "NotFoundException",
    412: "PreconditionException",
}


def nothing_matched(url: str) -> CommandFailure:
    return CommandFailure(f"No URLs matched: {url}")


def of_answer(status: int, text: str) -> ServiceFailure:
    """Returns the failure of an error response, whose JSON has the reason."""
    try:
        reason: "Any" = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        reason = text.strip() or "no reason was given"
    return ServiceFailure(status, str(reason))

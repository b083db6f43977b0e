"""What goes wrong, by the names that gsutil gives it: scripts look for them in what it says."""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Failure(Exception):
    """Said as `NAME: message`, and the command ends with 1."""

    name = "CommandException"


class CommandFailure(Failure):
    """The command cannot do what it was asked for."""


class InvalidUrl(Failure):
    """What was given as a URL is none."""

    name = "InvalidUrlError"


class Unreachable(Failure):
    """The endpoint does not answer, or there is none."""

    name = "ServiceException"


class HashMismatch(Failure):
    """What arrived is not what was sent."""

    name = "HashMismatchException"


class ServiceFailure(Failure):
    """The storage API refused. `status`: HTTP's."""

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
    """From an answer of the API, which gives the reason as JSON."""
    try:
        reason: "Any" = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        reason = text.strip() or "no reason was given"
    return ServiceFailure(status, str(reason))

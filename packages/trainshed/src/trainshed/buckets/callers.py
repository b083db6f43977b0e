"""Represents callers of the storage API, and identifies them by a key in the URL or by a refresh token. Pure.

The module also defines the access levels on the buckets of a project.

A key is derived from a token. Any machine that has the token can compute the URL
`http://HOST:PORT/with/KEY/…`. The key is valid as long as the token. The token cannot be computed from the
key, and a key gives access only to buckets.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from trainshed.access.job_tokens import JobClaims
from trainshed.access.permissions import ADMIN_BUCKETS, USE_OBJECTS, VIEW_OBJECTS


class Reach(IntEnum):
    NOTHING = 0
    #: Read objects and list buckets.
    VIEW = 1
    #: Also write and delete objects.
    USE = 2
    #: Also create buckets.
    WORK = 3
    #: Also change and delete buckets and their policies.
    ADMIN = 4


_VIEW_PERMISSIONS: Final = VIEW_OBJECTS | {"storage.buckets.get", "storage.buckets.list"}
_USE_PERMISSIONS: Final = USE_OBJECTS | _VIEW_PERMISSIONS
PERMISSIONS: Final = {
    Reach.NOTHING: frozenset[str](),
    Reach.VIEW: _VIEW_PERMISSIONS,
    Reach.USE: _USE_PERMISSIONS,
    Reach.WORK: _USE_PERMISSIONS | {"storage.buckets.create"},
    Reach.ADMIN: ADMIN_BUCKETS,
}
"""The permissions of each level."""
_LEVEL_PERMISSIONS: Final = {
    Reach.VIEW: "storage.objects.get",
    Reach.USE: "storage.objects.create",
    Reach.WORK: "storage.buckets.create",
    Reach.ADMIN: "storage.buckets.setIamPolicy",
}
"""The permission that implies each level."""


@lru_cache(1024)
def reach_of(permissions: frozenset[str]) -> Reach:
    """Return the highest level that these permissions include."""
    return max(
        (reach for reach, permission in _LEVEL_PERMISSIONS.items() if permission in permissions),
        default=Reach.NOTHING,
    )


class Machine(Struct, frozen=True):
    """The machine in the metadata of a program; None = unknown value."""

    region: str | None = None
    #: The public machine type.
    type: str | None = None
    is_spot: bool = False
    #: The replica's IP address.
    address: str | None = None


class Caller(Struct, frozen=True):
    """The caller of a request."""

    #: The caller's name in errors; None = the caller is unknown.
    email: str | None = None
    #: A user's access level by project; the key "" applies to all projects. Empty for a program of a job.
    reach: Mapping[str, Reach] = {}
    #: The calling program, identified by its replica's endpoint or its token; None = the caller is not a
    #: program of a job.
    program: JobClaims | None = None
    #: The machine of a program that uses its replica's endpoint.
    machine: Machine = Machine()

    @property
    def project(self) -> str | None:
        return self.program.project if self.program is not None else None

    @property
    def may_do_everything(self) -> bool:
        """Whether the caller's requests need no permission check."""
        return self.reach.get("") is Reach.ADMIN

    def reaches(self, project: str) -> Reach:
        """Return a user's access level in a project."""
        nothing = Reach.NOTHING
        return max(self.reach.get("", nothing), self.reach.get(project, nothing))


UNKNOWN = Caller()


class UnreadableCaller(ValueError):
    """The text does not describe a caller."""


def encode_caller(caller: Caller) -> bytes:
    """Return the caller as a header value: ASCII without line breaks."""
    return json.dumps(msgspec.to_builtins(caller)).encode()


def decode_caller(text: bytes) -> Caller:
    """Return the caller from a value of `encode_caller`. Raises UnreadableCaller."""
    try:
        return msgspec.json.decode(text, type=Caller)
    except (ValueError, RecursionError) as error:
        raise UnreadableCaller(str(error)) from None


class Preamble(msgspec.Struct, frozen=True):
    """The first line of each connection from a replica's relay. Unknown fields are ignored."""

    project: str
    job_uid: int
    replica: str
    service_account: str
    #: 0 = a preparation step before the job's first attempt.
    attempt: int = 0
    region: str | None = None
    machine_type: str | None = None
    is_spot: bool = False
    address: str | None = None
    #: The reason why the replica will soon be stopped. The notice is valid while the connection is open. Such
    #: a connection carries no requests. None = a connection for requests.
    notice: str | None = None
    #: The protocol between program and relay, which URLs in responses must use.
    scheme: Literal["http", "https"] = "http"

    @property
    def caller(self) -> Caller:
        email = self.service_account
        program = JobClaims(self.job_uid, self.attempt, self.replica, self.project, email)
        machine = Machine(self.region, self.machine_type, self.is_spot, self.address)
        return Caller(email, program=program, machine=machine)


def read_preamble(line: bytes) -> Preamble:
    """Parse a line of `replica.protocol.preamble`. Raises UnreadableCaller if it does not identify a
    program."""
    try:
        # `strict=False` accepts numbers in strings, as the APIs do.
        preamble = msgspec.json.decode(line, type=Preamble, strict=False)
    except (ValueError, RecursionError) as error:
        raise UnreadableCaller(str(error)) from None
    if not preamble.project:
        raise UnreadableCaller("the first line of its connection specifies no project")
    return preamble


_PURPOSE = b"trainshed storage address"
_BYTES = 24
_PREFIX = re.compile(rb"/with/([A-Za-z0-9_-]{32})(?=/|$)")


def storage_key(token: str) -> str:
    return key_of_digest(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())


def key_of_digest(digest: bytes) -> str:
    """Return the key of a token, from the token's SHA-256."""
    mac = hmac.digest(digest, _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(mac[:_BYTES]).decode()


def address_with_key(address: str, token: str) -> str:
    """Return `http://HOST:PORT/with/KEY` for clients that send no token."""
    return f"{address.rstrip('/')}/with/{storage_key(token)}"


def split_key(raw_path: bytes) -> tuple[str | None, bytes]:
    """Return the key in an encoded path (None = no key), and the path without it."""
    match = _PREFIX.match(raw_path)
    if match is None:
        return None, raw_path
    return match.group(1).decode(), raw_path[match.end() :] or b"/"


PATH = "/oauth2/token"
_SECONDS = 3600
"""Lifetime of a token in seconds, as reported to clients. Refreshing a deleted token fails."""


async def exchange_refresh_token(
    body: bytes, is_known: Callable[[str], Awaitable[bool]]
) -> tuple[int, dict[str, Any]]:
    """Return (HTTP status, JSON response) to a form with grant_type=refresh_token. Some clients, such as
    gsutil, always exchange a refresh token for an access token. The response contains the same token again.
    Nothing is refreshed or stored. `is_known`: whether a token is valid."""
    form = parse_qs(body.decode("utf-8", "replace"))
    if form.get("grant_type") != ["refresh_token"]:
        return 400, {"error": "unsupported_grant_type"}
    token = form.get("refresh_token", [""])[0]
    if not token or not await is_known(token):
        # Return status 401, as for every other unknown token, so that brute-force attacks are slowed down.
        return 401, {
            "error": "invalid_grant",
            "error_description": "This token is not known to this service. `trainshed env` prints the "
            "current one.",
        }
    return 200, token_answer(token)


def token_answer(token: str) -> dict[str, Any]:
    """Return the JSON response with a client's token."""
    return {"access_token": token, "token_type": "Bearer", "expires_in": _SECONDS}

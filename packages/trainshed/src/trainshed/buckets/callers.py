"""Represents who makes a request of the storage API: as a value, by a key in an address, and by a refresh
token; and how far somebody's rights go on the buckets of a project. Pure.

A key follows from a token: whoever has the token can make the address `http://HOST:PORT/with/KEY/…`, here
or on another machine, and it ends with the token. The token cannot be found from the key, and a key opens
only the buckets.
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
    #: Reads objects, lists buckets.
    VIEW = 1
    #: Writes and deletes objects, too.
    USE = 2
    #: Makes buckets, too.
    WORK = 3
    #: Changes and deletes buckets and their policies, too.
    ADMIN = 4


_LOOK: Final = VIEW_OBJECTS | {"storage.buckets.get", "storage.buckets.list"}
_USE: Final = USE_OBJECTS | _LOOK
PERMISSIONS: Final = {
    Reach.NOTHING: frozenset[str](),
    Reach.VIEW: _LOOK,
    Reach.USE: _USE,
    Reach.WORK: _USE | {"storage.buckets.create"},
    Reach.ADMIN: ADMIN_BUCKETS,
}
"""What somebody may do who reaches so far."""
_SIGNS: Final = {
    Reach.VIEW: "storage.objects.get",
    Reach.USE: "storage.objects.create",
    Reach.WORK: "storage.buckets.create",
    Reach.ADMIN: "storage.buckets.setIamPolicy",
}
"""The permission by which each level is known."""


@lru_cache(1024)
def reach_of(permissions: frozenset[str]) -> Reach:
    """Returns the level of somebody who holds these permissions."""
    return max(
        (reach for reach, sign in _SIGNS.items() if sign in permissions), default=Reach.NOTHING
    )


class Machine(Struct, frozen=True):
    """The machine that a program's metadata describe; None = not known."""

    region: str | None = None
    #: The public machine type.
    type: str | None = None
    is_spot: bool = False
    #: The replica's IP address.
    address: str | None = None


class Caller(Struct, frozen=True):
    """Who makes a request."""

    #: The caller's name in errors; None = it is not known who calls.
    email: str | None = None
    #: How far a person's rights go, by project; "" = in all projects. A program of a job has none here.
    reach: Mapping[str, Reach] = {}
    #: The program that calls, known by its replica's endpoint or by its token; None = it is none of a job.
    program: JobClaims | None = None
    #: The machine of a program that calls through its replica's endpoint.
    machine: Machine = Machine()

    @property
    def project(self) -> str | None:
        return self.program.project if self.program is not None else None

    @property
    def may_do_everything(self) -> bool:
        """Whether nothing has to be looked at before its requests are served."""
        return self.reach.get("") is Reach.ADMIN

    def reaches(self, project: str) -> Reach:
        """How far a person's rights go in a project."""
        nothing = Reach.NOTHING
        return max(self.reach.get("", nothing), self.reach.get(project, nothing))


UNKNOWN = Caller()


class UnreadableCaller(ValueError):
    """The text does not describe a caller."""


def encode_caller(caller: Caller) -> bytes:
    """The caller as the value of a header: ASCII, without line ends."""
    return json.dumps(msgspec.to_builtins(caller)).encode()


def decode_caller(text: bytes) -> Caller:
    """Returns the caller that `encode_caller` was given. Raises UnreadableCaller."""
    try:
        return msgspec.json.decode(text, type=Caller)
    except (ValueError, RecursionError) as error:
        raise UnreadableCaller(str(error)) from None


class Preamble(msgspec.Struct, frozen=True):
    """The line with which a replica's relay begins each connection; unknown fields are ignored."""

    project: str
    job_uid: int
    replica: str
    service_account: str
    #: A step before the job's first attempt has none.
    attempt: int = 0
    region: str | None = None
    machine_type: str | None = None
    is_spot: bool = False
    address: str | None = None
    #: The replica is about to be stopped for this reason, as long as the connection is open; it carries no
    #: requests. None = it is an ordinary connection.
    notice: str | None = None
    #: The protocol that the program uses towards the relay, for the addresses in our responses.
    scheme: Literal["http", "https"] = "http"

    @property
    def caller(self) -> Caller:
        email = self.service_account
        program = JobClaims(self.job_uid, self.attempt, self.replica, self.project, email)
        machine = Machine(self.region, self.machine_type, self.is_spot, self.address)
        return Caller(email, program=program, machine=machine)


def read_preamble(line: bytes) -> Preamble:
    """Parse what `replica.protocol.preamble` wrote. Raises UnreadableCaller for a line that does not say
    whose a program is."""
    try:
        # Numbers may come as text, as they do in the APIs.
        preamble = msgspec.json.decode(line, type=Preamble, strict=False)
    except (ValueError, RecursionError) as error:
        raise UnreadableCaller(str(error)) from None
    if not preamble.project:
        raise UnreadableCaller("it names no project")
    return preamble


_PURPOSE = b"trainshed storage address"
_BYTES = 24
_PREFIX = re.compile(rb"/with/([A-Za-z0-9_-]{32})(?=/|$)")


def storage_key(token: str) -> str:
    return key_of_digest(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())


def key_of_digest(digest: bytes) -> str:
    """The key that belongs to a token of which only the SHA-256 is known."""
    mac = hmac.digest(digest, _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(mac[:_BYTES]).decode()


def address_with_key(address: str, token: str) -> str:
    """Returns `http://HOST:PORT` with the token's key, for a client that sends no token."""
    return f"{address.rstrip('/')}/with/{storage_key(token)}"


def split_key(raw_path: bytes) -> tuple[str | None, bytes]:
    """The key in an undecoded path, None if there is none, and the path without it."""
    match = _PREFIX.match(raw_path)
    if match is None:
        return None, raw_path
    return match.group(1).decode(), raw_path[match.end() :] or b"/"


PATH = "/oauth2/token"
_SECONDS = 3600
"""Seconds after which a client asks again, and then learns that its token has ended."""


async def exchanged(
    body: bytes, is_known: Callable[[str], Awaitable[bool]]
) -> tuple[int, dict[str, Any]]:
    """Returns (HTTP status, JSON answer) for a form with grant_type=refresh_token. `is_known`: whether a
    token is one of ours.

    Some clients hold a refresh token and insist on exchanging it (gsutil): they get the service's own token
    back, if it is one. There is nothing to refresh, and nothing is stored.
    """
    form = parse_qs(body.decode("utf-8", "replace"))
    if form.get("grant_type") != ["refresh_token"]:
        return 400, {"error": "unsupported_grant_type"}
    token = form.get("refresh_token", [""])[0]
    if not token or not await is_known(token):
        # A 401, as every other answer to an unknown token: those are slowed.
        return 401, {
            "error": "invalid_grant",
            "error_description": "This token is not known here. `trainshed env` gives the one of today.",
        }
    return 200, granted(token)


def granted(token: str) -> dict[str, Any]:
    """Returns the JSON answer that gives a client a token."""
    return {"access_token": token, "token_type": "Bearer", "expires_in": _SECONDS}

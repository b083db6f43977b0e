"""Who makes a request of the storage API, as a value. Owns its form on the way between two processes. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import msgspec


class Kind(StrEnum):
    """How a caller is known."""

    PERSON = "person"
    """By a token of this service."""
    KEY = "anonymous-key"
    """By an address with a key in it: a client that sends no token of its own."""
    REPLICA = "replica"
    """A program of a job: by its replica's endpoint, or by a token that the job was given."""
    ANONYMOUS = "anybody"
    """Nobody asked: the operator has opened the port (`anonymous_storage`)."""
    UNKNOWN = "nobody"
    """Not known at all."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`email` names the caller in the access log and in errors; the rest is known of a job's programs only."""

    kind: Kind
    email: str = ""
    project: str = ""
    job_uid: str = ""
    attempt: int = 0
    replica: str = ""
    region: str = ""


UNKNOWN = Caller(Kind.UNKNOWN)
ANONYMOUS = Caller(Kind.ANONYMOUS, "anonymous")


class UnreadableCaller(ValueError):
    """The text is none that says who calls."""


def encode_caller(caller: Caller) -> bytes:
    """The caller as the value of a header: ASCII, without line ends."""
    return json.dumps(msgspec.to_builtins(caller)).encode()


def decode_caller(text: bytes) -> Caller:
    """What `encode_caller` made. Raises UnreadableCaller."""
    try:
        return msgspec.json.decode(text, type=Caller)
    except msgspec.MsgspecError as error:
        raise UnreadableCaller(str(error)) from None


class Introduction(msgspec.Struct, frozen=True):
    """The line that a replica's relay begins each connection with; it may say more than is asked of it. `scheme`:
    what the program speaks to the relay, for the addresses in our answers."""

    project: str
    job_uid: str | int = ""
    attempt: int = 0
    replica: str = ""
    service_account: str = ""
    region: str = ""
    scheme: Literal["http", "https"] = "http"

    @property
    def caller(self) -> Caller:
        """The program on whose behalf the relay speaks."""
        return Caller(
            Kind.REPLICA,
            self.service_account,
            self.project,
            str(self.job_uid),
            self.attempt,
            self.replica,
            self.region,
        )


def introduced(line: bytes) -> Introduction:
    """The introduction read. Raises UnreadableCaller for a line that does not say whose a program is."""
    try:
        said = msgspec.json.decode(line, type=Introduction)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableCaller(str(error)) from None
    if not said.project:
        raise UnreadableCaller("it names no project")
    return said

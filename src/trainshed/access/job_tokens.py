"""Tokens of programs: short-lived, signed, stored nowhere.

A program gets one from its metadata endpoint whenever it asks; the bucket process mints it and the API
process reads it, both with the key that lies in the service's data directory. What stands in it is what it is
good for, so that checking it takes a signature and no look-up. Also makes identity tokens, which are JSON Web
Tokens.
"""

import base64
import hmac
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple

from trainshed.replica.system import durable

LIFETIME: Final = 3_600
"""Seconds. As on Google's machines; clients ask for a new one some minutes before the end."""
KEY_FILE: Final = "jobs.key"
"""In the data directory. Who has it can speak for every job of the service."""
ISSUER: Final = "https://trainshed.local"

_VERSION: Final = "tsj1"
_KEY_BYTES: Final = 32
_SECOND: Final = 10**9


class JobKeyUnreadable(Exception):
    """The key file is there but holds no key; the message says what to do."""


class JobClaims(Struct, frozen=True):
    """For whom a token speaks: one attempt of a job, through one of its replicas."""

    job_uid: int
    attempt: int
    #: `workerpool0-0`.
    replica: str
    project: str
    #: The service account that the job runs as.
    email: str


class JobTokens:
    """Mints and reads them. Pure but for `now`, which gives nanoseconds since the epoch."""

    def __init__(self, key: bytes, now: Callable[[], int]) -> None:
        self._key = key
        # Of its own: a signature under an identity token must not pass for one under an access token.
        self._identity_key = _signed(key, b"identity tokens")
        self._reduction_key = _signed(key, b"reduction")
        self._authority_key = _signed(key, b"reduction authorities")
        self._now = now

    @classmethod
    def open(cls, path: Path, now: Callable[[], int]) -> "JobTokens":
        """With the key of this file, which is made if it is not there. Raises JobKeyUnreadable, OSError."""
        try:
            text = path.read_text("ascii", "replace")
        except FileNotFoundError:
            text = _make(path)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise JobKeyUnreadable(
                f"{path} does not hold the key for the tokens of jobs: restore it from a backup, or remove "
                "it; with a new key programs that run ask for new tokens when theirs are refused"
            )
        return cls(key, now)

    def mint(self, claims: JobClaims, lifetime: int = LIFETIME) -> tuple[str, int]:
        """A token, and the seconds until it expires."""
        fields = [*astuple(claims), self._seconds() + lifetime]
        head = f"{_VERSION}.{_encoded(_dump(fields))}"
        return f"{head}.{_encoded(_signed(self._key, head.encode()))}", lifetime

    def read(self, token: str) -> JobClaims | None:
        """For whom it speaks; None if it is none of ours, was changed, or has expired."""
        head, _, signature = token.rpartition(".")
        if not head.startswith(f"{_VERSION}.") or not token.isascii():
            return None
        expected = _encoded(_signed(self._key, head.encode()))
        if not hmac.compare_digest(expected, signature):
            return None
        # From here on it is our own writing.
        *fields, expires = json.loads(_decoded(head.partition(".")[2]))
        return JobClaims(*fields) if self._seconds() < expires else None

    def reduction_token(self, job_uid: int) -> str:
        """By what workers and reducers of a job know each other (spec/reduction#security): the same at every
        start, good for nothing else."""
        return _signed(self._reduction_key, b"%d" % job_uid).hex()

    def authority_seed(self, job_uid: int) -> bytes:
        """48 bytes that the key of this job's certificate authority is derived from: the same at every
        start."""
        return hmac.digest(self._authority_key, b"%d" % job_uid, "sha384")

    def identity_token(self, claims: JobClaims, audience: str) -> str:
        """A JSON Web Token that says to `audience` who the program is. Signed with a key that stays in this
        service: what it says can be read by everybody and verified here alone."""
        issued = self._seconds()
        body: dict[str, Any] = {
            "iss": ISSUER,
            "aud": audience,
            "azp": claims.email,
            "sub": claims.email,
            "email": claims.email,
            "email_verified": True,
            "iat": issued,
            "exp": issued + LIFETIME,
        }
        parts = ({"alg": "HS256", "typ": "JWT"}, body)
        head = ".".join(_encoded(_dump(part)) for part in parts)
        return f"{head}.{_encoded(_signed(self._identity_key, head.encode()))}"

    def _seconds(self) -> int:
        return self._now() // _SECOND


def is_job_token(token: str) -> bool:
    """Whether it has the form of one; nothing is verified."""
    return token.startswith(f"{_VERSION}.")


def _make(path: Path) -> str:
    """Write a new key; that of another process if it was first. Never is a part of one to be seen."""
    text = secrets.token_hex(_KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readable by its owner alone, as `durable` writes all.
    own = f"{path}.{os.getpid()}"
    durable.write(own, text)
    try:
        os.link(own, path)
    except FileExistsError:
        return path.read_text("ascii")
    finally:
        Path(own).unlink()
    durable.sync_directory(str(path.parent))
    return text


def _signed(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

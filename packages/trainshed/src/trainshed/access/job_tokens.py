"""Tokens of programs: short-lived and signed, but not stored.

A program requests a token from its metadata endpoint. The bucket process creates the token and the API
process verifies it. Both use the key in the service's data directory. A token contains its claims, so only
its signature must be checked. The module also creates identity tokens, which are JSON Web Tokens.
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
"""Lifetime of a token in seconds, as on Google's machines. Clients request a new token some minutes before it
expires."""
KEY_FILE: Final = "jobs.key"
"""Name of the key file in the data directory. A process with this key can authenticate as every job of the
service."""
ISSUER: Final = "https://trainshed.local"

_VERSION: Final = "tsj1"
_KEY_BYTES: Final = 32
_SECOND: Final = 10**9


class JobKeyUnreadable(Exception):
    """The key file exists but contains no key. The message specifies the remedy."""


class JobClaims(Struct, frozen=True):
    """The identity in a token: a replica of a job in one of its attempts."""

    job_uid: int
    attempt: int
    #: The replica's name, such as `workerpool0-0`.
    replica: str
    project: str
    #: The service account that the job runs as.
    email: str

    @property
    def created_ms(self) -> int:
        """Creation time of the job in milliseconds since the epoch, from the upper bits of its UID."""
        return self.job_uid >> 22


class JobTokens:
    """Creates and verifies tokens. `now`: returns nanoseconds since the epoch."""

    def __init__(self, key: bytes, now: Callable[[], int]) -> None:
        self._key = key
        # Each kind of token has its own key, so the signature of one kind is not valid for another.
        self._identity_key = _signature(key, b"identity tokens")
        self._reduction_key = _signature(key, b"reduction")
        #: The service's signing key for access tokens of service accounts (`account_tokens`).
        self.account_secret = _signature(key, b"service accounts")
        self._now = now

    @classmethod
    def open(cls, path: Path, now: Callable[[], int]) -> "JobTokens":
        """Read the key file, or create it if it does not exist. Raises JobKeyUnreadable if the file contains
        no key, or OSError if it cannot be read or written."""
        try:
            text = path.read_text("ascii", "replace")
        except FileNotFoundError:
            text = _create_key(path)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise JobKeyUnreadable(
                f"{path} does not contain the key for tokens of jobs. Restore the file from a backup, or "
                "remove it: the service then creates a new key, and running programs request new tokens as "
                "soon as their old tokens are rejected."
            )
        return cls(key, now)

    def mint(self, claims: JobClaims, lifetime: int = LIFETIME) -> tuple[str, int]:
        """Return a new token for these claims, and its lifetime in seconds."""
        fields = [*astuple(claims), self._seconds() + lifetime]
        head = f"{_VERSION}.{_base64url(_dump(fields))}"
        return f"{head}.{_base64url(_signature(self._key, head.encode()))}", lifetime

    def read(self, token: str) -> JobClaims | None:
        """Return the claims of a token, or None if the token is expired, was modified, or was issued by
        another service."""
        head, _, signature = token.rpartition(".")
        if not head.startswith(f"{_VERSION}.") or not token.isascii():
            return None
        expected = _base64url(_signature(self._key, head.encode()))
        if not hmac.compare_digest(expected, signature):
            return None
        # No further checks of the claims are needed: the signature is valid, so `mint` created them.
        *fields, expires = json.loads(base64.urlsafe_b64decode(head.partition(".")[2] + "=="))
        return JobClaims(*fields) if self._seconds() < expires else None

    def reduction_token(self, job_uid: int) -> str:
        """Return the token with which a job's workers and reducers authenticate each other
        (spec/reduction#security). It is the same for all starts of the job and has no other use."""
        return _signature(self._reduction_key, b"%d" % job_uid).hex()

    def identity_token(self, claims: JobClaims, audience: str) -> str:
        """Return a JSON Web Token that identifies the program to `audience`. Every recipient can read it.
        Only this service can verify it, since the signing key never leaves the service."""
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
        head = ".".join(_base64url(_dump(part)) for part in parts)
        return f"{head}.{_base64url(_signature(self._identity_key, head.encode()))}"

    def _seconds(self) -> int:
        return self._now() // _SECOND


def is_job_token(token: str) -> bool:
    """Return whether the text has the form of a program's token. Nothing is verified."""
    return token.startswith(f"{_VERSION}.")


def _create_key(path: Path) -> str:
    """Create the key file and return its text. If another process creates it first, return the text of that
    process. A hard link publishes the finished file, so readers never see a partial key."""
    text = secrets.token_hex(_KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    # `durable` creates files that only their owner can read.
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


def _signature(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Tokens of programs: short-lived and signed, but not stored.

A program requests a token from its metadata endpoint. The bucket process mints it and the API process
verifies it, both with the key in the service's data directory. A token contains its claims, so a check needs
only the signature. The module also creates identity tokens, which are JSON Web Tokens.
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
"""Lifetime of a token in seconds, as on Google's machines. Clients request a new one minutes before it
expires."""
KEY_FILE: Final = "jobs.key"
"""File name of the key in the data directory. With the key, one can authenticate as every job of the
service."""
ISSUER: Final = "https://trainshed.local"

_VERSION: Final = "tsj1"
_KEY_BYTES: Final = 32
_SECOND: Final = 10**9


class JobKeyUnreadable(Exception):
    """The key file exists but contains no key. The message describes the remedy."""


class JobClaims(Struct, frozen=True):
    """The principal of a token: one attempt of a job, through one of its replicas."""

    job_uid: int
    attempt: int
    #: The replica's name, such as `workerpool0-0`.
    replica: str
    project: str
    #: The service account that the job runs as.
    email: str

    @property
    def created(self) -> int:
        """Creation time of the job, in milliseconds since the epoch: the upper bits of its UID."""
        return self.job_uid >> 22


class JobTokens:
    """Mints and verifies tokens. `now` returns nanoseconds since the epoch."""

    def __init__(self, key: bytes, now: Callable[[], int]) -> None:
        self._key = key
        # A key per kind of token: a signature of one kind must not be valid for another.
        self._identity_key = _signature(key, b"identity tokens")
        self._reduction_key = _signature(key, b"reduction")
        #: Signing key of access tokens of service accounts (`account_tokens`).
        self.account_secret = _signature(key, b"service accounts")
        self._now = now

    @classmethod
    def open(cls, path: Path, now: Callable[[], int]) -> "JobTokens":
        """Read the key file, or create it if it does not exist. Raises JobKeyUnreadable, OSError."""
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
                f"{path} does not contain the key for tokens of jobs. Restore it from a backup, or remove "
                "it. With a new key, running programs request new tokens as soon as theirs are rejected."
            )
        return cls(key, now)

    def mint(self, claims: JobClaims, lifetime: int = LIFETIME) -> tuple[str, int]:
        """Return a new token for these claims, and its lifetime in seconds."""
        fields = [*astuple(claims), self._seconds() + lifetime]
        head = f"{_VERSION}.{_base64url(_dump(fields))}"
        return f"{head}.{_base64url(_signature(self._key, head.encode()))}", lifetime

    def read(self, token: str) -> JobClaims | None:
        """Return the claims of a token, or None if it is foreign, modified or expired."""
        head, _, signature = token.rpartition(".")
        if not head.startswith(f"{_VERSION}.") or not token.isascii():
            return None
        expected = _base64url(_signature(self._key, head.encode()))
        if not hmac.compare_digest(expected, signature):
            return None
        # The signature is valid, so `mint` wrote the rest.
        *fields, expires = json.loads(base64.urlsafe_b64decode(head.partition(".")[2] + "=="))
        return JobClaims(*fields) if self._seconds() < expires else None

    def reduction_token(self, job_uid: int) -> str:
        """Return the token by which a job's workers and reducers authenticate each other
        (spec/reduction#security). It is the same at every start and has no other use."""
        return _signature(self._reduction_key, b"%d" % job_uid).hex()

    def identity_token(self, claims: JobClaims, audience: str) -> str:
        """Return a JSON Web Token that identifies the program to `audience`. Everyone can read it. Only this
        service can verify it, since the signing key never leaves the service."""
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
    """Whether the text has the form of a program's token. Nothing is verified."""
    return token.startswith(f"{_VERSION}.")


def _create_key(path: Path) -> str:
    """Create and return a key, or return the key of a process that was faster. A hard link publishes the
    finished file, so that readers never see half a key."""
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

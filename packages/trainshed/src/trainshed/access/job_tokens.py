"""Tokens of programs are short-lived and signed, and stored nowhere.

A program gets one from its metadata endpoint whenever it asks: the bucket process mints it, and the API
process reads it, both with the key in the service's data directory. A token carries its own claims, so
checking it takes a signature and no look-up. The module also makes identity tokens, which are JSON Web
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
"""Seconds that a token is valid, as on Google's machines; clients ask for a new one minutes before the
end."""
KEY_FILE: Final = "jobs.key"
"""The key's file name in the data directory. Whoever has the key can speak for every job of the service."""
ISSUER: Final = "https://trainshed.local"

_VERSION: Final = "tsj1"
_KEY_BYTES: Final = 32
_SECOND: Final = 10**9


class JobKeyUnreadable(Exception):
    """The key file exists but holds no key; the message says what to do."""


class JobClaims(Struct, frozen=True):
    """For whom a token speaks: one attempt of a job, through one of its replicas."""

    job_uid: int
    attempt: int
    #: The replica's name, such as `workerpool0-0`.
    replica: str
    project: str
    #: The service account that the job runs as.
    email: str

    @property
    def made(self) -> int:
        """When the job was made, in milliseconds since the epoch: its uid begins with that."""
        return self.job_uid >> 22


class JobTokens:
    """Mints tokens and reads them. `now` gives nanoseconds since the epoch; everything else is pure."""

    def __init__(self, key: bytes, now: Callable[[], int]) -> None:
        self._key = key
        # Each kind of token has its own key: a signature made for one kind must not be valid for another.
        self._identity_key = _signed(key, b"identity tokens")
        self._reduction_key = _signed(key, b"reduction")
        #: What access tokens of service accounts are signed with (`account_tokens`).
        self.account_secret = _signed(key, b"service accounts")
        self._now = now

    @classmethod
    def open(cls, path: Path, now: Callable[[], int]) -> "JobTokens":
        """Use the key of this file, which is made if it does not exist. Raises JobKeyUnreadable, OSError."""
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
        """Returns a new token for these claims, and the seconds until it expires."""
        fields = [*astuple(claims), self._seconds() + lifetime]
        head = f"{_VERSION}.{_encoded(_dump(fields))}"
        return f"{head}.{_encoded(_signed(self._key, head.encode()))}", lifetime

    def read(self, token: str) -> JobClaims | None:
        """Returns the claims of a token; None if it is not one of ours, was changed, or has expired."""
        head, _, signature = token.rpartition(".")
        if not head.startswith(f"{_VERSION}.") or not token.isascii():
            return None
        expected = _encoded(_signed(self._key, head.encode()))
        if not hmac.compare_digest(expected, signature):
            return None
        # The signature is right, so the rest is in the form that `mint` wrote.
        *fields, expires = json.loads(base64.urlsafe_b64decode(head.partition(".")[2] + "=="))
        return JobClaims(*fields) if self._seconds() < expires else None

    def reduction_token(self, job_uid: int) -> str:
        """Returns the token by which a job's workers and reducers recognise each other
        (spec/reduction#security). It is the same at every start, and good for nothing else."""
        return _signed(self._reduction_key, b"%d" % job_uid).hex()

    def identity_token(self, claims: JobClaims, audience: str) -> str:
        """Returns a JSON Web Token that tells `audience` who the program is. Anyone can read it, but only
        this service can verify it, since the key that signs it never leaves the service."""
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
    """Whether the text has the form of a program's token; nothing is verified."""
    return token.startswith(f"{_VERSION}.")


def _make(path: Path) -> str:
    """Write a new key and return it, or the key of another process that wrote one first. A hard link
    publishes the finished file, so that nobody reads half a key."""
    text = secrets.token_hex(_KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    # `durable` writes files that only their owner can read.
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

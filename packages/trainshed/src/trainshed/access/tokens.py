"""Recognises who sends a token, and issues the tokens of people.

The module owns the token file; tokens of programs are made and read by `job_tokens`. A person's token is 256
random bits, stored as its SHA-256: it cannot be guessed, so a plain hash is enough, and a slow password hash
would cost more than the request (ADR 7).
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trainshed.access.job_tokens import JobClaims, JobTokens, is_job_token
from trainshed.access.principals import Principal, Role
from trainshed.core.errors import Unauthenticated
from trainshed.replica.system import durable

_FORMAT: Final = 1
_HOW: Final = (
    "send `Authorization: Bearer TOKEN` with a token that this service issued; gcloud takes it from "
    "CLOUDSDK_AUTH_ACCESS_TOKEN"
)


class TokenFileUnreadable(Exception):
    """The token file exists but is not one of ours; the message says what to do."""


class TokenAuthority:
    """Issues tokens and recognises them. Reads are thread-safe; `issue` and `revoke` block on a disk sync."""

    def __init__(
        self,
        path: Path,
        principals: dict[bytes, tuple[Principal, int]],
        now: Callable[[], int],
        jobs: JobTokens | None = None,
    ) -> None:
        self._path = path
        self._principals = principals
        self._now = now
        self._jobs = jobs
        self._is_over: Callable[[JobClaims], bool] = lambda _: False

    @classmethod
    def open(
        cls, path: Path, now: Callable[[], int], jobs: JobTokens | None = None
    ) -> "TokenAuthority":
        """Read the token file; if it does not exist, no token was issued yet.

        `now` gives nanoseconds since the epoch. With `jobs`, tokens of programs are recognised, too. Raises
        TokenFileUnreadable.
        """
        if not path.exists():
            return cls(path, {}, now, jobs)
        path.chmod(0o600)
        try:
            stored: dict[str, Any] = json.loads(path.read_bytes())
            if stored["format"] != _FORMAT:
                raise ValueError(f"format {stored['format']}")
            principals = {
                bytes.fromhex(row["sha256"]): (
                    Principal(row["email"], Role(row["role"]), row.get("project", "")),
                    int(row["created"]),
                )
                for row in stored["tokens"]
            }
        except (ValueError, KeyError, TypeError) as error:
            raise TokenFileUnreadable(
                f"{path} does not hold the tokens of this service ({error}): restore it from a backup, "
                "or move it away and issue new tokens"
            ) from error
        return cls(path, principals, now, jobs)

    def refuse(self, is_over: Callable[[JobClaims], bool]) -> None:
        """From now on, refuse the tokens of programs that have ended. `is_over` is asked about each one, and
        must answer at once. Without it such a token expires within the hour."""
        self._is_over = is_over

    def issue(self, principal: Principal) -> str:
        """Returns a new token for `principal`. Only its hash is kept, so it cannot be read again."""
        token = secrets.token_urlsafe(32)
        issued = {**self._principals, _digest(token): (principal, self._now())}
        self._write(issued)
        self._principals = issued
        return token

    def revoke(self, principal: Principal) -> int:
        """Forget every token of `principal`; returns how many there were."""
        kept = {key: row for key, row in self._principals.items() if row[0] != principal}
        gone = len(self._principals) - len(kept)
        if gone:
            self._write(kept)
            self._principals = kept
        return gone

    def digests(self) -> Mapping[bytes, Principal]:
        """The principal of every token, by the token's SHA-256."""
        return {digest: principal for digest, (principal, _) in self._principals.items()}

    def authenticate(self, header: str | None) -> Principal:
        """Returns the principal of an `Authorization` header. Raises Unauthenticated, which says what to
        send."""
        if not header:
            raise Unauthenticated(f"The request has no credentials: {_HOW}.")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated(f"Credentials of the kind {scheme!r} are not served: {_HOW}.")
        token = token.strip()
        if self._jobs is not None and is_job_token(token):
            return self._program(self._jobs, token)
        row = self._principals.get(_digest(token))
        if row is None:
            raise Unauthenticated(f"The access token is not known here: {_HOW}.")
        return row[0]

    def _program(self, jobs: JobTokens, token: str) -> Principal:
        claims = jobs.read(token)
        if claims is None:
            raise Unauthenticated(
                "The access token of a job is not one of this service, or has expired: ask the metadata "
                "endpoint of the replica for a new one, as Google's client libraries do by themselves."
            )
        if self._is_over(claims):
            raise Unauthenticated(
                f"The access token is that of {claims.replica} in attempt {claims.attempt} of the job "
                f"{claims.job_uid}, which is over: use a token of your own."
            )
        return Principal(claims.email, Role.JOB, claims.project, claims)

    def _write(self, principals: dict[bytes, tuple[Principal, int]]) -> None:
        rows = [
            {
                "sha256": digest.hex(),
                "email": principal.email,
                "role": principal.role.value,
                "project": principal.project,
                "created": created,
            }
            for digest, (principal, created) in principals.items()
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        durable.write(str(self._path), json.dumps({"format": _FORMAT, "tokens": rows}, indent=1))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()

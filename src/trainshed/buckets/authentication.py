"""Authentication of storage requests: by a token, or by the key in their address.

Owns no token: the service's token authority knows them. Used by the API's gateway and by the bucket process's own port
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trainshed.access.job_tokens import JobTokens
from trainshed.access.principals import Principal
from trainshed.access.tokens import TokenAuthority, TokenFileUnreadable
from trainshed.buckets.callers import ANONYMOUS, UNKNOWN, Caller, Kind
from trainshed.buckets.errors import Unauthenticated, Unavailable
from trainshed.buckets.keys import key_of_digest
from trainshed.core.errors import Unauthenticated as UnknownToken


class Authenticator:
    """Finds the caller of a request. Never blocks."""

    def __init__(self, authority: Callable[[], TokenAuthority], *, anonymous: bool = False) -> None:
        """`authority`: knows the tokens as they are now. `anonymous`: whoever brings nothing, or something that nobody
        knows, is let in all the same."""
        self._authority = authority
        self._anonymous = anonymous
        self._digests: Mapping[bytes, Principal] = {}
        self._keys: Mapping[str, Principal] = {}

    def caller(self, authorization: str | None, key: str) -> Caller:
        """Who calls; UNKNOWN if the request does not say. Raises Unauthenticated for what nobody knows, Unavailable."""
        cause = "The key in this address is not known here."
        if key and (principal := self._holder(key)) is not None:
            return Caller(Kind.KEY, principal.email)
        if authorization:
            try:
                return _caller(self._authority().authenticate(authorization))
            except UnknownToken as error:
                cause = str(error)
        if self._anonymous:
            return ANONYMOUS
        if key or authorization:
            raise Unauthenticated(
                f"{cause} `trainshed env` prints the addresses and the token of today."
            )
        return UNKNOWN

    def _holder(self, key: str) -> Principal | None:
        """Whose token the key belongs to."""
        digests = self._authority().digests()
        if digests != self._digests:
            self._digests = digests
            self._keys = {key_of_digest(digest): principal for digest, principal in digests.items()}
        return self._keys.get(key)


def _caller(principal: Principal) -> Caller:
    if principal.project:
        return Caller(Kind.REPLICA, principal.email, principal.project)
    return Caller(Kind.PERSON, principal.email)


class TokenFile:
    """The service's token file as seen by another process than the one that writes it: read again when it changed."""

    def __init__(self, path: Path, jobs: JobTokens, now: Callable[[], int]) -> None:
        """`jobs`: knows the tokens of programs, which stand in no file."""
        self._path = path
        self._jobs = jobs
        self._now = now
        self._version = (-1, -1)
        self._authority: TokenAuthority | None = None

    def read(self) -> TokenAuthority:
        """Raises Unavailable if the file cannot be read."""
        try:
            version = self._now_there()
            if self._authority is None or version != self._version:
                self._authority = TokenAuthority.open(self._path, self._now, self._jobs)
                self._version = version
        except (OSError, TokenFileUnreadable) as error:
            raise Unavailable(f"The service's tokens cannot be read: {error}.") from error
        return self._authority

    def _now_there(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns

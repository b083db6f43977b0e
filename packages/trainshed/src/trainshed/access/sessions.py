"""Browser sessions: signing in by a token, or by a link that is good once, gives a password.

The password has the rights of the token until it expires, its owner signs out, or the token is revoked.
Sessions are kept as tokens are, by their SHA-256 alone, in their own file, so that nobody has to sign in
again after a restart. Links, and what a page hands to a command line, are kept in memory, for minutes.
"""

import asyncio
import base64
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from trainshed.access.principals import Principal
from trainshed.access.tokens import TokenAuthority
from trainshed.core.errors import Unauthenticated
from trainshed.core.units import Nanos
from trainshed.replica.system import durable

LIFETIME: Final = 7 * 24 * 3600 * 10**9
"""Nanoseconds that a session lasts."""
LINK_LIFETIME: Final = 15 * 60 * 10**9
"""Nanoseconds that a sign-in link is valid."""
_MOST: Final = 1_000
"""Sessions, and links, that can exist at a time; for new ones, the oldest make place of who has the most."""
_FORMAT: Final = 1


class Session(Struct, frozen=True):
    """A browser that somebody has signed in with."""

    principal: Principal
    #: SHA-256 of its password, in hexadecimal digits.
    digest: str


class _Row(Struct, frozen=True):
    """A session as the file keeps it."""

    #: SHA-256 of the token that the session stands for.
    token: bytes
    #: Nanoseconds since the epoch.
    expires: Nanos


class _Offer(Struct, frozen=True):
    """A token for a command line."""

    token: str
    #: Of what only the command line knows (RFC 7636, S256).
    challenge: str
    expires: Nanos


class Sessions:
    """The sessions of one service. All methods are called on the event loop's thread; the file is written in
    another one."""

    def __init__(
        self, path: Path, tokens: Callable[[], TokenAuthority], now: Callable[[], int]
    ) -> None:
        """A file that is not there, or cannot be read, means that nobody is signed in."""
        self._path = path
        self._tokens = tokens
        self._now = now
        self._rows = _read(path)
        self._links: dict[bytes, _Row] = {}
        self._offers: dict[bytes, _Offer] = {}
        self._writing = asyncio.Lock()

    async def by_token(self, token: str) -> str:
        """Sign a person in with a token, and return the session's password. Raises Unauthenticated."""
        principal = self._tokens().authenticate(f"Bearer {token}")
        if principal.program is not None:
            raise Unauthenticated(
                "This is the token of a program of a job: sign in with one of a person's, such as the one in "
                "owner.token of the service's data directory."
            )
        return await self._begin(_digest(token))

    def link_code(self, token: str) -> str:
        """Returns a code that signs in once with the token's rights. Raises Unauthenticated."""
        principal = self._tokens().authenticate(f"Bearer {token}")
        if principal.program is not None:
            raise Unauthenticated("Programs of jobs sign in nowhere: use the token of a person.")
        code = secrets.token_urlsafe(24)
        self._links[_digest(code)] = _Row(_digest(token), self._now() + LINK_LIFETIME)
        self._shorten(self._links)
        return code

    async def by_code(self, code: str) -> str:
        """Sign in with a code, and return the session's password. Raises Unauthenticated."""
        row = self._links.pop(_digest(code), None)
        if row is None or row.expires <= self._now() or self._holder(row) is None:
            raise Unauthenticated(
                "This link was used already, or is older than 15 minutes. Get a new one: trainshed console"
            )
        return await self._begin(row.token)

    def offer(self, token: str, challenge: str) -> str:
        """Return a code for which the command line that sent `challenge` gets the token, once."""
        code = secrets.token_urlsafe(24)
        self._offers[_digest(code)] = _Offer(token, challenge, self._now() + LINK_LIFETIME)
        self._shorten(self._offers)
        return code

    def redeem(self, code: str, verifier: str) -> str:
        """Return the token that was offered. A code that is shown without its verifier is good for nothing
        any more. Raises Unauthenticated."""
        offer = self._offers.pop(_digest(code), None)
        challenge = base64.urlsafe_b64encode(_digest(verifier)).rstrip(b"=")
        if offer is None or offer.expires <= self._now() or offer.challenge.encode() != challenge:
            raise Unauthenticated(
                "This code was used already, is older than 15 minutes, or is for another command line: run "
                "trainshed login again."
            )
        return offer.token

    def find(self, value: str) -> Session | None:
        """Returns the session of a password; None if there is none, or it has ended."""
        digest = _digest(value).hex()
        row = self._rows.get(digest)
        if row is None or row.expires <= self._now():
            return None
        principal = self._holder(row)
        return Session(principal, digest) if principal is not None else None

    async def end(self, session: Session, *, everywhere: bool = False) -> None:
        """Sign the browser out; `everywhere`: all browsers in which this person is signed in."""
        for digest, row in list(self._rows.items()):
            holder = self._holder(row) if everywhere else None
            if digest == session.digest or (holder and holder.email == session.principal.email):
                del self._rows[digest]
        await self._write()

    def _holder(self, row: _Row) -> Principal | None:
        return self._tokens().holder(row.token.hex())

    async def _begin(self, token: bytes) -> str:
        value = secrets.token_urlsafe(32)
        now = self._now()
        self._rows = {key: row for key, row in self._rows.items() if row.expires > now}
        self._rows[_digest(value).hex()] = _Row(token, now + LIFETIME)
        self._shorten(self._rows)
        await self._write()
        return value

    def _shorten(self, kept: dict[Any, Any]) -> None:
        while len(kept) > _MOST:
            whose = {key: self._email(row.token) for key, row in kept.items()}
            most, _ = Counter(whose.values()).most_common(1)[0]
            del kept[next(key for key, email in whose.items() if email == most)]

    def _email(self, token: bytes | str) -> str:
        digest = _digest(token) if isinstance(token, str) else token
        known = self._tokens().book.tokens.get(digest.hex())
        return known.email if known else ""

    async def _write(self) -> None:
        async with self._writing:
            rows = [
                {"sha256": digest, "token": row.token.hex(), "expires": row.expires}
                for digest, row in self._rows.items()
            ]
            text = json.dumps({"format": _FORMAT, "sessions": rows}, indent=1)
            await asyncio.to_thread(durable.write, str(self._path), text)


def _read(path: Path) -> dict[str, _Row]:
    try:
        stored: dict[str, Any] = json.loads(path.read_bytes())
        return {
            str(row["sha256"]): _Row(bytes.fromhex(row["token"]), int(row["expires"]))
            for row in stored["sessions"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()

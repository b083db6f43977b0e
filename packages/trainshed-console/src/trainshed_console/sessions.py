"""Browser sessions: signing in by a token, or by a link that is good once, gives a password.

The password has the rights of the token until it expires, its owner signs out, or the token is revoked.
Sessions are kept as tokens are, by their SHA-256 alone, in their own file, so that nobody has to sign in
again after a restart. Links, and what a page hands to a command line, are kept in memory, for minutes.
"""

import asyncio
import base64
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from trainshed.access.principals import Principal, Shown
from trainshed.access.tokens import TokenAuthority, digest_of
from trainshed.core.errors import Unauthenticated
from trainshed.core.units import Nanos
from trainshed.replica.system import durable
from trainshed.store.audit import AuditRecord, RecordedCall, recording

LIFETIME: Final = 7 * 24 * 3600 * 10**9
"""Nanoseconds that a session lasts."""
LINK_LIFETIME: Final = 15 * 60 * 10**9
"""Nanoseconds that a sign-in link is valid."""
_MOST: Final = 1_000
"""Sessions, and links, that can exist at a time; for new ones, the oldest make place of who has the most."""
SIGN_IN: Final = "trainshed.v1.Tokens.SignIn"
"""Method of the audit record of a sign-in."""
_VOID_LINK: Final = (
    "This link was already used or is older than 15 minutes. For a new link, run: trainshed console"
)


class _Row(Struct, frozen=True):
    """A session as the file keeps it, or a link."""

    #: SHA-256 of its password, in hexadecimal digits.
    sha256: str
    #: What was shown for it.
    shown: Shown
    expires: Nanos


class _Offer(Struct, frozen=True):
    """A token for a command line."""

    token: str
    shown: Shown
    #: Of what only the command line knows (RFC 7636, S256).
    challenge: str
    expires: Nanos


class Sessions:
    """The sessions of one service. All methods are called on the event loop's thread; the file is written in
    another one."""

    def __init__(
        self,
        path: Path,
        authenticate: Callable[[str], Awaitable[Principal]],
        authority: TokenAuthority,
        now: Callable[[], int],
        record: Callable[[], Awaitable[None]],
    ) -> None:
        """A file that is not there, or cannot be read, means that nobody is signed in. `authenticate`: as
        `serve.issuers` does. `authority`: is told of them. `record`: stores the audit record of the call
        under way."""
        self._path = path
        self._authenticate = authenticate
        self._authority = authority
        self._known = authority.known
        authority.sessions = self._shown_for
        self._now = now
        self._record = record
        self._rows = _read(path)
        self._links: dict[str, _Row] = {}
        self._offers: dict[str, _Offer] = {}
        self._writing = asyncio.Lock()

    async def by_token(self, token: str) -> str:
        """Sign somebody in with a token, and return the session's password. Raises as `shown_by`."""
        return await self._begin(await self.shown_by(token), "token")

    async def shown_by(self, token: str) -> Shown:
        """Return what somebody shows who signs in with a token. Raises Unauthenticated, Unavailable."""
        principal = await self._authenticate(f"Bearer {token}")
        if principal.shown is None:
            raise Unauthenticated(
                "This token belongs to a program of a job. Sign in with a user's token, such as the one in "
                "the file owner.token of the service's data directory."
            )
        return principal.shown

    def link_code(self, shown: Shown) -> str:
        """Return a code that signs in once, with the rights of who has shown this."""
        code = secrets.token_urlsafe(24)
        self._links[digest_of(code)] = _Row(digest_of(code), shown, self._now() + LINK_LIFETIME)
        self._shorten(self._links)
        return code

    async def by_code(self, code: str) -> str:
        """Sign in with a code, and return the session's password. Raises Unauthenticated, Unavailable."""
        row = self._links.pop(digest_of(code), None)
        if row is None or row.expires <= self._now():
            raise Unauthenticated(_VOID_LINK)
        return await self._begin(row.shown, "link")

    def offer(self, token: str, challenge: str) -> str:
        """Return a code for which the command line that sent `challenge` gets the token, once."""
        code = secrets.token_urlsafe(24)
        offer = _Offer(token, digest_of(token), challenge, self._now() + LINK_LIFETIME)
        self._offers[digest_of(code)] = offer
        self._shorten(self._offers)
        return code

    def redeem(self, code: str, verifier: str) -> str:
        """Return the token that was offered. A code that is shown without its verifier is good for nothing
        any more. Raises Unauthenticated."""
        offer = self._offers.pop(digest_of(code), None)
        challenge = base64.urlsafe_b64encode(bytes.fromhex(digest_of(verifier))).rstrip(b"=")
        if offer is None or offer.expires <= self._now() or offer.challenge.encode() != challenge:
            raise Unauthenticated(
                "This code was already used, is older than 15 minutes, or belongs to another command line. "
                "Run trainshed login again."
            )
        return offer.token

    def find(self, value: str) -> Principal | None:
        """Return who is signed in by a password, who shows the session: what that opens ends with it. None
        if it has ended, or there is none."""
        digest = digest_of(value)
        return self._known(digest) if digest in self._rows else None

    def _shown_for(self, digest: str) -> Shown | None:
        row = self._rows.get(digest)
        return row.shown if row and row.expires > self._now() else None

    async def end(self, principal: Principal, *, everywhere: bool = False) -> None:
        """Sign the browser out; `everywhere`: all browsers in which this person is signed in."""
        for digest, row in list(self._rows.items()):
            holder = self._known(row.shown) if everywhere else None
            if digest == principal.shown or (holder and holder.email == principal.email):
                del self._rows[digest]
        self._authority.moved()
        await self._write()

    async def _begin(self, shown: Shown, by: str) -> str:
        if (holder := self._known(shown)) is None:
            raise Unauthenticated(_VOID_LINK)
        value = secrets.token_urlsafe(32)
        now = self._now()
        record = AuditRecord(holder.email, SIGN_IN, detail={"by": by})
        with recording(RecordedCall(now, record)):
            await self._record()
        self._rows = {key: row for key, row in self._rows.items() if row.expires > now}
        self._rows[digest_of(value)] = _Row(digest_of(value), shown, now + LIFETIME)
        self._shorten(self._rows)
        await self._write()
        return value

    def _shorten(self, kept: dict[str, Any]) -> None:
        while len(kept) > _MOST:
            whose = {key: self._known(row.shown) for key, row in kept.items()}
            emails = {key: holder.email if holder else "" for key, holder in whose.items()}
            most, _ = Counter(emails.values()).most_common(1)[0]
            del kept[next(key for key, email in emails.items() if email == most)]

    async def _write(self) -> None:
        async with self._writing:
            content = msgspec.json.encode(list(self._rows.values()))
            await asyncio.to_thread(durable.write, str(self._path), content.decode())


def _read(path: Path) -> dict[str, _Row]:
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Row])
    except (OSError, ValueError):
        return {}
    return {row.sha256: row for row in rows}

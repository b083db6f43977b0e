"""Browser sessions.

A sign-in with a token or a single-use link returns a session password. The password has the permissions of
the token until the session expires, its user signs out, or the token is revoked. Sessions survive restarts: a
file stores them, but only the SHA-256 of their passwords, as for tokens. Links and offers to command lines
are kept in memory for minutes.
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

from trainshed.access.principals import Credential, Principal
from trainshed.access.tokens import TokenAuthority, digest_of
from trainshed.core.errors import Unauthenticated
from trainshed.core.units import Nanos
from trainshed.replica.system import durable
from trainshed.store.audit import AuditRecord, RecordedCall, recording

LIFETIME: Final = 7 * 24 * 3600 * 10**9
"""Nanoseconds until a session expires."""
LINK_LIFETIME: Final = 15 * 60 * 10**9
"""Nanoseconds until a sign-in link expires."""
_MAX_SESSIONS: Final = 1_000
"""Maximum number of sessions, and of links. Above this number, the user with the most entries loses the
oldest one."""
SIGN_IN: Final = "trainshed.v1.Tokens.SignIn"
"""The method name in the audit record of a sign-in."""
_VOID_LINK: Final = (
    "This link was already used or is older than 15 minutes. For a new link, run: trainshed console"
)


class _Row(Struct, frozen=True):
    """A session in the file, or a link."""

    #: SHA-256 of the session's password, or of the link's code, as hexadecimal digits.
    sha256: str
    #: The credential with which the user signed in.
    shown: Credential
    expires: Nanos


class _Offer(Struct, frozen=True):
    """A token that is offered to a command line."""

    token: str
    shown: Credential
    #: The challenge that belongs to the command line's verifier (RFC 7636, S256).
    challenge: str
    expires: Nanos


class Sessions:
    """The sessions of one service. All methods must be called on the thread of the event loop. Another thread
    writes the file."""

    def __init__(
        self,
        path: Path,
        authenticate: Callable[[str], Awaitable[Principal]],
        authority: TokenAuthority,
        now: Callable[[], int],
        record: Callable[[], Awaitable[None]],
    ) -> None:
        """Read the sessions. A missing or malformed file contains no sessions.

        Args:
            path: The file of the sessions.
            authenticate: Returns the principal of an `Authorization` header.
            authority: The token authority. It calls this object to find a session.
            now: The clock, in nanoseconds since the epoch.
            record: Stores the audit record of the current call.
        """
        self._path = path
        self._authenticate = authenticate
        self._authority = authority
        self._known = authority.current_principal
        authority.sessions = self._shown_for
        self._now = now
        self._record = record
        self._rows = _read(path)
        self._links: dict[str, _Row] = {}
        self._offers: dict[str, _Offer] = {}
        self._writing = asyncio.Lock()

    async def by_token(self, token: str) -> str:
        """Sign in with a token, and return the session password. Raises Unauthenticated, Unavailable."""
        return await self._start_session(await self.credential_of(token), "token")

    async def credential_of(self, token: str) -> Credential:
        """Return the credential that a user's token represents. Raises Unauthenticated, Unavailable."""
        principal = await self._authenticate(f"Bearer {token}")
        if principal.credential is None:
            raise Unauthenticated(
                "This token belongs to a program of a job. Sign in with a user's token, such as the one in "
                "the file owner.token of the service's data directory."
            )
        return principal.credential

    def link_code(self, shown: Credential) -> str:
        """Return a single-use sign-in code with the permissions of a credential."""
        code = secrets.token_urlsafe(24)
        self._links[digest_of(code)] = _Row(digest_of(code), shown, self._now() + LINK_LIFETIME)
        self._shorten(self._links)
        return code

    async def by_code(self, code: str) -> str:
        """Sign in with a code, and return the session password. Raises Unauthenticated, Unavailable."""
        row = self._links.pop(digest_of(code), None)
        if row is None or row.expires <= self._now():
            raise Unauthenticated(_VOID_LINK)
        return await self._start_session(row.shown, "link")

    def offer(self, token: str, challenge: str) -> str:
        """Return a single-use code. The command line with this challenge can exchange the code for the
        token."""
        code = secrets.token_urlsafe(24)
        offer = _Offer(token, digest_of(token), challenge, self._now() + LINK_LIFETIME)
        self._offers[digest_of(code)] = offer
        self._shorten(self._offers)
        return code

    def redeem(self, code: str, verifier: str) -> str:
        """Return the token that was offered with a code. A wrong verifier invalidates the code. Raises
        Unauthenticated."""
        offer = self._offers.pop(digest_of(code), None)
        challenge = base64.urlsafe_b64encode(bytes.fromhex(digest_of(verifier))).rstrip(b"=")
        if offer is None or offer.expires <= self._now() or offer.challenge.encode() != challenge:
            raise Unauthenticated(
                "This code was already used, is older than 15 minutes, or belongs to another command line. "
                "Run trainshed login again."
            )
        return offer.token

    def find(self, value: str) -> Principal | None:
        """Return the principal of a session password, or None if the session has ended or does not exist.
        When the session ends, the principal's streams and shells end too."""
        digest = digest_of(value)
        return self._known(digest) if digest in self._rows else None

    def _shown_for(self, digest: str) -> Credential | None:
        row = self._rows.get(digest)
        return row.shown if row and row.expires > self._now() else None

    async def end(self, principal: Principal, *, everywhere: bool = False) -> None:
        """End the session of the principal. `everywhere`: end all sessions of its user."""
        for digest, row in list(self._rows.items()):
            holder = self._known(row.shown) if everywhere else None
            if digest == principal.credential or (holder and holder.email == principal.email):
                del self._rows[digest]
        self._authority.on_change()
        await self._write()

    async def _start_session(self, shown: Credential, by: str) -> str:
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
        while len(kept) > _MAX_SESSIONS:
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

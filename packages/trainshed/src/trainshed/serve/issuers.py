"""Recognises people and machines by what issuers of OpenID Connect gave them: ID tokens, and access tokens of
Google's (`access.issuers`). Reads what issuers publish, and asks them, for additions that sign browsers in,
too.
"""

import asyncio
import json
import logging
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlencode, urlsplit
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.account_tokens import OWNER_EMAIL, is_access_token, is_json_web_token
from trainshed.access.issuers import (
    GOOGLE,
    Issuer,
    UnknownKey,
    address_in,
    bearer_of,
    holder_of,
    issuer_of,
    signing_keys,
    verified,
)
from trainshed.access.principals import Bearer, Principal
from trainshed.access.strangers import SOURCE, network_of
from trainshed.access.tokens import digest_of
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.units import Nanos
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.connections import HOLD
from trainshed.httpd.forwarding import NoAnswer, answered
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.audit import AuditRecord, RecordedCall, recording

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

T = TypeVar("T")
log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 4_096
"""Tokens of an issuer that are not verified each time that they are shown."""
_MOST_ASKED: Final = 8
"""Access tokens of which an issuer is asked at a time."""
_BELIEVED: Final = 180.0
"""Seconds for which is believed what it has answered."""
_FRESH: Final = 3600.0
"""Seconds after which an issuer's facts and keys are read again."""
_ANEW: Final = 30.0
"""Seconds between two readings because of an unknown key, which anybody can send, or of an issuer that
does not answer."""
_TIMEOUT: Final = 10.0
"""Seconds until an issuer has taken a connection, and again until it has answered as a whole."""
_MOST_BYTES: Final = 1 << 18
_TOKENINFO: Final = "https://oauth2.googleapis.com/tokeninfo"


class _Facts(Struct, frozen=True):
    """What an issuer publishes of itself, and when it was read (seconds of the monotonic clock)."""

    published: Mapping[str, Any]
    keys: "KeySet"
    #: Returns for whom an ID token speaks, as `bearer_of`. Those that speak for nobody are not remembered.
    bearer: Callable[[str], Bearer]
    at: float


class Issuers:
    """The issuers of one service (`api.additions.Issuers`)."""

    def __init__(
        self, issuers: Sequence[Issuer], keeper: AccessKeeper, now: Callable[[], Nanos]
    ) -> None:
        self.fetched = _fetched
        self.by_name = {issuer.name: issuer for issuer in issuers if issuer.client_id}
        self._by_url = {issuer.issuer: issuer for issuer in issuers}
        self._keeper = keeper
        self._now = now
        self._facts: dict[str, _Facts] = {}
        #: When an issuer did not answer last (seconds of the monotonic clock), and what was wrong.
        self._failures: dict[str, tuple[float, str]] = {}
        self._reading = defaultdict[str, asyncio.Lock](asyncio.Lock)
        #: Who tells of access tokens whose they are: there is one Google.
        tellers = (known for known in issuers if known.tokeninfo or known.issuer == GOOGLE)
        self._teller = next(tellers, None)
        #: By their digests, until when it is believed (monotonic clock), and for whom they speak, or why not.
        self._answers: dict[str, tuple[float, Bearer | Unauthenticated | Unavailable]] = {}
        #: Questions for one source wait for each other, so each has one place in the queue for the room.
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._room = asyncio.Semaphore(_MOST_ASKED)
        self.marks = frozenset(
            mark for known in issuers for mark in (known.mark, *map(known.mark_of, known.accounts))
        )

    async def authenticate(self, header: str | None) -> Principal:
        """Return the principal of an `Authorization` header, and count the request's connection as theirs.
        ID tokens, and access tokens of Google's, are taken as they are. Raises Unauthenticated,
        Unavailable."""
        scheme, _, token = (header or "").partition(" ")
        issuer = None
        if self._by_url and scheme.lower() == "bearer":
            if is_json_web_token(token := token.strip()):
                issuer = self._by_url.get(issuer_of(token))
            elif is_access_token(token):
                issuer = self._teller
        if issuer is None:
            principal = self._keeper.authenticate(header)
        else:
            principal = self._keeper.recognise(await self._bearer(token, issuer))
        program = principal.program
        HOLD.get()(program.project if program is not None else principal.email)
        return principal

    async def published(self, issuer: Issuer) -> Mapping[str, Any]:
        """Return what an issuer publishes of itself. Raises Unavailable."""
        return (await self._read(issuer)).published

    async def verified(self, issuer: Issuer, token: str, nonce: str) -> Mapping[str, Any]:
        """Return what the ID token says with which a sign-in ends. Raises Unauthenticated, Unavailable."""
        now = self._seconds()
        return await self._by_keys(
            issuer, lambda facts: verified(token, facts.keys, issuer, now, nonce)
        )

    async def forget(self) -> None:
        """Revoke the tokens of whom issuers have signed in that are not in the settings any more."""
        tokens = self._keeper.book.tokens
        gone = [key for key, t in tokens.items() if t.issuer and t.issuer not in self.marks]
        if gone:
            record = AuditRecord(OWNER_EMAIL, "trainshed.v1.Tokens.Revoke")
            with recording(RecordedCall(self._now(), record)):
                await self._keeper.change(lambda book: book.without_tokens(gone), "", "[[oidc]]")

    async def _bearer(self, token: str, issuer: Issuer) -> Bearer:
        if is_access_token(token):
            bearer = await self._holder(token, issuer)
        else:
            bearer = await self._by_keys(issuer, lambda facts: facts.bearer(token))
        if bearer.expires <= self._seconds():
            raise Unauthenticated("The token has expired: get a new one of the issuer.")
        # Links hold the bearer: what says nothing here would make them long.
        return replace(bearer, groups=self._keeper.book.policy.named(bearer.groups))

    async def _holder(self, token: str, issuer: Issuer) -> Bearer:
        """Return for whom an access token speaks: its issuer is asked, unless it was lately."""
        digest = digest_of(token)
        if not self._is_answered(digest):
            # Who was known before does not wait for strangers who have the same address.
            is_known = digest in self._answers and isinstance(self._answers[digest][1], Bearer)
            whose = digest if is_known else network_of(SOURCE.get())
            own = self._asking.setdefault(whose, asyncio.Lock())
            try:
                async with asyncio.timeout(2 * _TIMEOUT), own, self._room:
                    if not self._is_answered(digest):
                        await self._ask(token, digest, issuer)
            except TimeoutError:
                raise Unavailable(f"{issuer.name} does not answer in time; try again.") from None
        holder = self._answers[digest][1]
        if isinstance(holder, Bearer):
            return holder
        raise type(holder)(str(holder))

    def _is_answered(self, digest: str) -> bool:
        return digest in self._answers and time.monotonic() < self._answers[digest][0]

    async def _ask(self, token: str, digest: str, issuer: Issuer) -> None:
        address = f"{issuer.tokeninfo or _TOKENINFO}?{urlencode({'access_token': token})}"
        refusal = f"{issuer.name} knows no such access token, or it has expired: get a new one."
        try:
            answer = await _fetched(issuer, address, refusal)
            span, holder = _BELIEVED, holder_of(answer, issuer, self._seconds())
        except (Unauthenticated, Unavailable) as error:
            # Its traceback would hold the token.
            span, holder = _ANEW, type(error)(str(error))
        if len(self._answers) >= _MOST_KNOWN:
            # Refusals end soonest, so a flood of them drives out nobody who is known.
            del self._answers[min(self._answers, key=lambda known: self._answers[known][0])]
        self._answers[digest] = time.monotonic() + span, holder

    async def _by_keys(self, issuer: Issuer, read: Callable[[_Facts], T]) -> T:
        """Return what is read with the keys of an issuer, which has new ones now and then."""
        try:
            return read(await self._read(issuer))
        except UnknownKey:
            facts = await self._read(issuer, _ANEW)
        try:
            return read(facts)
        except UnknownKey as error:
            raise Unauthenticated(str(error)) from None

    async def _read(self, issuer: Issuer, age: float = _FRESH) -> _Facts:
        """Return an issuer's facts, read at most `age` seconds ago; older ones if it does not answer. Raises
        Unavailable."""
        # Anybody can have one read for an unknown key: whoever shows a known one does not wait for that, nor
        # for old facts that somebody else has read again.
        reading = self._reading[issuer.name]
        is_old = age == _FRESH and issuer.name in self._facts and reading.locked()
        if self._is_fresh(issuer, age) or is_old:
            return self._facts[issuer.name]
        async with reading:
            if self._is_fresh(issuer, age):
                return self._facts[issuer.name]
            known, now = self._facts.get(issuer.name), time.monotonic()
            # Who does not answer is not waited for again and again: others sign in meanwhile.
            failure = self._failures.get(issuer.name)
            if failure is None or now - failure[0] >= _ANEW:
                try:
                    self._facts[issuer.name] = read = await _read(issuer, self._seconds)
                    return read
                except Unavailable as error:
                    log.warning("%s", error)
                    failure = self._failures[issuer.name] = (time.monotonic(), str(error))
            if known is None:
                raise Unavailable(failure[1])
            return known

    def _is_fresh(self, issuer: Issuer, age: float) -> bool:
        known = self._facts.get(issuer.name)
        return known is not None and time.monotonic() - known.at < age

    def _seconds(self) -> int:
        return self._now() // 10**9


async def _read(issuer: Issuer, now: Callable[[], int]) -> _Facts:
    published = await _fetched(
        issuer, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
    )
    jwks = address_in(published, "jwks_uri", issuer)
    if published.get("issuer") != issuer.issuer or not jwks:
        raise Unavailable(
            f"{issuer.name} publishes no facts of the issuer {issuer.issuer}: see the table [[oidc]] in the "
            "settings."
        )
    keys, faults = signing_keys(await _fetched(issuer, jwks))
    if faults:
        text = "%s publishes %d keys that cannot be read, such as %s"
        log.warning(text, issuer.name, len(faults), faults[0])

    @lru_cache(_MOST_KNOWN)
    def bearer(id_token: str) -> Bearer:
        return bearer_of(id_token, keys, issuer, now())

    return _Facts(published, keys, bearer, time.monotonic())


async def _fetched(
    issuer: Issuer,
    address: str,
    refusal: str | None = None,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """Return the JSON object at an address of an issuer. Raises Unavailable; Unauthenticated with the text
    `refusal` if it refuses what it is sent."""
    try:
        status, content = await _asked(address, form, headers or {})
    except (OSError, NoAnswer, ValueError) as failure:
        why = str(failure) or "no connection in time"
        raise Unavailable(f"{issuer.name} does not answer ({why}); try again later.") from None
    if refusal and status in (400, 401, 403):
        raise Unauthenticated(refusal)
    try:
        answer = json.loads(content) if status == 200 and len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unavailable(f"{issuer.name} answers with {status} and no JSON; try again later.")
    return cast("dict[str, Any]", answer)


async def _asked(address: str, form: bytes | None, more: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the status of an answer, and its content, which is cut off where it is too long. Follows nobody
    elsewhere: a code or a secret may be in the form. Raises OSError, NoAnswer, ValueError."""
    parts = urlsplit(address)
    is_tls = parts.scheme == "https"
    # It reads the authorities that the machine trusts.
    trusted = await asyncio.to_thread(ssl.create_default_context) if is_tls else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Kubernetes has its keys for nobody who accepts JSON alone.
    headers = {"host": parts.netloc, "connection": "close", **more}
    if form is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
        headers["content-length"] = str(len(form))
    lines = [f"{'GET' if form is None else 'POST'} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise ValueError("its documents have signs in addresses or tokens that belong in neither")
    port = parts.port or (443 if is_tls else 80)
    async with asyncio.timeout(_TIMEOUT):
        line = StreamLine(*await asyncio.open_connection(parts.hostname, port, ssl=trusted))
    request = "\r\n".join([*lines, "", ""]).encode() + (form or b"")
    return await answered(line, request, _TIMEOUT, _MOST_BYTES)

"""Authenticates users and machines by ID tokens of OpenID Connect issuers, and by Google's access tokens.
`access.issuers` implements the token formats. This module fetches the published metadata of issuers, also for
additions that sign browsers in."""

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

from trainshed.access.account_tokens import OWNER_EMAIL, is_google_access_token, is_json_web_token
from trainshed.access.authentication_limits import SOURCE, network_of
from trainshed.access.issuers import (
    GOOGLE,
    Issuer,
    UnknownKey,
    address_in,
    bearer_of_access_token,
    bearer_of_id_token,
    issuer_of,
    signing_keys,
    verify,
)
from trainshed.access.principals import Bearer, Principal
from trainshed.access.tokens import digest_of
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.units import Nanos
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.connections import SET_HOLDER
from trainshed.httpd.forwarding import NoResponse, exchange
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.audit import AuditRecord, RecordedCall, recording

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

T = TypeVar("T")
log = logging.getLogger(__name__)

_MAX_CACHED_TOKENS: Final = 4_096
"""Maximum number of cached tokens per issuer. Cached tokens are not verified again."""
_MAX_REQUESTS: Final = 8
"""Maximum number of concurrent requests about access tokens."""
_ANSWER_LIFETIME: Final = 180.0
"""Seconds for which a response about an access token is valid."""
_METADATA_LIFETIME: Final = 3600.0
"""Seconds after which an issuer's published metadata and keys are read again."""
_RETRY_INTERVAL: Final = 30.0
"""Minimum seconds before data of an issuer are read again after an unknown key, which any caller can send, or
after a read that failed."""
_TIMEOUT: Final = 10.0
"""Maximum seconds to connect to an issuer. The same limit applies to receiving its whole response."""
_MAX_ANSWER_BYTES: Final = 1 << 18
_TOKENINFO: Final = "https://oauth2.googleapis.com/tokeninfo"


class _IssuerMetadata(Struct, frozen=True):
    """The published metadata and signing keys of an issuer. `at`: the time of the read (seconds of the
    monotonic clock)."""

    metadata: Mapping[str, Any]
    keys: "KeySet"
    #: Returns the bearer of an ID token, as `bearer_of_id_token` does. Only valid tokens are cached.
    bearer: Callable[[str], Bearer]
    at: float


class Issuers:
    """The issuers of one service (`api.additions.Issuers`)."""

    def __init__(self, issuers: Sequence[Issuer], keeper: AccessKeeper, now: Callable[[], Nanos]) -> None:
        self.fetch_json = _fetch_json
        self.by_name = {issuer.name: issuer for issuer in issuers if issuer.client_id}
        self._by_url = {issuer.issuer: issuer for issuer in issuers}
        self._keeper = keeper
        self._now = now
        self._metadata: dict[str, _IssuerMetadata] = {}
        #: When an issuer last failed to respond (seconds of the monotonic clock), and the reason.
        self._failures: dict[str, tuple[float, str]] = {}
        self._reading = defaultdict[str, asyncio.Lock](asyncio.Lock)
        #: The first issuer that verifies access tokens, such as Google; None = no issuer verifies access
        #: tokens.
        answering = (known for known in issuers if known.tokeninfo or known.issuer == GOOGLE)
        self._token_issuer = next(answering, None)
        #: Responses about access tokens, by digest: the end of their validity (monotonic clock), and the
        #: bearer or the error.
        self._answers: dict[str, tuple[float, Bearer | Unauthenticated | Unavailable]] = {}
        #: One lock per source: requests of one source wait for each other, so each source has at most one
        #: request in progress.
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._room = asyncio.Semaphore(_MAX_REQUESTS)
        self.marks = frozenset(
            mark for known in issuers for mark in (known.mark, *map(known.mark_of, known.accounts))
        )

    async def authenticate(self, header: str | None) -> Principal:
        """Return the principal of an `Authorization` header, and assign the request's connection to the
        principal. ID tokens and Google's access tokens are accepted directly, without an exchange. Raises
        Unauthenticated, Unavailable."""
        scheme, _, token = (header or "").partition(" ")
        issuer = None
        if self._by_url and scheme.lower() == "bearer":
            if is_json_web_token(token := token.strip()):
                issuer = self._by_url.get(issuer_of(token))
            elif is_google_access_token(token):
                issuer = self._token_issuer
        if issuer is None:
            principal = self._keeper.authenticate(header)
        else:
            principal = self._keeper.principal_of(await self._bearer(token, issuer))
        program = principal.program
        SET_HOLDER.get()(program.project if program is not None else principal.email)
        return principal

    async def read_metadata(self, issuer: Issuer) -> Mapping[str, Any]:
        """Return the published metadata of an issuer. Raises Unavailable."""
        return (await self._read(issuer)).metadata

    async def verify_token(self, issuer: Issuer, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token at the end of a sign-in with a browser. Raises Unauthenticated,
        Unavailable."""
        now = self._seconds()
        return await self._call_with_metadata(
            issuer, lambda metadata: verify(token, metadata.keys, issuer, now, nonce)
        )

    async def revoke_removed_issuers(self) -> None:
        """Revoke the tokens of users whose issuers are no longer in the settings."""
        tokens = self._keeper.book.tokens
        gone = [key for key, t in tokens.items() if t.issuer and t.issuer not in self.marks]
        if gone:
            record = AuditRecord(OWNER_EMAIL, "trainshed.v1.Tokens.Revoke")
            with recording(RecordedCall(self._now(), record)):
                await self._keeper.change(lambda book: book.without_tokens(gone), "", "[[oidc]]")

    async def _bearer(self, token: str, issuer: Issuer) -> Bearer:
        if is_google_access_token(token):
            bearer = await self._bearer_of_access_token(token, issuer)
        else:
            bearer = await self._call_with_metadata(issuer, lambda metadata: metadata.bearer(token))
        if bearer.expires <= self._seconds():
            raise Unauthenticated("The token has expired. Get a new one from the issuer.")
        # Keep only groups with roles: links contain the bearer, and unused groups would make them long.
        return replace(bearer, groups=self._keeper.book.policy.groups_with_roles(bearer.groups))

    async def _bearer_of_access_token(self, token: str, issuer: Issuer) -> Bearer:
        """Return the bearer of an access token, from the cache or from the issuer."""
        digest = digest_of(token)
        if not self._is_answered(digest):
            # A known bearer does not wait for unauthenticated callers from the same network.
            is_known = digest in self._answers and isinstance(self._answers[digest][1], Bearer)
            whose = digest if is_known else network_of(SOURCE.get())
            own = self._asking.setdefault(whose, asyncio.Lock())
            try:
                async with asyncio.timeout(2 * _TIMEOUT), own, self._room:
                    if not self._is_answered(digest):
                        await self._ask(token, digest, issuer)
            except TimeoutError:
                raise Unavailable(f"{issuer.name} did not answer in time. Try again.") from None
        holder = self._answers[digest][1]
        if isinstance(holder, Bearer):
            return holder
        raise type(holder)(str(holder))

    def _is_answered(self, digest: str) -> bool:
        return digest in self._answers and time.monotonic() < self._answers[digest][0]

    async def _ask(self, token: str, digest: str, issuer: Issuer) -> None:
        address = f"{issuer.tokeninfo or _TOKENINFO}?{urlencode({'access_token': token})}"
        refusal = f"{issuer.name} rejected this access token: it is unknown or has expired. Get a new one."
        try:
            answer = await _fetch_json(issuer, address, refusal)
            span, holder = _ANSWER_LIFETIME, bearer_of_access_token(answer, issuer, self._seconds())
        except (Unauthenticated, Unavailable) as error:
            # Copied without its traceback, which would contain the token.
            span, holder = _RETRY_INTERVAL, type(error)(str(error))
        if len(self._answers) >= _MAX_CACHED_TOKENS:
            # Errors expire before bearers, so a flood of invalid tokens displaces no known bearer.
            del self._answers[min(self._answers, key=lambda known: self._answers[known][0])]
        self._answers[digest] = time.monotonic() + span, holder

    async def _call_with_metadata(self, issuer: Issuer, read: Callable[[_IssuerMetadata], T]) -> T:
        """Call `read` with the OIDC metadata and the signing keys of an issuer, and return its result. If a
        key is unknown, read the metadata and keys again, because issuers replace keys now and then."""
        try:
            return read(await self._read(issuer))
        except UnknownKey:
            metadata = await self._read(issuer, _RETRY_INTERVAL)
        try:
            return read(metadata)
        except UnknownKey as error:
            raise Unauthenticated(str(error)) from None

    async def _read(self, issuer: Issuer, age: float = _METADATA_LIFETIME) -> _IssuerMetadata:
        """Return an issuer's metadata and keys, at most `age` seconds old. If the issuer does not respond,
        return an older copy. Raises Unavailable if no copy exists."""
        # Any caller can cause a read by sending an unknown key. Callers with a known key wait neither for
        # this read nor for a refresh of old metadata.
        reading = self._reading[issuer.name]
        is_old = age == _METADATA_LIFETIME and issuer.name in self._metadata and reading.locked()
        if self._is_fresh(issuer, age) or is_old:
            return self._metadata[issuer.name]
        async with reading:
            if self._is_fresh(issuer, age):
                return self._metadata[issuer.name]
            known, now = self._metadata.get(issuer.name), time.monotonic()
            # Do not contact an issuer again immediately after it failed to respond. Other issuers are not
            # delayed.
            failure = self._failures.get(issuer.name)
            if failure is None or now - failure[0] >= _RETRY_INTERVAL:
                try:
                    self._metadata[issuer.name] = read = await _read(issuer, self._seconds)
                    return read
                except Unavailable as error:
                    log.warning("%s", error)
                    failure = self._failures[issuer.name] = (time.monotonic(), str(error))
            if known is None:
                raise Unavailable(failure[1])
            return known

    def _is_fresh(self, issuer: Issuer, age: float) -> bool:
        known = self._metadata.get(issuer.name)
        return known is not None and time.monotonic() - known.at < age

    def _seconds(self) -> int:
        return self._now() // 10**9


async def _read(issuer: Issuer, now: Callable[[], int]) -> _IssuerMetadata:
    metadata = await _fetch_json(issuer, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration")
    jwks = address_in(metadata, "jwks_uri", issuer)
    if metadata.get("issuer") != issuer.issuer or not jwks:
        raise Unavailable(
            f"{issuer.name} does not publish data of the issuer {issuer.issuer}: its `issuer` differs, or "
            "its `jwks_uri` is missing. Check the table [[oidc]] in the settings."
        )
    keys, faults = signing_keys(await _fetch_json(issuer, jwks))
    if faults:
        text = "%s publishes %d keys that cannot be read, such as %s"
        log.warning(text, issuer.name, len(faults), faults[0])

    @lru_cache(_MAX_CACHED_TOKENS)
    def bearer(id_token: str) -> Bearer:
        return bearer_of_id_token(id_token, keys, issuer, now())

    return _IssuerMetadata(metadata, keys, bearer, time.monotonic())


async def _fetch_json(
    issuer: Issuer,
    address: str,
    refusal: str | None = None,
    form: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """Return the JSON object at an address of an issuer. Raises Unavailable. Raises Unauthenticated with the
    text `refusal` if the issuer rejects the request."""
    try:
        status, content = await _request(address, form, headers or {})
    except (OSError, NoResponse, ValueError) as failure:
        why = str(failure) or "no connection in time"
        raise Unavailable(f"{issuer.name} does not answer ({why}). Try again later.") from None
    if refusal and status in (400, 401, 403):
        raise Unauthenticated(refusal)
    try:
        answer = json.loads(content) if status == 200 and len(content) <= _MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unavailable(
            f"The response from {issuer.name} has status {status} and is not JSON. Try again later."
        )
    return cast("dict[str, Any]", answer)


async def _request(address: str, form: bytes | None, more: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the status and the content of a response. Content that is too long is cut.

    Redirects are not followed, because the form may contain a code or a secret (SSRF). Raises OSError,
    NoResponse, ValueError.
    """
    parts = urlsplit(address)
    is_tls = parts.scheme == "https"
    # Load the certificate authorities that the machine trusts. Loading blocks, so it runs in a thread.
    trusted = await asyncio.to_thread(ssl.create_default_context) if is_tls else None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # Do not restrict the media type to JSON, because Kubernetes does not return its keys to clients that
    # accept only JSON.
    headers = {"host": parts.netloc, "connection": "close", **more}
    if form is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
        headers["content-length"] = str(len(form))
    lines = [f"{'GET' if form is None else 'POST'} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if not all(line.isascii() and line.isprintable() for line in lines):
        raise ValueError("the address or the token of the request contains invalid characters")
    port = parts.port or (443 if is_tls else 80)
    async with asyncio.timeout(_TIMEOUT):
        line = StreamLine(*await asyncio.open_connection(parts.hostname, port, ssl=trusted))
    request = "\r\n".join([*lines, "", ""]).encode() + (form or b"")
    return await exchange(line, request, _TIMEOUT, _MAX_ANSWER_BYTES)

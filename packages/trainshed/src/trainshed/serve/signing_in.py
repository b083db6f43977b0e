"""Signs people in by OpenID Connect: asks issuers, and gives those whom they recognise a token of this
service (`access.issuers`).

The authorization code flow with PKCE (RFC 7636). Nothing is kept between its two halves: `state` holds what
the second half has to know, signed, and the verifier and the nonce follow from it and a key of the service.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast
from urllib.parse import urlencode, urlsplit
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.account_tokens import OWNER_EMAIL, is_access_token, is_json_web_token
from trainshed.access.book import AccessBook, Token
from trainshed.access.issuers import (
    Issuer,
    SignedIn,
    UnknownKey,
    bearer_of,
    holder_of,
    issuer_of,
    may_name,
    person_of,
    signing_keys,
    verified,
)
from trainshed.access.principals import Bearer, Principal
from trainshed.access.strangers import SOURCE, network_of
from trainshed.access.tokens import digest_of, new_token
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.units import Nanos
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.forwarding import NoAnswer, answered
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.audit import AuditRecord, RecordedCall, recording

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

T = TypeVar("T")
log = logging.getLogger(__name__)

LIFETIME: Final = 12 * 3600
"""Seconds that a sign-in lasts."""
_BEGUN: Final = 600
"""Seconds within which a sign-in is finished at the issuer."""
_MOST: Final = 20
"""Sign-ins of one person at a time; the oldest make place for new ones."""
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
_AUDIENCE: Final = "sign-in"
_GOOGLE: Final = "https://accounts.google.com"
_TOKENINFO: Final = "https://oauth2.googleapis.com/tokeninfo"


class _Facts(Struct, frozen=True):
    """What an issuer publishes of itself, and when it was read (seconds of the monotonic clock). An address
    that it does not have is ""."""

    authorization: str
    token: str
    userinfo: str
    keys: "KeySet"
    #: Returns for whom an ID token speaks, as `bearer_of`. Those that speak for nobody are not remembered.
    bearer: Callable[[str], Bearer]
    at: float


class SigningIn:
    """The sign-in of one service. `key`: known to nobody else. `back`: returns the address to which issuers
    send browsers back."""

    def __init__(
        self,
        issuers: Sequence[Issuer],
        keeper: AccessKeeper,
        key: bytes,
        back: Callable[[], str],
        now: Callable[[], Nanos],
    ) -> None:
        #: Those by which people sign in with a browser, by name.
        self._issuers = {issuer.name: issuer for issuer in issuers if issuer.client_id}
        self._by_url = {issuer.issuer: issuer for issuer in issuers}
        self._keeper = keeper
        self._key = hmac.digest(key, b"sign-in", "sha256")
        self._back = back
        self._now = now
        self._facts: dict[str, _Facts] = {}
        #: When an issuer did not answer last (seconds of the monotonic clock), and what was wrong.
        self._failures: dict[str, tuple[float, str]] = {}
        self._reading = defaultdict[str, asyncio.Lock](asyncio.Lock)
        #: Who tells of access tokens whose they are: there is one Google.
        tellers = (known for known in issuers if known.tokeninfo or known.issuer == _GOOGLE)
        self._teller = next(tellers, None)
        #: By their digests, until when it is believed (monotonic clock), and for whom they speak, or why not.
        self._answers: dict[str, tuple[float, Bearer | Unauthenticated | Unavailable]] = {}
        #: Questions for one source wait for each other, so each has one place in the queue for the room.
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._room = asyncio.Semaphore(_MOST_ASKED)
        self.names = tuple(self._issuers)
        self.marks = frozenset(
            mark for known in issuers for mark in (known.mark, *map(known.mark_of, known.accounts))
        )

    async def begin(self, name: str, following: str, mark: str) -> str:
        """Return the address at an issuer at which a browser signs in. Raises Unauthenticated (there is no
        such issuer), Unavailable."""
        issuer = self._issuers.get(name)
        if issuer is None:
            raise Unauthenticated("There is no such issuer.")
        facts = await self._read(issuer)
        if not facts.authorization:
            raise Unavailable(f"{name} publishes no address at which people sign in.")
        # Dex and others name groups only to who asks; Google and others refuse a scope that they do not know.
        is_asked = issuer.groups_claim == "groups" and issuer.issuer != _GOOGLE
        id_ = secrets.token_urlsafe(16)
        claims = {
            "aud": _AUDIENCE,
            "iss": name,
            "jti": id_,
            "exp": self._seconds() + _BEGUN,
            "next": following[:2000],
            "mark": mark[:100],
        }
        challenge = hashlib.sha256(self._derived(id_, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": issuer.client_id,
            "redirect_uri": self._back(),
            "scope": f"openid email profile{' groups' if is_asked else ''}",
            "state": self._state(claims),
            "nonce": self._derived(id_, "nonce"),
            "code_challenge": _text(challenge),
            "code_challenge_method": "S256",
        }
        return (
            f"{facts.authorization}{'&' if '?' in facts.authorization else '?'}{urlencode(query)}"
        )

    async def finish(self, state: str, code: str, sender: str) -> SignedIn:
        """Sign in somebody whom an issuer sends back. `sender`: which, by what the answer says (RFC 9207), ""
        = nothing; the code of one is shown to no other. Raises Unauthenticated, Unavailable."""
        begun = self._read_state(state)
        issuer = self._issuers.get(str(begun["iss"]))
        if issuer is None:
            raise Unauthenticated("This sign-in was begun with other settings: begin again.")
        if sender not in ("", issuer.issuer):
            raise Unauthenticated(f"{issuer.name} led to another issuer, {sender[:200]!r}.")
        facts = await self._read(issuer)
        id_ = str(begun["jti"])
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._back(),
            "client_id": issuer.client_id,
            "code_verifier": self._derived(id_, "verifier"),
        }
        secret = os.environ.get(issuer.secret_env, "") if issuer.secret_env else ""
        if secret:
            form["client_secret"] = secret
        refusal = f"{issuer.name} refuses this sign-in: begin again."
        answer = await _fetched(issuer, facts.token, refusal, urlencode(form).encode())
        nonce = self._derived(id_, "nonce")
        id_token, now = str(answer.get("id_token", "")), self._seconds()
        claimed = await self._by_keys(
            issuer, lambda facts: verified(id_token, facts.keys, issuer, now, nonce)
        )
        person = person_of(await self._completed(claimed, issuer, answer), issuer)
        shown = await self._store(person, issuer)
        return SignedIn(shown, str(begun["next"]), str(begun["mark"]))

    async def authenticate(self, header: str | None) -> Principal:
        """Return the principal of an `Authorization` header. ID tokens, and access tokens of Google's, are
        taken as they are. Raises Unauthenticated, Unavailable."""
        scheme, _, token = (header or "").partition(" ")
        issuer = None
        if scheme.lower() == "bearer":
            if is_json_web_token(token := token.strip()):
                issuer = self._by_url.get(issuer_of(token))
            elif is_access_token(token):
                issuer = self._teller
        if issuer is None:
            return self._keeper.authenticate(header)
        return self._keeper.recognise(await self._bearer(token, issuer))

    async def forget(self) -> None:
        """Revoke the tokens of whom issuers have signed in that are not in the settings any more."""
        tokens = self._keeper.book.tokens
        gone = [key for key, token in tokens.items() if token.issuer not in ("", *self.marks)]
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

    async def _completed(
        self, claims: Mapping[str, Any], issuer: Issuer, answer: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the claims with those that the issuer keeps out of ID tokens: it tells them to who asks with
        the access token that it gave (OpenID Connect Core 5.3)."""
        facts = await self._read(issuer)
        if {"email", issuer.groups_claim} <= claims.keys() or not facts.userinfo:
            return claims
        headers = {"authorization": f"Bearer {answer.get('access_token', '')}"}
        try:
            more = await _fetched(issuer, facts.userinfo, headers=headers)
        except Unavailable:
            if "email" not in claims:
                raise
            return claims
        # What is told of somebody else is not believed.
        return {**more, **claims} if more.get("sub") == claims.get("sub") else claims

    async def _store(self, person: Bearer, issuer: Issuer) -> str:
        """Store a token for somebody whom an issuer has just signed in, and return its digest."""
        now = self._now()
        made = Token(
            digest_of(new_token()),
            person.email,
            now,
            now + LIFETIME * 10**9,
            f"signed in by {issuer.name}",
            issuer.mark,
            person.groups,
        )

        def signed_in(book: AccessBook) -> AccessBook:
            of_issuers = [entry for entry in book.tokens.values() if entry.issuer]
            over = [entry for entry in of_issuers if entry.expires and entry.expires <= now]
            like = [entry for entry in of_issuers if entry.note == made.note and entry not in over]
            own = [entry for entry in like if entry.email == person.email]
            own.sort(key=lambda entry: -entry.created)
            gone = (*over, *own[_MOST - 1 :])
            return book.without_tokens(entry.digest for entry in gone).with_token(made)

        record = AuditRecord(person.email, "trainshed.v1.Tokens.SignIn")
        with recording(RecordedCall(now, record)):
            await self._keeper.change(signed_in, "", f"token {made.id}", {"by": issuer.name})
        return made.digest

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

    def _state(self, claims: Mapping[str, object]) -> str:
        from joserfc import jwt
        from joserfc.jwk import OctKey

        return jwt.encode({"alg": "HS256"}, dict(claims), OctKey.import_key(self._key))

    def _read_state(self, state: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.jwk import OctKey

        try:
            claims = jwt.decode(state, OctKey.import_key(self._key), algorithms=["HS256"]).claims
        except Exception:
            _begin_again()
        if claims.get("aud") != _AUDIENCE or claims["exp"] < self._seconds():
            _begin_again()
        return claims

    def _derived(self, id_: str, what: str) -> str:
        return _text(hmac.digest(self._key, f"{what} {id_}".encode(), "sha256"))

    def _seconds(self) -> int:
        return self._now() // 10**9


def _begin_again() -> NoReturn:
    raise Unauthenticated("This sign-in is not one of this service, or took too long: begin again.")


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def _read(issuer: Issuer, now: Callable[[], int]) -> _Facts:
    published = await _fetched(
        issuer, f"{issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
    )
    names = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint", "jwks_uri")
    addresses = (str(published.get(name, "")) for name in names)
    authorization, token, userinfo, jwks = (
        text if may_name(issuer, text) else "" for text in addresses
    )
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

    return _Facts(authorization, token, userinfo, keys, bearer, time.monotonic())


async def _fetched(
    issuer: Issuer,
    address: str,
    refusal: str = "",
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

"""Sign-in with OpenID Connect: redirects browsers to issuers, and creates a token of the service for each
user that an issuer authenticates (`access.issuers`).

The flow is the authorization code flow with PKCE (RFC 7636). The service stores nothing between the two
requests of a sign-in: `state` contains the signed claims that the second request needs. The verifier and the
nonce are derived from `state` and a key of the service.
"""

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn
from urllib.parse import quote, unquote, urlencode, urlsplit

from msgspec import Struct

from trainshed.access.book import AccessBook, Token
from trainshed.access.issuers import GOOGLE, Issuer, address_in, user_of
from trainshed.access.principals import Bearer
from trainshed.access.tokens import digest_of, new_token
from trainshed.api.additions import Issuers
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.units import Nanos
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.audit import AuditRecord, RecordedCall, recording
from trainshed_console.sessions import SIGN_IN

LIFETIME: Final = 12 * 3600
"""Seconds until the token of a sign-in expires."""
_SIGN_IN_TIMEOUT: Final = 600
"""Seconds until an unfinished sign-in at an issuer expires."""
_MAX_SIGN_INS: Final = 20
"""Maximum number of tokens from sign-ins per user. A new sign-in replaces the oldest."""
_AUDIENCE: Final = "sign-in"


class SignedIn(Struct, frozen=True):
    """A finished sign-in of a browser."""

    #: The digest of the new token.
    shown: str
    #: The path of the next page.
    following: str
    #: The random mark that the browser sent when it started the sign-in.
    mark: str


class SigningIn:
    """Performs sign-ins of one service. `key`: a secret of the service. `back`: the redirect address that is
    registered at issuers."""

    def __init__(
        self, issuers: Issuers, keeper: AccessKeeper, key: bytes, back: str, now: Callable[[], Nanos]
    ) -> None:
        self._issuers = issuers
        self._keeper = keeper
        self._key = key
        self._back = back
        self._now = now
        #: The names of the issuers.
        self.names = tuple(issuers.by_name)

    async def start(self, name: str, following: str, mark: str) -> str:
        """Return the address of an issuer's sign-in page. Raises Unauthenticated if the issuer is unknown,
        and Unavailable."""
        issuer = self._issuers.by_name.get(name)
        if issuer is None:
            raise Unauthenticated("This service has no such issuer. Select an issuer on the sign-in page.")
        address = await self._address(issuer, "authorization_endpoint")

        # Dex requires the scope `groups` for the claim `groups`. Google rejects unknown scopes.
        needs_groups_scope = issuer.groups_claim == "groups" and issuer.issuer != GOOGLE
        id_ = secrets.token_urlsafe(16)
        claims = {
            "aud": _AUDIENCE,
            "iss": name,
            "jti": id_,
            "exp": self._seconds() + _SIGN_IN_TIMEOUT,
            "next": following[:2000],
            "mark": mark[:100],
        }
        challenge = hashlib.sha256(self._derive(id_, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": issuer.client_id,
            "redirect_uri": await self._redirect(issuer),
            "scope": f"openid email profile{' groups' if needs_groups_scope else ''}",
            "state": self._state(claims),
            "nonce": self._derive(id_, "nonce"),
            "code_challenge": _text(challenge),
            "code_challenge_method": "S256",
        }
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    async def finish(self, state: str, code: str, sender: str, came_to: str) -> SignedIn:
        """Finish a sign-in at an issuer.

        `sender` and `came_to` prevent a mix-up attack, which sends the code of one issuer to another.

        Args:
            state: The signed claims of `start`.
            code: The authorization code.
            sender: The answer's `iss` (RFC 9207), or "".
            came_to: The path of the redirect address.

        Raises:
            Unauthenticated: The sign-in is unknown, too old, or not accepted by the issuer.
            Unavailable: The issuer does not answer.
        """
        claims = self._read_state(state)
        issuer = self._issuers.by_name.get(str(claims["iss"]))
        if issuer is None:
            raise Unauthenticated("The settings of the service changed during this sign-in. Sign in again.")
        back = await self._redirect(issuer)
        names_itself = await self._sends_iss(issuer)
        if sender != issuer.issuer and (sender or names_itself):
            raise Unauthenticated(
                f"The answer to the sign-in at {issuer.name} came from another issuer, {sender[:200]!r}. "
                "Sign in again. If this error repeats, report it to the operator of this service."
            )
        if not unquote(urlsplit(back).path).endswith(came_to):
            raise Unauthenticated(
                f"The answer of {issuer.name} arrived at the address of another issuer. Register {back} at "
                f"{issuer.name} as the redirect address."
            )
        address = await self._address(issuer, "token_endpoint")

        id_ = str(claims["jti"])
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": await self._redirect(issuer),
            "client_id": issuer.client_id,
            "code_verifier": self._derive(id_, "verifier"),
        }
        secret = os.environ.get(issuer.secret_env, "") if issuer.secret_env else ""
        if secret:
            form["client_secret"] = secret
        refusal = f"{issuer.name} rejected this sign-in. Sign in again."
        answer = await self._issuers.fetch_json(issuer, address, refusal, urlencode(form).encode())
        nonce = self._derive(id_, "nonce")
        claimed = await self._issuers.verify_token(issuer, str(answer.get("id_token", "")), nonce)
        person = user_of(await self._add_userinfo_claims(claimed, issuer, answer), issuer)
        shown = await self._store(person, issuer)
        return SignedIn(shown, str(claims["next"]), str(claims["mark"]))

    async def _add_userinfo_claims(
        self, claims: Mapping[str, Any], issuer: Issuer, answer: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the claims of the ID token and of the issuer's userinfo endpoint (OpenID Connect Core
        5.3)."""
        published = await self._issuers.read_metadata(issuer)
        address = address_in(published, "userinfo_endpoint", issuer)
        if {"email", issuer.groups_claim} <= claims.keys() or address is None:
            return claims
        headers = {"authorization": f"Bearer {answer.get('access_token', '')}"}
        try:
            more = await self._issuers.fetch_json(issuer, address, headers=headers)
        except Unavailable:
            if "email" not in claims:
                raise
            return claims
        # Ignore the claims if they are about another subject.
        return {**more, **claims} if more.get("sub") == claims.get("sub") else claims

    async def _sends_iss(self, issuer: Issuer) -> bool:
        """Return whether an issuer includes its name in its responses (RFC 9207)."""
        published = await self._issuers.read_metadata(issuer)
        return published.get("authorization_response_iss_parameter_supported") is True

    async def _redirect(self, issuer: Issuer) -> str:
        """Return the redirect address of an issuer. If the service has several issuers, each issuer whose
        responses do not contain `iss` has its own redirect address."""
        if len(self.names) == 1 or await self._sends_iss(issuer):
            return self._back
        return f"{self._back}/{quote(issuer.name, safe='')}"

    async def _address(self, issuer: Issuer, name: str) -> str:
        """Return the address of an issuer's endpoint called `name`. Raises Unavailable."""
        address = address_in(await self._issuers.read_metadata(issuer), name, issuer)
        if address is None:
            raise Unavailable(
                f"Sign-in with {issuer.name} is not possible: its metadata contains no `{name}`. Check "
                "`issuer` in the table [[oidc]]."
            )
        return address

    async def _store(self, person: Bearer, issuer: Issuer) -> str:
        """Store a new token for an authenticated user, and return the token's digest."""
        now = self._now()
        token = Token(
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
            expired = [entry for entry in of_issuers if entry.expires and entry.expires <= now]
            same_issuer = [entry for entry in of_issuers if entry.note == token.note and entry not in expired]
            own_tokens = [entry for entry in same_issuer if entry.email == person.email]
            own_tokens.sort(key=lambda entry: -entry.created)
            removed = (*expired, *own_tokens[_MAX_SIGN_INS - 1 :])
            return book.without_tokens(entry.digest for entry in removed).with_token(token)

        record = AuditRecord(person.email, SIGN_IN)
        with recording(RecordedCall(now, record)):
            await self._keeper.change(signed_in, "", f"token {token.id}", {"by": issuer.name})
        return token.digest

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
            _reject_sign_in()
        if claims.get("aud") != _AUDIENCE or claims["exp"] < self._seconds():
            _reject_sign_in()
        return claims

    def _derive(self, id_: str, purpose: str) -> str:
        return _text(hmac.digest(self._key, f"{purpose} {id_}".encode(), "sha256"))

    def _seconds(self) -> int:
        return self._now() // 10**9


def _reject_sign_in() -> NoReturn:
    raise Unauthenticated("This sign-in is unknown to this service or took too long. Sign in again.")


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

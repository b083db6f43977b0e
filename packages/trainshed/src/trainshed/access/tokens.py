"""Authenticates callers by their tokens and the current access book.

A user's token is 256 random bits, of which the SHA-256 is stored. Since the token cannot be guessed, a plain
hash is sufficient. A slow password hash would cost more than the request (ADR 7). Other tokens are signed and
not stored: tokens of programs (`job_tokens`), short-lived tokens of service accounts (`account_tokens`) and
ID tokens (`serve.issuers`).
"""

import hashlib
import secrets
from collections.abc import Callable, Collection
from typing import Final

from msgspec.structs import replace

from trainshed.access import account_tokens
from trainshed.access.account_tokens import OWNER_EMAIL
from trainshed.access.book import AccessBook, Token
from trainshed.access.job_tokens import JobClaims, JobTokens, is_job_token
from trainshed.access.permissions import OWNER, PROGRAM, ROLES
from trainshed.access.principals import Bearer, Credential, Principal, Rights
from trainshed.core.errors import Unauthenticated
from trainshed.core.units import Nanos
from trainshed.httpd.hosts import Hosts

_HOW_TO_AUTHENTICATE: Final = (
    "send `Authorization: Bearer TOKEN` with a token that this service issued. gcloud reads the token from "
    "CLOUDSDK_AUTH_ACCESS_TOKEN"
)
_OWNER: Final = Rights(ROLES[OWNER])


class TokenAuthority:
    """Authenticates tokens. Its methods are thread-safe and never block."""

    def __init__(
        self, book: AccessBook, owner: str, now: Callable[[], int], jobs: JobTokens | None = None
    ) -> None:
        """`owner`: the digest of the token of the service's owner. `now`: returns nanoseconds since the
        epoch. `jobs`: verifies tokens of programs and service accounts; None = they are rejected."""
        self._owner = owner
        self._now = now
        self._jobs = jobs
        self._has_ended: Callable[[JobClaims], bool] = lambda _: False
        #: Whether callers without a valid token have the rights of the service's owner.
        self.is_open = False
        #: The hosts of this service. Self-signed tokens must be for one of them.
        self.hosts = Hosts()
        #: The identities of the issuers whose ID tokens are accepted.
        self.issuers: Collection[str] = ()
        #: Called at each use of a stored token, with the token's digest.
        self.on_use: Callable[[str], object] = lambda _: None
        #: Returns the credential of a browser session by the session's digest; None = the session does not
        #: exist.
        self.sessions: Callable[[str], Credential | None] = lambda _: None
        #: Called when the rights of a principal may have changed.
        self.on_change: Callable[[], object] = lambda: None
        self.replace(book)

    def replace(self, book: AccessBook) -> None:
        """Use this book for all later decisions."""
        self.book = book
        self.on_change()

    def refuse(self, has_ended: Callable[[JobClaims], bool]) -> None:
        """Reject the tokens of programs that have ended. `has_ended` is called at each use of a token and
        must not block. Without this call, tokens of ended programs remain valid until they expire within an
        hour."""
        self._has_ended = has_ended

    def authenticate(self, header: str | None) -> Principal:
        """Return the principal of an `Authorization` header. Raises Unauthenticated if the header or its
        token is not valid. If the header is malformed, the message describes the valid form."""
        try:
            return self._authenticate(header)
        except Unauthenticated:
            if self.is_open:
                return Principal(OWNER_EMAIL, _OWNER, self._owner)
            raise

    def _authenticate(self, header: str | None) -> Principal:
        token = token_in(header)
        if (principal := self.principal_of_digest(digest_of(token))) is not None:
            return principal
        if self._jobs is not None and is_job_token(token):
            return self._program(self._jobs, token)
        if self._jobs is not None and account_tokens.is_json_web_token(token):
            secret, seconds = self._jobs.account_secret, self._now() // 10**9
            bearer = account_tokens.read(token, secret, self.book, seconds, self.hosts)
            return self.principal_of(bearer)
        raise Unauthenticated(f"The access token is not known to this service: {_HOW_TO_AUTHENTICATE}.")

    def principal_of_digest(self, digest: str) -> Principal | None:
        """Return the principal of the token with this SHA-256 (hexadecimal digits); None if the token is
        unknown or has expired."""
        if digest == self._owner:
            return Principal(OWNER_EMAIL, _OWNER, digest)
        token = self.book.tokens.get(digest)
        if token is None or (token.expires is not None and token.expires <= self._now()):
            return None
        if (account := self.book.accounts.get(token.email)) is not None and account.disabled:
            return None
        self.on_use(digest)
        return Principal(token.email, self.book.policy.rights(token.email, token.groups), digest)

    def current_principal(self, credential: Credential) -> Principal | None:
        """Return the current principal of a credential from an earlier request; None if the credential is no
        longer valid."""
        if isinstance(credential, str):
            if (principal := self.principal_of_digest(credential)) is not None:
                return principal
            origin = self.sessions(credential)
            principal = self.current_principal(origin) if origin is not None else None
            return replace(principal, credential=credential) if principal else None
        if credential.expires <= self._now() // 10**9:
            return None
        try:
            return self.principal_of(credential)
        except Unauthenticated:
            return None

    def is_valid(self, principal: Principal) -> bool:
        """Return whether the principal's credential is still valid and its rights are unchanged. A program
        must also be running, and its service account must exist and be enabled."""
        if principal.program is None:
            credential = principal.credential
            return credential is None or self.current_principal(credential) == principal
        try:
            account_tokens.check_program(principal.program, self.book)
        except Unauthenticated:
            return False
        return not self._has_ended(principal.program)

    def revalidate(self, principal: Principal) -> None:
        """Raise Unauthenticated unless `is_valid` is true. A long request calls this before it changes
        anything, since the caller may have lost the permission in the meantime."""
        if not self.is_valid(principal):
            raise Unauthenticated(
                "The token was revoked, or its rights changed, after this request started. If you still have "
                "the permission, send the request again."
            )

    def origin_of(self, principal: Principal) -> Token | Bearer | None:
        """Return the stored token or the `Bearer` of a principal. For a browser session, return the token or
        `Bearer` with which the user signed in. Return None for programs, the owner, and credentials that are
        no longer valid."""
        credential = principal.credential
        tokens = self.book.tokens
        if isinstance(credential, str) and credential != self._owner and credential not in tokens:
            credential = self.sessions(credential)
        return tokens.get(credential) if isinstance(credential, str) else credential

    def expiry_of(self, principal: Principal) -> Nanos | None:
        """Return the expiry time of a principal's credential, or None if it does not expire."""
        origin = self.origin_of(principal)
        if isinstance(origin, Bearer):
            return Nanos(origin.expires * 10**9)
        return origin.expires if origin is not None else None

    def read_assertion(self, assertion: str) -> Bearer:
        """Return the identity of the account that signed an assertion. Raises Unauthenticated if the
        assertion or the account is not valid."""
        seconds = self._now() // 10**9
        return account_tokens.read_assertion(assertion, self.book, seconds, self.hosts)

    def mint(self, bearer: Bearer, lifetime: int) -> str:
        """Return an access token of a service account with this lifetime in seconds."""
        assert self._jobs is not None, "no signing key"
        now = self._now() // 10**9
        return account_tokens.mint(self._jobs.account_secret, bearer, now, lifetime)

    def digests(self) -> list[str]:
        return [self._owner, *self.book.tokens]

    def principal_of(self, bearer: Bearer) -> Principal:
        """Return the current principal with the identity in `bearer`. Raises Unauthenticated if the account,
        key or sign-in of the identity is no longer valid."""
        if bearer.issuer and bearer.issuer not in self.issuers:
            raise Unauthenticated(
                f"The issuer {bearer.issuer} of this token is no longer in the service's settings. Sign in "
                "again."
            )
        account_tokens.check(bearer, self.book)
        rights = self.book.policy.rights(bearer.email, bearer.groups)
        return Principal(bearer.email, rights, bearer)

    def _program(self, jobs: JobTokens, token: str) -> Principal:
        claims = jobs.read(token)
        if claims is None:
            raise Unauthenticated(
                "The access token of a job has expired, or was not issued by this service. Request a new "
                "token from the metadata endpoint of the replica, as Google's client libraries do."
            )
        if self._has_ended(claims):
            raise Unauthenticated(
                f"The access token belongs to {claims.replica} in attempt {claims.attempt} of the job "
                f"{claims.job_uid}, which has ended. Use your own token."
            )
        account_tokens.check_program(claims, self.book)
        return program(claims)


def token_in(header: str | None) -> str:
    """Return the token in an `Authorization` header. Raises Unauthenticated if the header is missing or
    malformed. The message describes the valid form."""
    if not header:
        raise Unauthenticated(f"The request has no credentials: {_HOW_TO_AUTHENTICATE}.")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated(f"The scheme {scheme!r} is not supported: {_HOW_TO_AUTHENTICATE}.")
    return token.strip()


def program(claims: JobClaims) -> Principal:
    return Principal(claims.email, Rights(projects={claims.project: PROGRAM}), program=claims)


def new_token() -> str:
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()

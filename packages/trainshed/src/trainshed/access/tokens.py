"""Authenticates callers by their tokens, with the current access book.

A user's token is 256 random bits and is stored as its SHA-256. It cannot be guessed, so a plain hash is
enough; a slow password hash would cost more than the request (ADR 7). Tokens of programs (`job_tokens`),
short-lived tokens of service accounts and ID tokens (`serve.issuers`) are signed and not stored.
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
    "send `Authorization: Bearer TOKEN` with a token that this service issued. gcloud reads it from "
    "CLOUDSDK_AUTH_ACCESS_TOKEN"
)
_OWNER: Final = Rights(ROLES[OWNER])


class TokenAuthority:
    """Authenticates tokens. Reads are thread-safe and never block."""

    def __init__(
        self, book: AccessBook, owner: str, now: Callable[[], int], jobs: JobTokens | None = None
    ) -> None:
        """`owner`: the digest of the owner's token. `now` returns nanoseconds since the epoch. `jobs`: also
        accept tokens of programs."""
        self._owner = owner
        self._now = now
        self._jobs = jobs
        self._has_ended: Callable[[JobClaims], bool] = lambda _: False
        #: Callers without a valid token have the owner's rights.
        self.is_open = False
        #: The host names in accepted audiences of self-signed tokens.
        self.hosts = Hosts()
        #: The marks of the issuers whose ID tokens are accepted.
        self.issuers: Collection[str] = ()
        #: Called with the digest of each stored token at its use.
        self.on_use: Callable[[str], object] = lambda _: None
        #: Returns the credential behind a browser session, by the session's digest; None = no such session.
        self.sessions: Callable[[str], Credential | None] = lambda _: None
        #: Called when the rights of a principal may have changed.
        self.on_change: Callable[[], object] = lambda: None
        self.replace(book)

    def replace(self, book: AccessBook) -> None:
        """Use this book for all later decisions."""
        self.book = book
        self.on_change()

    def refuse(self, has_ended: Callable[[JobClaims], bool]) -> None:
        """Reject the tokens of ended programs from now on. `has_ended` is called for each token and must not
        block. Without it, such a token expires within an hour."""
        self._has_ended = has_ended

    def authenticate(self, header: str | None) -> Principal:
        """Return the principal of an `Authorization` header. Raises Unauthenticated with the accepted
        form."""
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
        raise Unauthenticated(
            f"The access token is not known to this service: {_HOW_TO_AUTHENTICATE}."
        )

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
        """Return the principal of an earlier credential as of now; None if the credential is no longer
        valid."""
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
        """Whether the principal's credential is still valid and its rights have not changed. A program must
        also be running, as an existing and enabled account."""
        if principal.program is None:
            credential = principal.credential
            return credential is None or self.current_principal(credential) == principal
        try:
            account_tokens.check_program(principal.program, self.book)
        except Unauthenticated:
            return False
        return not self._has_ended(principal.program)

    def revalidate(self, principal: Principal) -> None:
        """Raise Unauthenticated unless `is_valid`. A long request calls it before it takes effect, since the
        caller may have lost the right since the start."""
        if not self.is_valid(principal):
            raise Unauthenticated(
                "The token was revoked, or its rights have changed, since this request began. Send it again "
                "if you still have the permission."
            )

    def origin_of(self, principal: Principal) -> Token | Bearer | None:
        """Return the token or bearer behind a principal; in a browser, the one of the sign-in. None for
        programs, the owner, and credentials that are no longer valid."""
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
        """Return the account of an assertion. Raises Unauthenticated."""
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
        """Return the current principal of a bearer. Raises Unauthenticated if the account, key or sign-in
        behind it is no longer valid."""
        if bearer.issuer and bearer.issuer not in self.issuers:
            raise Unauthenticated(
                f"Sign-in by {bearer.issuer} is no longer configured. Sign in again."
            )
        account_tokens.check(bearer, self.book)
        rights = self.book.policy.rights(bearer.email, bearer.groups)
        return Principal(bearer.email, rights, bearer)

    def _program(self, jobs: JobTokens, token: str) -> Principal:
        claims = jobs.read(token)
        if claims is None:
            raise Unauthenticated(
                "The access token of a job is not one of this service, or has expired. Request a new one "
                "from the metadata endpoint of the replica, as Google's client libraries do."
            )
        if self._has_ended(claims):
            raise Unauthenticated(
                f"The access token belongs to {claims.replica} in attempt {claims.attempt} of the job "
                f"{claims.job_uid}, which has ended. Use a token of your own."
            )
        account_tokens.check_program(claims, self.book)
        return program(claims)


def token_in(header: str | None) -> str:
    """Return the token in an `Authorization` header. Raises Unauthenticated with the accepted form."""
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

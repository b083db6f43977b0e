"""Recognises who sends a token, from the access book of the moment.

A person's token is 256 random bits, stored as its SHA-256: it cannot be guessed, so a plain hash is enough,
and a slow password hash would cost more than the request (ADR 7). Tokens of programs and the short-lived ones
of service accounts are signed and stored nowhere (`job_tokens`), nor are ID tokens (`serve.issuers`).
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
from trainshed.access.principals import Bearer, Principal, Rights, Shown
from trainshed.core.errors import Unauthenticated
from trainshed.core.units import Nanos
from trainshed.httpd.hosts import Hosts

_HOW: Final = (
    "send `Authorization: Bearer TOKEN` with a token that this service issued; gcloud takes it from "
    "CLOUDSDK_AUTH_ACCESS_TOKEN"
)
_OWNER: Final = Rights(ROLES[OWNER])


class TokenAuthority:
    """Recognises tokens. Reads are thread-safe and never wait."""

    def __init__(
        self, book: AccessBook, owner: str, now: Callable[[], int], jobs: JobTokens | None = None
    ) -> None:
        """`owner`: the digest of the owner's token. `now` gives nanoseconds since the epoch. With `jobs`,
        tokens of programs are recognised, too."""
        self._owner = owner
        self._now = now
        self._jobs = jobs
        self._is_over: Callable[[JobClaims], bool] = lambda _: False
        #: Whoever shows no token that is known is taken for the owner.
        self.is_open = False
        #: The hosts for which accounts may have signed.
        self.hosts = Hosts()
        #: The marks of the issuers whose ID tokens are taken.
        self.issuers: Collection[str] = ()
        #: Called with the digest of each token of the book that is shown.
        self.used: Callable[[str], object] = lambda _: None
        #: Returns what was shown for a browser's session, by its digest; None if there is no such session.
        self.sessions: Callable[[str], Shown | None] = lambda _: None
        #: Called when somebody may have other rights than before.
        self.moved: Callable[[], object] = lambda: None
        self.replace(book)

    def replace(self, book: AccessBook) -> None:
        """From now on decide by another book."""
        self.book = book
        self.moved()

    def refuse(self, is_over: Callable[[JobClaims], bool]) -> None:
        """From now on, refuse the tokens of programs that have ended. `is_over` is asked about each one, and
        must answer at once. Without it such a token expires within the hour."""
        self._is_over = is_over

    def authenticate(self, header: str | None) -> Principal:
        """Returns the principal of an `Authorization` header. Raises Unauthenticated, which says what to
        send."""
        try:
            return self._shown(header)
        except Unauthenticated:
            if self.is_open:
                return Principal(OWNER_EMAIL, _OWNER, self._owner)
            raise

    def _shown(self, header: str | None) -> Principal:
        token = token_in(header)
        if (principal := self.holder(digest_of(token))) is not None:
            return principal
        if self._jobs is not None and is_job_token(token):
            return self._program(self._jobs, token)
        if self._jobs is not None and account_tokens.is_json_web_token(token):
            secret, seconds = self._jobs.account_secret, self._now() // 10**9
            bearer = account_tokens.read(token, secret, self.book, seconds, self.hosts)
            return self.recognise(bearer)
        raise Unauthenticated(f"The access token is not known here: {_HOW}.")

    def holder(self, digest: str) -> Principal | None:
        """Returns for whom the token with this SHA-256 (hexadecimal digits) speaks; None if it is not known,
        or has expired."""
        if digest == self._owner:
            return Principal(OWNER_EMAIL, _OWNER, digest)
        token = self.book.tokens.get(digest)
        if token is None or (token.expires is not None and token.expires <= self._now()):
            return None
        if (account := self.book.accounts.get(token.email)) is not None and account.disabled:
            return None
        self.used(digest)
        return Principal(token.email, self.book.policy.rights(token.email, token.groups), digest)

    def known(self, shown: Shown) -> Principal | None:
        """Returns for whom speaks what was shown once, as of now; None if it is not good any more."""
        if isinstance(shown, str):
            if (holder := self.holder(shown)) is not None:
                return holder
            before = self.sessions(shown)
            holder = self.known(before) if before is not None else None
            return replace(holder, shown=shown) if holder else None
        if shown.expires <= self._now() // 10**9:
            return None
        try:
            return self.recognise(shown)
        except Unauthenticated:
            return None

    def vouches(self, principal: Principal) -> bool:
        """Whether what somebody has shown is still good, for the same rights; of a program, whether the
        account is that it runs as, and it runs."""
        if principal.program is None:
            return principal.shown is None or self.known(principal.shown) == principal
        try:
            account_tokens.check_program(principal.program, self.book)
        except Unauthenticated:
            return False
        return not self._is_over(principal.program)

    def renew(self, principal: Principal) -> None:
        """Raise Unauthenticated if `vouches` says no: a request may last, and what it does is not done any
        more by who has lost the right meanwhile."""
        if not self.vouches(principal):
            raise Unauthenticated(
                "The token was revoked, or its rights have changed, since this request began: send it again "
                "if you still may."
            )

    def voucher(self, principal: Principal) -> Token | Bearer | None:
        """Return what vouches for somebody, in a browser what they signed in with; None for programs and the
        owner, and what does not any more."""
        shown = principal.shown
        if isinstance(shown, str) and shown != self._owner and shown not in self.book.tokens:
            shown = self.sessions(shown)
        return self.book.tokens.get(shown) if isinstance(shown, str) else shown

    def ends(self, principal: Principal) -> Nanos | None:
        """Return when what somebody has shown ends by itself; None = it does not."""
        voucher = self.voucher(principal)
        if isinstance(voucher, Bearer):
            return Nanos(voucher.expires * 10**9)
        return voucher.expires if voucher is not None else None

    def asserted(self, assertion: str) -> Bearer:
        """Return for which account an assertion speaks. Raises Unauthenticated."""
        return account_tokens.asserted(assertion, self.book, self._now() // 10**9, self.hosts)

    def mint(self, bearer: Bearer, lifetime: int) -> str:
        """Returns an access token of a service account that is valid for so many seconds."""
        assert self._jobs is not None, "without a key nothing is signed"
        now = self._now() // 10**9
        return account_tokens.mint(self._jobs.account_secret, bearer, now, lifetime)

    def digests(self) -> list[str]:
        return [self._owner, *self.book.tokens]

    def recognise(self, bearer: Bearer) -> Principal:
        """Return who a bearer is now. Raises Unauthenticated if what vouched for it does not any more."""
        if bearer.issuer and bearer.issuer not in self.issuers:
            raise Unauthenticated(f"{bearer.issuer} signs nobody in here any more.")
        account_tokens.check(bearer, self.book)
        rights = self.book.policy.rights(bearer.email, bearer.groups)
        return Principal(bearer.email, rights, bearer)

    def _program(self, jobs: JobTokens, token: str) -> Principal:
        claims = jobs.read(token)
        if claims is None:
            raise Unauthenticated(
                "The access token of a job is not one of this service, or has expired: ask the metadata "
                "endpoint of the replica for a new one, as Google's client libraries do by themselves."
            )
        if self._is_over(claims):
            raise Unauthenticated(
                f"The access token is that of {claims.replica} in attempt {claims.attempt} of the job "
                f"{claims.job_uid}, which is over: use a token of your own."
            )
        account_tokens.check_program(claims, self.book)
        return program(claims)


def token_in(header: str | None) -> str:
    """Returns the token in an `Authorization` header. Raises Unauthenticated, which says what to send."""
    if not header:
        raise Unauthenticated(f"The request has no credentials: {_HOW}.")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated(f"Credentials of the kind {scheme!r} are not served: {_HOW}.")
    return token.strip()


def program(claims: JobClaims) -> Principal:
    return Principal(claims.email, Rights(projects={claims.project: PROGRAM}), program=claims)


def new_token() -> str:
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()

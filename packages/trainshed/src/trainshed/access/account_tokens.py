"""Tokens of service accounts: JSON Web Tokens that live for an hour at most and are stored nowhere.

A key of an account is made here and its private half is shown once. Whoever has that half signs an assertion,
which is exchanged for an access token (RFC 7523), or a token for the request itself, as Google's newer
libraries do (AIP-4111). Access tokens are signed by the service. The access book is asked at each use, so
what it no longer holds ends at once.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from trainshed.access.book import AccessBook, AccountKey
from trainshed.access.job_tokens import ISSUER, JobClaims
from trainshed.access.principals import Bearer
from trainshed.core.errors import Unauthenticated
from trainshed.core.names import normalize_email
from trainshed.httpd.hosts import Hosts

if TYPE_CHECKING:
    from joserfc.jwt import ClaimsOption

LIFETIME: Final = 3_600
"""Most seconds that a token is valid, as on the public service."""
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
OWNER_EMAIL: Final = "owner@trainshed.local"
"""Whoever has the token in `owner.token`, which only those can read who may read the data directory."""
GET_ACCESS_TOKEN: Final = "iam.serviceAccounts.getAccessToken"

SKEW: Final = 60
"""Seconds by which the clock of whoever signed may differ."""
_FAR: Final = 1 << 40
"""Seconds since the epoch that no clock will show."""
_KEY_BITS: Final = 2_048
# With the first characters of every JSON object in base64: `{"`.
_FORM: Final = re.compile(r"eyJ[\w-]*(?:\.[\w-]*){2}", re.ASCII)
_GOOGLES: Final = re.compile(r"ya29\.[\w.-]{1,2048}", re.ASCII)
_UNKNOWN: Final = (
    "The token is signed by no key of this service or of a service account here, nor by an issuer of the "
    "settings, or the key was deleted: `gcloud iam service-accounts keys list` shows those that there are."
)


def is_json_web_token(token: str) -> bool:
    """Whether the text has the form of one; nothing is verified."""
    return _FORM.fullmatch(token) is not None


def is_access_token(token: str) -> bool:
    """Whether the text has the form of an access token of Google's: no other is shown to anybody else."""
    return _GOOGLES.fullmatch(token) is not None


def new_key() -> tuple[str, str]:
    """Return the public half of a new RSA key, and its private one, in PEM (PKCS #8). Takes 0.1 s of a
    processor."""
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(_KEY_BITS)
    return key.as_pem(private=False).decode(), key.as_pem(private=True).decode()


def mint(secret: bytes, bearer: Bearer, now: int, lifetime: int = LIFETIME) -> str:
    """Return an access token. `now`: seconds since the epoch; `secret`: the service's own."""
    from joserfc import jwt
    from joserfc.jwk import OctKey

    claims = {
        "iss": ISSUER,
        "sub": bearer.email,
        "key": bearer.key,
        "by": bearer.by,
        "groups": bearer.by_groups,
        "iat": now,
        "exp": now + lifetime,
    }
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(secret))


def read(token: str, secret: bytes, book: AccessBook, now: int, hosts: Hosts) -> Bearer:
    """Return for whom a token speaks, which the service or a key of the account has signed for one of
    `hosts`. Raises Unauthenticated, which says why it is refused."""
    header = _header(token)
    if header.get("alg") != "HS256":
        return _self_signed(token, header, book, now, hosts)
    claims = _claims(token, secret, "HS256")
    check_claims(claims, now, 0)
    sub, key, by, exp, iat = (claims[name] for name in ("sub", "key", "by", "exp", "iat"))
    return Bearer(sub, key, by, exp, issued=iat, by_groups=tuple(claims.get("groups", ())))


def asserted(assertion: str, book: AccessBook, now: int, hosts: Hosts) -> Bearer:
    """Return for which account an assertion of RFC 7523 speaks. Raises Unauthenticated."""
    bearer = _self_signed(assertion, _header(assertion), book, now, hosts)
    check(bearer, book)
    return bearer


def check(bearer: Bearer, book: AccessBook) -> None:
    """Raise Unauthenticated if the book does not hold any more what a token was made by."""
    borrower = bearer.borrower
    out = book.signed_out.get(normalize_email(borrower or bearer.email))
    wait = 1 if borrower else SKEW
    if (borrower or bearer.issuer) and out is not None and bearer.issued <= out.at / 1e9 + wait:
        raise Unauthenticated(
            f"The tokens of {out.email} were revoked after this one was issued: get a new one, "
            f"{wait} s after that at the earliest."
        )
    if bearer.issuer and not bearer.by:
        return
    account = book.accounts.get(bearer.email)
    is_former = account is not None and bearer.issued < account.created // 10**9
    if account is None or account.disabled or (borrower and is_former):
        raise Unauthenticated(f"The service account {bearer.email} was deleted, or is disabled.")
    if bearer.key and bearer.key not in book.keys:
        raise Unauthenticated(
            f"The key of {bearer.by or bearer.email} by which this token was obtained was deleted."
        )
    if not borrower or borrower == OWNER_EMAIL:
        return
    rights = book.policy.rights(borrower, bearer.by_groups).within(account.project)
    speaker = book.accounts.get(borrower)
    if GET_ACCESS_TOKEN not in rights or (speaker is not None and speaker.disabled):
        raise Unauthenticated(f"{borrower} may not speak for {bearer.email} any more.")


def check_program(claims: JobClaims, book: AccessBook) -> None:
    """Raise Unauthenticated if the service account as which a program runs is disabled, or was deleted."""
    if lost := what_became(claims.email, claims.made, book):
        raise Unauthenticated(
            f"The service account {claims.email}, as which this job runs, {lost}: have it enabled, or run "
            "the job as another."
        )


def what_became(email: str, made: int | None, book: AccessBook) -> str | None:
    """Return why a job may not run as a service account; None if it may. `made`: when the job was made, in
    milliseconds since the epoch; None = now."""
    account, out = book.accounts.get(email), book.signed_out.get(email)
    if account is not None and account.disabled:
        return "is disabled"
    deleted = out.deleted if out is not None else None
    is_former = account is None or (made is not None and made <= (deleted or 0) // 10**6)
    return "was deleted" if deleted is not None and is_former else None


def _self_signed(
    token: str, header: Mapping[str, Any], book: AccessBook, now: int, hosts: Hosts
) -> Bearer:
    key: AccountKey | None = book.keys.get(str(header.get("kid", "")))
    claims = _claims(token, key.public.encode(), "RS256") if key else dict[str, Any]()
    # An assertion need not say for whom it is; nobody but the account itself is meant.
    issuer = claims.get("iss")
    if key is None or issuer != key.email or claims.get("sub", issuer) != key.email:
        raise Unauthenticated(_UNKNOWN)
    check_claims(claims, now, SKEW)
    if claims["exp"] - claims["iat"] > LIFETIME:
        raise Unauthenticated(
            f"The token is signed for {claims['exp'] - claims['iat']} s: sign one for at most {LIFETIME} s."
        )
    if not (claims.get("aud") or claims.get("scope")):
        raise Unauthenticated("The token names neither an audience (`aud`) nor a `scope`.")
    _check_audience(claims.get("aud"), hosts, key.host)
    return Bearer(key.email, key.id, expires=int(claims["exp"]))


def _check_audience(audience: object, hosts: Hosts, called: str | None) -> None:
    """Raise Unauthenticated if a token has audiences, URLs, and none of them is one of `hosts`. `called`: by
    whoever made the key."""
    listed = cast("list[object]", audience) if isinstance(audience, list) else [audience]
    urls = [str(url) for url in listed]
    netlocs = (url.partition("://")[2].partition("/")[0] for url in urls)
    if audience and not any(hosts.owns(netloc, called) for netloc in netlocs):
        raise Unauthenticated(
            f"The token is meant for {', '.join(urls)[:200]!r}, and this service is not known by that name: "
            "sign one for the address that is called, or as Google's libraries do by themselves; if it is "
            "its own, have it in the setting allowed_hosts."
        )


def check_claims(claims: Mapping[str, Any], now: int, leeway: int, **more: "ClaimsOption") -> None:
    """Raise Unauthenticated for a token that is not valid at `now`, in seconds since the epoch. `more`: what
    else its claims have to say."""
    from joserfc.errors import JoseError
    from joserfc.jwt import JWTClaimsRegistry

    registry = JWTClaimsRegistry(
        lambda: now, leeway, exp={"essential": True}, iat={"essential": True}, **more
    )
    try:
        registry.validate(dict(claims))
        are_times = all(abs(claims[name]) < _FAR for name in ("exp", "iat"))
        wrong = None if are_times else "it says when in numbers that are no times"
    except JoseError as error:
        wrong = error.description or str(error.error)
    if wrong:
        raise Unauthenticated(
            f"The token is not valid now: {wrong}. Get a new one; if the clocks of two machines differ, set "
            "them."
        )


@lru_cache(4_096)
def _claims(token: str, key: bytes, algorithm: str) -> Mapping[str, Any]:
    """Return the claims of a token that this key has signed by this algorithm. Raises Unauthenticated for any
    other, of which nothing is remembered: there may be thousands."""
    from joserfc import jwt
    from joserfc.jwk import OctKey, RSAKey

    own = OctKey.import_key(key) if algorithm == "HS256" else RSAKey.import_key(key)
    try:
        return jwt.decode(token, own, algorithms=[algorithm]).claims
    except Exception:  # A stranger wrote it: a header that is odd or deep raises what it likes.
        raise Unauthenticated(_UNKNOWN) from None


def _header(token: str) -> Mapping[str, Any]:
    """Return a token's header, of which nothing is verified. Raises Unauthenticated."""
    from joserfc import jws

    try:
        return jws.extract_compact(token.encode()).headers()
    except Exception:
        raise Unauthenticated("The token is no JSON Web Token.") from None

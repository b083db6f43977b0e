"""Tokens of service accounts: JSON Web Tokens with a lifetime of at most one hour. No token is stored.

The service creates the key pair of an account and shows the private half once. Its holder signs an assertion
and exchanges it for an access token (RFC 7523), or signs a token per request, as Google's newer libraries do
(AIP-4111). The service signs access tokens. Each use is checked against the access book, so a deletion takes
effect at once.
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
"""Maximum lifetime of a token in seconds, as on the public service."""
GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
OWNER_EMAIL: Final = "owner@trainshed.local"
"""Identity of the token in `owner.token`. Only users with access to the data directory can read that file."""
GET_ACCESS_TOKEN: Final = "iam.serviceAccounts.getAccessToken"

MAX_CLOCK_SKEW: Final = 60
"""Maximum difference between the clocks of the signer and the service, in seconds."""
_MAX_TIME: Final = 1 << 40
"""Upper limit of times in claims, in seconds since the epoch."""
_KEY_BITS: Final = 2_048
# Starts with the base64 form of `{"`, the first characters of every JSON object.
_JWT_PATTERN: Final = re.compile(r"eyJ[\w-]*(?:\.[\w-]*){2}", re.ASCII)
_GOOGLE_TOKEN_PATTERN: Final = re.compile(r"ya29\.[\w.-]{1,2048}", re.ASCII)
_UNKNOWN: Final = (
    "The token is signed by no key of this service, of its service accounts, or of an issuer in the "
    "settings, or the key was deleted. `gcloud iam service-accounts keys list` lists the existing keys."
)


def is_json_web_token(token: str) -> bool:
    """Whether the text has the form of a JSON Web Token. Nothing is verified."""
    return _JWT_PATTERN.fullmatch(token) is not None


def is_google_access_token(token: str) -> bool:
    """Whether the text has the form of a Google access token. Only these are sent to another service."""
    return _GOOGLE_TOKEN_PATTERN.fullmatch(token) is not None


def new_key() -> tuple[str, str]:
    """Return a new RSA key pair as (public, private) in PEM (PKCS #8). Uses 0.1 s of CPU time."""
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(_KEY_BITS)
    return key.as_pem(private=False).decode(), key.as_pem(private=True).decode()


def mint(secret: bytes, bearer: Bearer, now: int, lifetime: int = LIFETIME) -> str:
    """Return an access token. `now`: seconds since the epoch; `secret`: the service's signing key."""
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
    """Return the bearer of a token for one of `hosts`. The service or an account's key must have signed it.
    Raises Unauthenticated with the reason."""
    header = _header(token)
    if header.get("alg") != "HS256":
        return _self_signed(token, header, book, now, hosts)
    claims = _claims(token, secret, "HS256")
    check_claims(claims, now, 0)
    sub, key, by, exp, iat = (claims[name] for name in ("sub", "key", "by", "exp", "iat"))
    return Bearer(sub, key, by, exp, issued=iat, by_groups=tuple(claims.get("groups", ())))


def read_assertion(assertion: str, book: AccessBook, now: int, hosts: Hosts) -> Bearer:
    """Return the account of an RFC 7523 assertion. Raises Unauthenticated."""
    bearer = _self_signed(assertion, _header(assertion), book, now, hosts)
    check(bearer, book)
    return bearer


def check(bearer: Bearer, book: AccessBook) -> None:
    """Raise Unauthenticated if the account, key or sign-in behind a token is no longer in the book."""
    borrower = bearer.borrower
    out = book.signed_out.get(normalize_email(borrower or bearer.email))
    wait = 1 if borrower else MAX_CLOCK_SKEW
    if (borrower or bearer.issuer) and out is not None and bearer.issued <= out.at / 1e9 + wait:
        raise Unauthenticated(
            f"The tokens of {out.email} were revoked after this one was issued. Get a new one, at least "
            f"{wait} s after the revocation."
        )
    if bearer.issuer and not bearer.by:
        return
    account = book.accounts.get(bearer.email)
    is_former = account is not None and bearer.issued < account.created // 10**9
    if account is None or account.disabled or (borrower and is_former):
        raise Unauthenticated(
            f"The service account {bearer.email} was deleted or is disabled. Have it enabled, or use "
            "another one."
        )
    if bearer.key and bearer.key not in book.keys:
        raise Unauthenticated(
            f"The key of {bearer.by or bearer.email} behind this token was deleted. Get a new token with "
            "another key."
        )
    if not borrower or borrower == OWNER_EMAIL:
        return
    rights = book.policy.rights(borrower, bearer.by_groups).within(account.project)
    speaker = book.accounts.get(borrower)
    if GET_ACCESS_TOKEN not in rights or (speaker is not None and speaker.disabled):
        raise Unauthenticated(f"{borrower} may no longer impersonate {bearer.email}.")


def check_program(claims: JobClaims, book: AccessBook) -> None:
    """Raise Unauthenticated if the service account that a program runs as is disabled or was deleted."""
    if fault := account_fault(claims.email, claims.created, book):
        raise Unauthenticated(
            f"This job runs as the service account {claims.email}, which {fault}. Have the account enabled, "
            "or run the job as another account."
        )


def account_fault(email: str, created: int | None, book: AccessBook) -> str | None:
    """Return why a job may not run as a service account, or None if it may. `created`: the job's creation
    time in milliseconds since the epoch; None = now."""
    account, out = book.accounts.get(email), book.signed_out.get(email)
    if account is not None and account.disabled:
        return "is disabled"
    deleted = out.deleted if out is not None else None
    is_former = account is None or (created is not None and created <= (deleted or 0) // 10**6)
    return "was deleted" if deleted is not None and is_former else None


def _self_signed(
    token: str, header: Mapping[str, Any], book: AccessBook, now: int, hosts: Hosts
) -> Bearer:
    key: AccountKey | None = book.keys.get(str(header.get("kid", "")))
    claims = _claims(token, key.public.encode(), "RS256") if key else dict[str, Any]()
    # The subject is optional. If it is set, it must be the account itself.
    issuer = claims.get("iss")
    if key is None or issuer != key.email or claims.get("sub", issuer) != key.email:
        raise Unauthenticated(_UNKNOWN)
    check_claims(claims, now, MAX_CLOCK_SKEW)
    if claims["exp"] - claims["iat"] > LIFETIME:
        raise Unauthenticated(
            f"The token has a lifetime of {claims['exp'] - claims['iat']} s. Sign one for at most "
            f"{LIFETIME} s."
        )
    if not (claims.get("aud") or claims.get("scope")):
        raise Unauthenticated(
            "The token has neither an audience (`aud`) nor a `scope`. Set one of them."
        )
    _check_audience(claims.get("aud"), hosts, key.host)
    return Bearer(key.email, key.id, expires=int(claims["exp"]))


def _check_audience(audience: object, hosts: Hosts, key_host: str | None) -> None:
    """Raise Unauthenticated if a token has audiences (URLs), but none is one of `hosts`. This prevents a
    confused deputy: a token for another service. `key_host`: the service's host at the key's creation."""
    parse_list = cast("list[object]", audience) if isinstance(audience, list) else [audience]
    urls = [str(url) for url in parse_list]
    netlocs = (url.partition("://")[2].partition("/")[0] for url in urls)
    if audience and not any(hosts.is_own_host(netloc, key_host) for netloc in netlocs):
        raise Unauthenticated(
            f"The token is for {', '.join(urls)[:200]!r}, which is not a name of this service. Sign one for "
            "the address that you call, as Google's libraries do. If it is a name of this service, add it "
            "to the setting allowed_hosts."
        )


def check_claims(claims: Mapping[str, Any], now: int, leeway: int, **more: "ClaimsOption") -> None:
    """Raise Unauthenticated for a token that is not valid at `now`, in seconds since the epoch. `more`:
    requirements for other claims."""
    from joserfc.errors import JoseError
    from joserfc.jwt import JWTClaimsRegistry

    registry = JWTClaimsRegistry(
        lambda: now, leeway, exp={"essential": True}, iat={"essential": True}, **more
    )
    try:
        registry.validate(dict(claims))
        are_times = all(abs(claims[name]) < _MAX_TIME for name in ("exp", "iat"))
        wrong = None if are_times else "`exp` or `iat` is not a time"
    except JoseError as error:
        wrong = error.description or str(error.error)
    if wrong:
        raise Unauthenticated(
            f"The token is not valid now: {wrong}. Get a new one. If the clocks of the two machines differ, "
            "synchronize them."
        )


@lru_cache(4_096)
def _claims(token: str, key: bytes, algorithm: str) -> Mapping[str, Any]:
    """Return the claims of a token that this key signed by this algorithm. Raises Unauthenticated for any
    other token; those are not cached, since an attacker may send thousands."""
    from joserfc import jwt
    from joserfc.jwk import OctKey, RSAKey

    own = OctKey.import_key(key) if algorithm == "HS256" else RSAKey.import_key(key)
    try:
        return jwt.decode(token, own, algorithms=[algorithm]).claims
    except Exception:  # The text is untrusted: an odd or deeply nested header raises any exception.
        raise Unauthenticated(_UNKNOWN) from None


def _header(token: str) -> Mapping[str, Any]:
    """Return the unverified header of a token. Raises Unauthenticated."""
    from joserfc import jws

    try:
        return jws.extract_compact(token.encode()).headers()
    except Exception:
        raise Unauthenticated(
            "The token is not a JSON Web Token. Send a token of this service."
        ) from None

"""Tokens of service accounts: JSON Web Tokens with a lifetime of at most one hour, which are not stored.

The service creates an account's key pair and returns the private key once. The holder of the private key can
use it in two ways:

- sign an assertion, and exchange it for an access token, which the service signs (RFC 7523)
- sign a token for each request, as Google's newer libraries do (AIP-4111)

Each use of a token is checked against the access book. The deletion of an account or key therefore takes
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
"""Identity of the token in the file `owner.token`, which only users with access to the data directory can
read."""
GET_ACCESS_TOKEN: Final = "iam.serviceAccounts.getAccessToken"

MAX_CLOCK_SKEW: Final = 60
"""Maximum difference in seconds between the clocks of the signer and the service."""
_MAX_TIME: Final = 1 << 40
"""Upper limit of a time in a token's claims, in seconds since the epoch."""
_KEY_BITS: Final = 2_048
# A token starts with the base64 form of `{"`, the first characters of every JSON object.
_JWT_PATTERN: Final = re.compile(r"eyJ[\w-]*(?:\.[\w-]*){2}", re.ASCII)
_GOOGLE_TOKEN_PATTERN: Final = re.compile(r"ya29\.[\w.-]{1,2048}", re.ASCII)
_UNKNOWN: Final = (
    "The token was not signed by this service, by an existing key of a service account, or by an issuer in "
    "the settings. `gcloud iam service-accounts keys list` lists the existing keys."
)


def is_json_web_token(token: str) -> bool:
    """Return whether the text has the form of a JSON Web Token. Nothing is verified."""
    return _JWT_PATTERN.fullmatch(token) is not None


def is_google_access_token(token: str) -> bool:
    """Return whether the text has the form of a Google access token. Only such tokens are sent to an
    issuer."""
    return _GOOGLE_TOKEN_PATTERN.fullmatch(token) is not None


def new_key() -> tuple[str, str]:
    """Return a new RSA key pair as (public, private) in PEM (PKCS #8). Uses 0.1 s of CPU time."""
    from joserfc.jwk import RSAKey

    key = RSAKey.generate_key(_KEY_BITS)
    return key.as_pem(private=False).decode(), key.as_pem(private=True).decode()


def mint(secret: bytes, bearer: Bearer, now: int, lifetime: int = LIFETIME) -> str:
    """Return a signed access token with the identity of `bearer`. `secret`: the service's signing key. `now`:
    seconds since the epoch."""
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
    """Return the bearer (the identity) in a token for one of `hosts`. The signature must be from the service
    or from an account's key. Raises Unauthenticated, with the reason, if the token is not valid."""
    header = _header(token)
    if header.get("alg") != "HS256":
        return _self_signed(token, header, book, now, hosts)
    claims = _claims(token, secret, "HS256")
    check_claims(claims, now, 0)
    sub, key, by, exp, iat = (claims[name] for name in ("sub", "key", "by", "exp", "iat"))
    return Bearer(sub, key, by, exp, issued=iat, by_groups=tuple(claims.get("groups", ())))


def read_assertion(assertion: str, book: AccessBook, now: int, hosts: Hosts) -> Bearer:
    """Return the identity of the account that signed an RFC 7523 assertion. Raises Unauthenticated if the
    assertion or the account is not valid."""
    bearer = _self_signed(assertion, _header(assertion), book, now, hosts)
    check(bearer, book)
    return bearer


def check(bearer: Bearer, book: AccessBook) -> None:
    """Raise Unauthenticated if a token's account, key or sign-in was deleted, disabled or revoked."""
    borrower = bearer.borrower
    out = book.revocations.get(normalize_email(borrower or bearer.email))
    wait = 1 if borrower else MAX_CLOCK_SKEW
    if (borrower or bearer.issuer) and out is not None and bearer.issued <= out.at / 1e9 + wait:
        raise Unauthenticated(
            f"The tokens of {out.email} were revoked after this token was issued. Get a new token at least "
            f"{wait} s after the revocation."
        )
    if bearer.issuer and not bearer.by:
        return
    account = book.accounts.get(bearer.email)
    is_former = account is not None and bearer.issued < account.created // 10**9
    if account is None or account.disabled or (borrower and is_former):
        raise Unauthenticated(
            f"The service account {bearer.email} was deleted or is disabled. Ask an owner of its project to "
            "enable it, or use another account."
        )
    if bearer.key and bearer.key not in book.keys:
        raise Unauthenticated(
            f"This token was issued with a deleted key of {bearer.by or bearer.email}. Get a new token with "
            "another key."
        )
    if not borrower or borrower == OWNER_EMAIL:
        return
    rights = book.policy.rights(borrower, bearer.by_groups).within(account.project)
    speaker = book.accounts.get(borrower)
    if GET_ACCESS_TOKEN not in rights or (speaker is not None and speaker.disabled):
        raise Unauthenticated(
            f"{borrower} may no longer impersonate {bearer.email}, because {borrower} is disabled or lacks "
            f"the permission {GET_ACCESS_TOKEN}. Ask an owner of the project to restore the access."
        )


def check_program(claims: JobClaims, book: AccessBook) -> None:
    """Raise Unauthenticated if a program's service account is disabled or was deleted."""
    if fault := account_fault(claims.email, claims.created_ms, book):
        raise Unauthenticated(
            f"This job runs as the service account {claims.email}, which {fault}. Ask an owner of its "
            "project to enable the account, or run the job as another account."
        )


def account_fault(email: str, created_ms: int | None, book: AccessBook) -> str | None:
    """Return the reason why a job may not run as a service account, as the end of a sentence, or None if it
    may. `created_ms`: the job's creation time in milliseconds since the epoch; None = now."""
    account, out = book.accounts.get(email), book.revocations.get(email)
    if account is not None and account.disabled:
        return "is disabled"
    deleted = out.deleted if out is not None else None
    is_former = account is None or (created_ms is not None and created_ms <= (deleted or 0) // 10**6)
    return "was deleted" if deleted is not None and is_former else None


def _self_signed(token: str, header: Mapping[str, Any], book: AccessBook, now: int, hosts: Hosts) -> Bearer:
    key: AccountKey | None = book.keys.get(str(header.get("kid", "")))
    claims = _claims(token, key.public.encode(), "RS256") if key else dict[str, Any]()
    # A token need not contain a subject. If it contains one, the subject must be the account itself.
    issuer = claims.get("iss")
    if key is None or issuer != key.email or claims.get("sub", issuer) != key.email:
        raise Unauthenticated(_UNKNOWN)
    check_claims(claims, now, MAX_CLOCK_SKEW)
    if claims["exp"] - claims["iat"] > LIFETIME:
        raise Unauthenticated(
            f"The token has a lifetime of {claims['exp'] - claims['iat']} s. Sign a token with a lifetime of "
            f"at most {LIFETIME} s."
        )
    if not (claims.get("aud") or claims.get("scope")):
        raise Unauthenticated("The token has neither an audience (`aud`) nor a `scope`. Set one of them.")
    _check_audience(claims.get("aud"), hosts, key.host)
    return Bearer(key.email, key.id, expires=int(claims["exp"]))


def _check_audience(audience: object, hosts: Hosts, key_host: str | None) -> None:
    """Raise Unauthenticated if a token has audiences (URLs) and the host of none of them belongs to this
    service. This prevents a confused deputy: a token for another service would otherwise be accepted.
    `key_host`: the host by which the key's creator called this service."""
    parse_list = cast("list[object]", audience) if isinstance(audience, list) else [audience]
    urls = [str(url) for url in parse_list]
    netlocs = (url.partition("://")[2].partition("/")[0] for url in urls)
    if audience and not any(hosts.is_own_host(netloc, key_host) for netloc in netlocs):
        raise Unauthenticated(
            f"The audience of the token, {', '.join(urls)[:200]!r}, is not an address of this service. Sign "
            "a token for the address that you call, as Google's libraries do. If the audience is an address "
            "of this service, add its host name to the setting allowed_hosts."
        )


def check_claims(claims: Mapping[str, Any], now: int, leeway: int, **more: "ClaimsOption") -> None:
    """Raise Unauthenticated for a token that is not valid at `now` (seconds since the epoch). `more`:
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
            f"The token is not valid: {wrong}. Get a new token. If the clocks of the token's issuer and of "
            "this service differ, synchronize them."
        )


@lru_cache(4_096)
def _claims(token: str, key: bytes, algorithm: str) -> Mapping[str, Any]:
    """Return the claims of a token that was signed with this key and algorithm. Raises Unauthenticated for
    all other tokens. The failures are not cached, since an attacker may send thousands of tokens."""
    from joserfc import jwt
    from joserfc.jwk import OctKey, RSAKey

    own = OctKey.import_key(key) if algorithm == "HS256" else RSAKey.import_key(key)
    try:
        return jwt.decode(token, own, algorithms=[algorithm]).claims
    except Exception:
        # The token is untrusted: an odd or deeply nested header can raise any exception.
        raise Unauthenticated(_UNKNOWN) from None


def _header(token: str) -> Mapping[str, Any]:
    """Return the unverified header of a token. Raises Unauthenticated if it is not a JSON Web Token."""
    from joserfc import jws

    try:
        return jws.extract_compact(token.encode()).headers()
    except Exception:
        raise Unauthenticated("The token is not a JSON Web Token. Send a token of this service.") from None

"""OpenID Connect issuers for signing in: the tables `[[oidc]]` of the settings, and the verification of ID
tokens."""

import base64
import re
import socket
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.access.account_tokens import LIFETIME, MAX_CLOCK_SKEW, OWNER_EMAIL, check_claims
from trainshed.access.policy import GROUP, member_fault
from trainshed.access.principals import SERVICE_ACCOUNT, USER, Bearer, member_of
from trainshed.core.errors import Unauthenticated
from trainshed.core.names import normalize_email

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

GOOGLE: Final = "https://accounts.google.com"
_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
"""Only algorithms with public keys. With a shared secret, other parties could sign tokens as well."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")
_DOMAIN: Final = re.compile(r"[a-z0-9.-]{1,255}")
_SUBJECT: Final = re.compile(r"[^*]+|[^*:/]+[:/][^*]+[:/]\*")
_MAX_GROUPS: Final = 500
_MAX_KEYS: Final = 100
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class Issuer(Struct, frozen=True):
    """One table `[[oidc]]` of the settings."""

    #: Name on the sign-in button and in the descriptions of tokens.
    name: str
    #: The issuer's URL, as in the claim `iss` of its ID tokens.
    issuer: str
    #: Client ID of the service at the issuer; None = no sign-in by browser.
    client_id: str | None = None
    #: Environment variable with the client secret; None = no secret.
    secret_env: str | None = None
    #: Additional accepted audiences of ID tokens, such as the client of gcloud, or the `aud` of machines.
    audiences: tuple[str, ...] = ()
    #: Accepted domains of e-mail addresses; () = any.
    domains: tuple[str, ...] = ()
    #: Endpoint that returns a description of an access token, as Google's endpoint does; None = no endpoint.
    tokeninfo: str | None = None
    #: Name of the claim with a user's groups.
    groups_claim: str = "groups"
    #: Service accounts for ID tokens of machines, by subject (`sub`), or by the beginning of a subject
    #: followed by `*`.
    accounts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def mark(self) -> str:
        """The identity of the issuer in stored sign-ins. It changes with the URL and the client ID, which
        invalidates earlier sign-ins."""
        return f"{self.issuer}#{self.client_id or ''}"

    def mark_of(self, subject: str) -> str:
        """Return the identity of the issuer for machines with this entry of `accounts`. It changes with the
        entry's account."""
        return f"{self.mark} {subject} {self.accounts[subject]}"

    def faults(self) -> Iterator[str]:
        """Yield the errors of the table as `key: description`."""
        if not _NAME.fullmatch(self.name):
            yield f"name: {self.name!r} is not a name of up to 40 letters, digits, spaces, dots and dashes"
        if not is_safe(self.issuer) or "?" in self.issuer or "#" in self.issuer:
            yield f"issuer: {self.issuer!r} is not an https URL such as https://accounts.google.com"
        if self.tokeninfo and not is_safe(self.tokeninfo):
            yield f"tokeninfo: {self.tokeninfo!r} is not an https URL"
        if not (self.client_id or self.audiences):
            yield "client_id: is missing. Register the service with the issuer, and set the client's ID"
        for subject, email in self.accounts.items():
            if not _SUBJECT.fullmatch(subject):
                yield (
                    f"accounts: {subject!r} is neither a subject nor a prefix that ends after a separator, "
                    "such as repo:corp/vision:ref:refs/heads/*"
                )
            if member_fault(SERVICE_ACCOUNT + email):
                yield f"accounts: {email!r} is not an e-mail address of a service account"
        for domain in self.domains:
            if not _DOMAIN.fullmatch(domain):
                yield f"domains: {domain!r} is not a domain in lower case such as corp.example"


def is_safe(address: str) -> bool:
    """Return whether a URL uses https, or http to this machine."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    is_local = parts.scheme == "http" and parts.hostname in _LOCAL_HOSTS
    return bool(parts.hostname) and (parts.scheme == "https" or is_local)


def address_in(published: Mapping[str, Any], name: str, issuer: Issuer) -> str | None:
    """Return a URL from an issuer's published document, or None if the URL is unsafe.

    This prevents SSRF. Loopback and link-local URLs, such as a cloud's metadata endpoint, are accepted only
    if the issuer itself has such a URL. For all other URLs, TLS proves the owner.
    """
    address = str(published.get(name, ""))
    is_allowed = is_safe(address) and (_is_near(issuer.issuer) or not _is_near(address))
    return address if is_allowed else None


def _is_near(address: str) -> bool:
    """Return whether the host of a URL is this machine or a link-local address, in any notation."""
    host = (urlsplit(address).hostname or "").rstrip(".")
    try:
        number = ip_address(host if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return host == "localhost" or host.endswith(".localhost")
    number = getattr(number, "ipv4_mapped", None) or number
    return number.is_loopback or number.is_link_local or number.is_unspecified


def verify(
    token: str, keys: "KeySet", issuer: Issuer, now: int, nonce: str | None = None
) -> Mapping[str, Any]:
    """Verify an ID token and return its claims.

    `now`: seconds since the epoch. `nonce`: the nonce of a sign-in that this service started, which prevents
    replay and login CSRF; None = a client obtained the token elsewhere. Raises UnknownKey if no key of the
    issuer signed the token, and Unauthenticated for all other errors.
    """
    claims = _claims(token, keys)
    check_claims(
        claims, now, MAX_CLOCK_SKEW, iss={"essential": True, "value": issuer.issuer}, aud={"essential": True}
    )
    audiences = _texts(claims["aud"]) or [str(claims["aud"])]
    known = {issuer.client_id, *(issuer.audiences if nonce is None else ())} - {None, ""}
    # If a token has several audiences, `azp` is the client that requested the token (OpenID Connect Core
    # 3.1.3.7).
    party = str(claims.get("azp", audiences[0] if len(audiences) == 1 else ""))
    if not known.intersection(audiences) or (len(audiences) > 1 and party not in known):
        raise Unauthenticated(
            f"The audience of the ID token, {', '.join(audiences)}, is not a client of this service. Request "
            "an ID token for this service."
        )
    if nonce is not None and claims.get("nonce") != nonce:
        raise Unauthenticated("The ID token belongs to another sign-in. Start the sign-in again.")
    return claims


def user_of(claims: Mapping[str, Any], issuer: Issuer) -> Bearer:
    """Return the identity of a user, with the address and the groups in these claims. Raises Unauthenticated
    if the address is not verified or not accepted."""
    groups = {name for name in _texts(claims.get(issuer.groups_claim)) if not member_fault(GROUP + name)}
    return Bearer(_email(claims, issuer), groups=tuple(sorted(groups))[:_MAX_GROUPS])


def bearer_of_id_token(token: str, keys: "KeySet", issuer: Issuer, now: int) -> Bearer:
    """Return the bearer of an ID token: the service account for its subject, or else the user. Raises the
    errors of `verify`."""
    claims = verify(token, keys, issuer, now)
    subject = str(claims.get("sub", ""))
    prefixes = (k for k in issuer.accounts if k.endswith("*") and subject.startswith(k[:-1]))
    # An exact match has priority over the longest prefix.
    nearest = subject if subject in issuer.accounts else max(prefixes, key=len, default="")
    if nearest:
        bearer = Bearer(issuer.accounts[nearest])
    elif issuer.accounts and "email" not in claims:
        raise Unauthenticated(
            f"The settings have no service account for the subject {subject[:200]!r} of the issuer "
            f"{issuer.name}. Add the subject to `accounts` in the issuer's table [[oidc]]."
        )
    else:
        bearer = user_of(claims, issuer)
    by, mark = (subject[:200], issuer.mark_of(nearest)) if nearest else (None, issuer.mark)
    ends, issued = int(claims["exp"]) + MAX_CLOCK_SKEW, int(claims["iat"])
    return replace(bearer, by=by, expires=ends, issuer=mark, issued=issued)


def bearer_of_access_token(answer: Mapping[str, Any], issuer: Issuer, now: int) -> Bearer:
    """Return the identity in an access token. `answer`: the issuer's description of the token. Raises
    Unauthenticated if this service does not accept the token."""
    clients = {str(answer[name]) for name in ("aud", "azp") if name in answer}
    known = set(filter(None, (issuer.client_id, *issuer.audiences)))
    if not clients or not clients <= known:
        raise Unauthenticated(
            f"The access token was issued for {' and '.join(sorted(clients)) or 'no client'}, but this "
            f"service accepts only tokens for {' and '.join(sorted(known))}. Add the token's client to "
            "`audiences` in the table [[oidc]] of the settings."
        )
    text = str(answer.get("exp"))
    ends = int(text) if text.isdecimal() and len(text) < 12 else 0
    if not now < ends <= now + LIFETIME + MAX_CLOCK_SKEW:
        raise Unauthenticated(
            "The access token has expired, or is valid for more than an hour. Get a new token. If the clocks "
            "of the issuer and of this service differ, synchronize them."
        )
    # In this response `email_verified` is a string. In ID tokens it is a boolean.
    email = _email({**answer, "email_verified": answer.get("email_verified") == "true"}, issuer)
    return Bearer(email, expires=ends, issuer=issuer.mark, issued=ends - LIFETIME)


class UnknownKey(Exception):
    """No known key of the issuer signed the token. The issuer may have published a new key in the
    meantime."""


def issuer_of(token: str) -> str:
    """Return the issuer that a JSON Web Token contains, without verification; "" if the token contains no
    issuer."""
    try:
        payload = base64.urlsafe_b64decode(token.split(".")[1] + "==")
        return str(msgspec.json.decode(payload)["iss"])
    except Exception:  # The token is untrusted: odd or deeply nested input can raise any exception.
        return ""


def signing_keys(published: Mapping[str, Any]) -> tuple["KeySet", tuple[str, ...]]:
    """Return an issuer's signing keys (RFC 7517), and descriptions of the unreadable keys. Reading a key
    takes up to 1 ms, so callers cache the result."""
    from joserfc.jwk import KeySet, import_key

    keys: list[Any] = []
    faults: list[str] = []
    entries: object = published.get("keys")
    for entry in cast("list[Any]", entries)[:_MAX_KEYS] if isinstance(entries, list) else []:
        try:
            if entry.get("use", "sig") == "sig":
                # Reject a private key, since for a private key with 16,384 bits the library would compute
                # primes for seconds.
                if not entry.keys().isdisjoint(("d", "k")):
                    raise ValueError("the key is not a public key")
                keys.append(import_key(entry))
        except Exception as error:  # Any error may occur: the document is untrusted.
            faults.append(f"{entry!r:.100} ({error!r:.100})")
    return KeySet(keys), tuple(faults)


def _claims(token: str, keys: "KeySet") -> Mapping[str, Any]:
    from joserfc import jwt

    try:
        return jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
    except Exception:
        raise UnknownKey(
            "The ID token was not signed by a key of its issuer, or its signature algorithm is not accepted. "
            "Get a new ID token."
        ) from None


def _email(claims: Mapping[str, Any], issuer: Issuer) -> str:
    claimed = str(claims.get("email", ""))
    email = normalize_email(claimed)
    if claims.get("email_verified") is not True:
        raise Unauthenticated(
            f"{issuer.name} does not confirm that the address {email!r} is verified. Verify the address "
            "there, or let the client request the claims email and email_verified."
        )
    is_person = not member_fault(USER + email) and member_of(email) == USER + email
    # Reject non-ASCII characters that become ASCII in lower case. For example, the Kelvin sign becomes a k,
    # and the result would be the address of another user.
    if not is_person or email == OWNER_EMAIL or email.isascii() != claimed.isascii():
        raise Unauthenticated(
            f"The e-mail address in the token, {email!r}, is not an address of a user. Sign in with another "
            "account."
        )
    if issuer.domains and email.rpartition("@")[2] not in issuer.domains:
        raise Unauthenticated(
            f"{email} cannot sign in with {issuer.name}: the service accepts only addresses of "
            f"{', '.join(issuer.domains)}. Use another account."
        )
    return email


def _texts(value: object) -> list[str]:
    """Return the strings in a list; [] if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [text for text in cast("list[object]", value) if isinstance(text, str)]

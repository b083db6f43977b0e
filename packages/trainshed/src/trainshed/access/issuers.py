"""Issuers of OpenID Connect, by which people sign in: the tables `[[oidc]]`, and what ID tokens say."""

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

from trainshed.access.account_tokens import LIFETIME, OWNER_EMAIL, SKEW, check_claims
from trainshed.access.policy import GROUP, member_fault
from trainshed.access.principals import SERVICE_ACCOUNT, USER, Bearer, member_of
from trainshed.core.errors import Unauthenticated
from trainshed.core.names import normalize_email

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

GOOGLE: Final = "https://accounts.google.com"
_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA")
"""None of them signs with a key that others have, too."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,39}")
_DOMAIN: Final = re.compile(r"[a-z0-9.-]{1,255}")
_SUBJECT: Final = re.compile(r"[^*]+|[^*:/]+[:/][^*]+[:/]\*")
_MOST_GROUPS: Final = 500
_MOST_KEYS: Final = 100
_HERE: Final = ("localhost", "127.0.0.1", "::1")


class Issuer(Struct, frozen=True):
    """One table `[[oidc]]`."""

    #: What the button for it says, and the notes of tokens.
    name: str
    #: Its address, as its ID tokens have it in `iss`.
    issuer: str
    #: As which client the service is registered there; None = nobody signs in by it in a browser.
    client_id: str | None = None
    #: The environment variable that holds the client's secret; None = it has none.
    secret_env: str | None = None
    #: Further clients whose ID tokens are taken, such as that of gcloud; of machines what `aud` says.
    audiences: tuple[str, ...] = ()
    #: Domains of the addresses that it is trusted to know; () = any.
    domains: tuple[str, ...] = ()
    #: Where it tells whose an access token is, as Google does, of which it is known; None = nowhere.
    tokeninfo: str | None = None
    #: The claim that lists the groups of a person.
    groups_claim: str = "groups"
    #: The service accounts for which ID tokens of machines speak, by the subject (`sub`), or by its beginning
    #: and a `*`.
    accounts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def mark(self) -> str:
        """What it is known by where it has signed somebody in; with another address or client, another."""
        return f"{self.issuer}#{self.client_id or ''}"

    def mark_of(self, known: str) -> str:
        """What it is known by for machines of an entry of `accounts`; with another account, another."""
        return f"{self.mark} {known} {self.accounts[known]}"

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the table, as `key: words`."""
        if not _NAME.fullmatch(self.name):
            yield f"name: {self.name!r} is no name of up to 40 letters, digits, spaces, dots and dashes"
        if not is_safe(self.issuer) or "?" in self.issuer or "#" in self.issuer:
            yield f"issuer: {self.issuer!r} is no https address such as https://accounts.google.com"
        if self.tokeninfo and not is_safe(self.tokeninfo):
            yield f"tokeninfo: {self.tokeninfo!r} is no https address"
        if not (self.client_id or self.audiences):
            yield "client_id: register the service with the issuer, and write the client's id here"
        for subject, email in self.accounts.items():
            if not _SUBJECT.fullmatch(subject):
                yield (
                    f"accounts: {subject!r} is no whole subject, nor the beginning of one that names "
                    "somebody, such as repo:corp/vision:ref:refs/heads/*"
                )
            if member_fault(SERVICE_ACCOUNT + email):
                yield f"accounts: {email!r} is no address of a service account"
        for domain in self.domains:
            if not _DOMAIN.fullmatch(domain):
                yield f"domains: {domain!r} is no domain in lower case such as corp.example"


def is_safe(address: str) -> bool:
    """Whether an address is https, or of this machine."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    is_here = parts.scheme == "http" and parts.hostname in _HERE
    return bool(parts.hostname) and (parts.scheme == "https" or is_here)


def address_in(published: Mapping[str, Any], name: str, issuer: Issuer) -> str | None:
    """Return an address that an issuer publishes; None = none that it may name. One of this machine, or of
    what clouds tell machines at link-local addresses, is for those alone that have such an address
    themselves; anywhere else TLS says whether it is theirs."""
    address = str(published.get(name, ""))
    may_name = is_safe(address) and (_is_near(issuer.issuer) or not _is_near(address))
    return address if may_name else None


def _is_near(address: str) -> bool:
    """Whether an address is of this machine or link-local, in whatever form it is written."""
    host = (urlsplit(address).hostname or "").rstrip(".")
    try:
        number = ip_address(host if ":" in host else socket.inet_aton(host))
    except (OSError, ValueError):
        return host == "localhost" or host.endswith(".localhost")
    number = getattr(number, "ipv4_mapped", None) or number
    return number.is_loopback or number.is_link_local or number.is_unspecified


def verified(
    token: str, keys: "KeySet", issuer: Issuer, now: int, nonce: str | None = None
) -> Mapping[str, Any]:
    """Return what an ID token says. `keys`: the issuer's. `now`: seconds since the epoch. `nonce`: what a
    sign-in that was begun here has sent; None = another client began it.

    Raises UnknownKey if none of the keys signed it, else Unauthenticated, which says why it is refused.
    """
    claims = _claims(token, keys)
    check_claims(
        claims, now, SKEW, iss={"essential": True, "value": issuer.issuer}, aud={"essential": True}
    )
    audiences = _texts(claims["aud"]) or [str(claims["aud"])]
    known = {issuer.client_id, *(issuer.audiences if nonce is None else ())} - {None, ""}
    # A token for several clients says which of them asked for it (OpenID Connect Core 3.1.3.7).
    party = str(claims.get("azp", audiences[0] if len(audiences) == 1 else ""))
    if not known.intersection(audiences) or (len(audiences) > 1 and party not in known):
        raise Unauthenticated(
            f"The ID token is for {audiences}, and not for a client of this service."
        )
    if nonce is not None and claims.get("nonce") != nonce:
        raise Unauthenticated("The ID token is not the answer to this sign-in: begin again.")
    return claims


def person_of(claims: Mapping[str, Any], issuer: Issuer) -> Bearer:
    """Return whom the claims of an issuer are about, address and groups alone. Raises Unauthenticated."""
    groups = {
        name for name in _texts(claims.get(issuer.groups_claim)) if not member_fault(GROUP + name)
    }
    return Bearer(_email(claims, issuer), groups=tuple(sorted(groups))[:_MOST_GROUPS])


def bearer_of(token: str, keys: "KeySet", issuer: Issuer, now: int) -> Bearer:
    """Return for whom an ID token speaks: the service account of its subject, else a person. Raises as
    `verified`."""
    claims = verified(token, keys, issuer, now)
    subject = str(claims.get("sub", ""))
    fitting = (k for k in issuer.accounts if k.endswith("*") and subject.startswith(k[:-1]))
    # The whole subject counts before its longest beginning.
    nearest = subject if subject in issuer.accounts else max(fitting, key=len, default="")
    if nearest:
        bearer = Bearer(issuer.accounts[nearest])
    elif issuer.accounts and "email" not in claims:
        raise Unauthenticated(
            f"{issuer.name} has no account for the subject {subject[:200]!r}: give it one in `accounts` of "
            "its table [[oidc]]."
        )
    else:
        bearer = person_of(claims, issuer)
    by, mark = (subject[:200], issuer.mark_of(nearest)) if nearest else (None, issuer.mark)
    ends, issued = int(claims["exp"]) + SKEW, int(claims["iat"])
    return replace(bearer, by=by, expires=ends, issuer=mark, issued=issued)


def holder_of(answer: Mapping[str, Any], issuer: Issuer, now: int) -> Bearer:
    """Return for whom an access token speaks, by what its issuer tells of it. Raises Unauthenticated."""
    clients = {str(answer[name]) for name in ("aud", "azp") if name in answer}
    known = set(filter(None, (issuer.client_id, *issuer.audiences)))
    if not clients or not clients <= known:
        raise Unauthenticated(
            f"The access token was made for {' and '.join(sorted(clients)) or 'nobody'}, and only those for "
            f"{' and '.join(sorted(known))} are taken: `audiences` of the table [[oidc]] lists them."
        )
    text = str(answer.get("exp"))
    ends = int(text) if text.isdecimal() and len(text) < 12 else 0
    if not now < ends <= now + LIFETIME + SKEW:
        raise Unauthenticated(
            "The access token has expired, or is valid for more than an hour: get a new one; if the clocks "
            "of two machines differ, set them."
        )
    # It writes a text where its ID tokens have a boolean value.
    email = _email({**answer, "email_verified": answer.get("email_verified") == "true"}, issuer)
    return Bearer(email, expires=ends, issuer=issuer.mark, issued=ends - LIFETIME)


class UnknownKey(Exception):
    """No known key of the issuer signed the token: it may have a new one."""


def issuer_of(token: str) -> str:
    """Return which issuer a JSON Web Token says that it is of, "" = none; nothing is verified."""
    try:
        payload = base64.urlsafe_b64decode(token.split(".")[1] + "==")
        return str(msgspec.json.decode(payload)["iss"])
    except Exception:  # A stranger wrote it: what is odd or deep raises what it likes.
        return ""


def signing_keys(published: Mapping[str, Any]) -> tuple["KeySet", tuple[str, ...]]:
    """Return those keys of an issuer that sign, as it publishes them (RFC 7517), and what is wrong with those
    that cannot be read. Takes up to a millisecond for each, so it is not done for each token."""
    from joserfc.jwk import KeySet, import_key

    keys: list[Any] = []
    faults: list[str] = []
    entries: object = published.get("keys")
    for entry in cast("list[Any]", entries)[:_MOST_KEYS] if isinstance(entries, list) else []:
        try:
            if entry.get("use", "sig") == "sig":
                # Of a private key of 16,384 bits the primes would be looked for, for seconds.
                if not entry.keys().isdisjoint(("d", "k")):
                    raise ValueError("it is no public key")
                keys.append(import_key(entry))
        except Exception as error:  # Whatever the issuer wrote.
            faults.append(f"{entry!r:.100} ({error!r:.100})")
    return KeySet(keys), tuple(faults)


def _claims(token: str, keys: "KeySet") -> Mapping[str, Any]:
    from joserfc import jwt

    try:
        return jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
    except Exception:
        raise UnknownKey(
            "The ID token is signed by no key of its issuer, or by an algorithm that is not taken: get a new "
            "one."
        ) from None


def _email(claims: Mapping[str, Any], issuer: Issuer) -> str:
    claimed = str(claims.get("email", ""))
    email = normalize_email(claimed)
    if claims.get("email_verified") is not True:
        raise Unauthenticated(
            f"{issuer.name} does not say that it has verified the address {email!r}: verify it there, or "
            "have the client ask for the claims email and email_verified."
        )
    is_person = not member_fault(USER + email) and member_of(email) == USER + email
    # The sign of kelvin in small letters is a k, and the address somebody else's.
    if not is_person or email == OWNER_EMAIL or email.isascii() != claimed.isascii():
        raise Unauthenticated(f"{email!r} is no address of a person.")
    if issuer.domains and email.rpartition("@")[2] not in issuer.domains:
        raise Unauthenticated(
            f"{issuer.name} signs in people of {', '.join(issuer.domains)} here, and {email} is none of them."
        )
    return email


def _texts(value: object) -> list[str]:
    """Return the texts of a list; [] for anything else."""
    if not isinstance(value, list):
        return []
    return [text for text in cast("list[object]", value) if isinstance(text, str)]

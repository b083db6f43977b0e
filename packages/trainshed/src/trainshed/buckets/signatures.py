"""Verifies signed URLs that service accounts create with their keys (V4, GOOG4-RSA-SHA256). Pure.

A signed URL permits one kind of request, with the current rights of the service account. The signature covers
the method, the path, all query parameters, and the headers listed in the URL. The request must be
unambiguous: each parameter and each signed header may occur only once.
"""

import binascii
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

from trainshed.access.book import AccountKey
from trainshed.access.principals import Bearer
from trainshed.buckets.errors import ExpiredToken, InvalidRequest, NotSupported, SignatureDoesNotMatch
from trainshed.httpd.messages import Headers

_ALGORITHM: Final = "GOOG4-RSA-SHA256"
_SIGNATURE: Final = "X-Goog-Signature"
_NAMES: Final = (
    *("X-Goog-Algorithm", "X-Goog-Credential", "X-Goog-Date", "X-Goog-Expires"),
    *("X-Goog-SignedHeaders", _SIGNATURE),
)
_MARKS: Final = frozenset(
    {
        *("x-goog-signature", "x-goog-algorithm", "x-goog-credential", "x-goog-signedheaders"),
        *("x-amz-signature", "x-amz-algorithm", "x-amz-credential"),
        *("googleaccessid", "awsaccesskeyid"),
    }
)
"""Parameters, in lower case, that occur only in signed URLs."""
_MAX_LIFETIME: Final = 7 * 24 * 3600
_MAX_SKEW: Final = 15 * 60
"""Maximum number of seconds by which the signer's clock may be ahead."""
_CREDENTIAL: Final = re.compile(r"([^/]+)/([0-9]{8})/[a-z0-9-]+/storage/goog4_request", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_EXPIRES: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_MAX_EXCERPT: Final = 2_000
"""Maximum number of characters of the canonical request that an error contains."""

Parameters = Sequence[tuple[str, str]]


def is_signed(parameters: Parameters) -> bool:
    """Whether a request has the form of a signed URL of any version."""
    return any(name.lower() in _MARKS for name, _ in parameters)


class Signature(Struct, frozen=True):
    """The unverified claims of a signed URL."""

    email: str
    #: Time of signing and expiry time, both in seconds since the epoch.
    signed_at: int
    expires: int
    canonical: str
    #: The text whose signature is verified.
    text: bytes
    value: bytes


def read_signature(method: str, path: str, parameters: Parameters, headers: Headers) -> Signature:
    """Return the unverified signature of a request. `path`: percent-encoded, as sent. `headers`: all headers,
    with lower-case names. Raises InvalidRequest, NotSupported."""
    _check_version(parameters)
    names = [name for name, _ in parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"The signed URL has {twice[0][:100]!r} twice. Send each parameter once.")
    query = dict(parameters)
    if missing := [name for name in _NAMES if not query.get(name)]:
        raise InvalidRequest(f"The signed URL lacks {', '.join(missing)}. Sign it again, as V4.")
    algorithm, credential, date, lifetime, listed, value = (query[name] for name in _NAMES)
    if algorithm != _ALGORITHM:
        raise NotSupported(
            f"Signatures by {algorithm[:100]!r} are not supported: this service has no HMAC keys. Sign with "
            f"the key file of a service account ({_ALGORITHM})."
        )
    scope = _CREDENTIAL.fullmatch(credential)
    if scope is None or not _DATE.fullmatch(date) or scope[2] != date[:8]:
        raise InvalidRequest(
            "X-Goog-Credential is not of the form EMAIL/DATE/LOCATION/storage/goog4_request with the date of "
            "X-Goog-Date (YYYYMMDDTHHMMSSZ). Sign the URL again."
        )
    if not _EXPIRES.fullmatch(lifetime) or not 1 <= int(lifetime) <= _MAX_LIFETIME:
        raise InvalidRequest(
            f"X-Goog-Expires={lifetime[:20]} is not a number of seconds from 1 to {_MAX_LIFETIME} (7 days). "
            "Sign the URL for a shorter time."
        )
    try:
        signed = int(datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp())
        signature = binascii.unhexlify(value)
    except ValueError as error:
        raise InvalidRequest(
            f"X-Goog-Date or X-Goog-Signature cannot be read: {error}. Sign the URL again."
        ) from None
    canonical = "\n".join(
        [
            method,
            quote(unquote_to_bytes(path), safe="/~"),
            _canonical_query(parameters),
            *_canonical_headers(listed.split(";"), headers),
            "",
            listed,
            "UNSIGNED-PAYLOAD",
        ]
    )
    digest = sha256(canonical.encode("latin-1", "replace")).hexdigest()
    text = "\n".join([_ALGORITHM, date, credential.partition("/")[2], digest])
    return Signature(scope[1], signed, signed + int(lifetime), canonical, text.encode(), signature)


def _check_version(parameters: Parameters) -> None:
    for name, _ in parameters:
        lower = name.lower()
        if lower == "googleaccessid":
            raise NotSupported(
                "Signed URLs of version 2 are not supported. Sign with version 4: "
                'generate_signed_url(version="v4", expiration=...).'
            )
        if lower.startswith("x-amz-") or lower == "awsaccesskeyid":
            raise NotSupported(
                "Signatures by HMAC keys are not supported. Sign with the key file of a service account "
                f"({_ALGORITHM})."
            )


def _canonical_query(parameters: Parameters) -> str:
    pairs = (
        (quote(name, safe="~"), quote(value, safe="~")) for name, value in parameters if name != _SIGNATURE
    )
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _canonical_headers(listed: Sequence[str], headers: Headers) -> list[str]:
    """Return the lines of the signed headers in the canonical request. Raises InvalidRequest if a listed
    header is missing or occurs twice, if `host` is not listed, or if an extension header is not listed."""
    sent: dict[str, list[str]] = {}
    for name, value in headers:
        sent.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    if "host" not in listed or list(listed) != sorted(set(listed)):
        raise InvalidRequest(
            "X-Goog-SignedHeaders is not a sorted list of lower-case names with 'host'. Sign the URL again."
        )
    if wrong := [name for name in listed if len(sent.get(name, ())) != 1]:
        raise InvalidRequest(
            f"Header was included in signedheaders, but not in the request: {', '.join(wrong)[:200]}. Send "
            "each signed header once, with the signed value."
        )
    extra = [n for n in sent if n.startswith("x-goog-") and n not in listed]
    if extra:
        raise InvalidRequest(
            f"Header was included in the request, but not in signedheaders: {', '.join(extra)[:200]}. Leave "
            "it out, or sign it."
        )
    if "x-goog-content-sha256" in listed:
        raise NotSupported("x-goog-content-sha256 is not supported in signed URLs. Leave it out.")
    return [f"{name}:{' '.join(sent[name][0].split())}" for name in listed]


def verify(signature: Signature, keys: Iterable[AccountKey], now: float) -> Bearer:
    """Return the account of a signature. `now`: seconds since the epoch. Raises ExpiredToken,
    SignatureDoesNotMatch."""
    own = [key for key in keys if key.email == signature.email]
    key = next((key for key in own if _is_signed_by(key.public, signature)), None)
    if key is None:
        raise SignatureDoesNotMatch(
            "Access denied. The request signature does not match: the request differs from the signed one, "
            f"or {signature.email[:100]} no longer has this key. Canonical request:\n"
            f"{signature.canonical[:_MAX_EXCERPT]}"
        )
    if now < signature.signed_at - _MAX_SKEW:
        raise SignatureDoesNotMatch(
            "Access denied. The signed URL is not valid yet, because its X-Goog-Date is in the future. "
            "Correct the clock of the machine that signs URLs."
        )
    if now >= signature.expires:
        raise ExpiredToken("The provided token has expired. Sign a new URL.")
    return Bearer(key.email, key.id)


def _is_signed_by(public: str, signature: Signature) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        _public_key(public).verify(signature.value, signature.text, PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


@lru_cache(256)
def _public_key(pem: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return load_pem_public_key(pem.encode())

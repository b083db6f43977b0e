"""Addresses with a key in them, for clients that send no token: `http://HOST:PORT/with/KEY/…`. Pure.

A key follows from a token, so whoever has the token has the address, here or on another machine, and it ends with
the token. Nobody can go back from a key to its token, and a key opens the buckets alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

_PURPOSE = b"trainshed storage address"
_BYTES = 24
_PREFIX = re.compile(rb"/with/([A-Za-z0-9_-]{32})(?=/|$)")


def storage_key(token: str) -> str:
    """The key that belongs to a token."""
    return key_of_digest(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())


def key_of_digest(digest: bytes) -> str:
    """The key that belongs to a token of which only the SHA-256 is known."""
    mac = hmac.digest(digest, _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(mac[:_BYTES]).decode()


def address_with_key(address: str, token: str) -> str:
    """`http://HOST:PORT` as a client gets it that sends no token."""
    return f"{address.rstrip('/')}/with/{storage_key(token)}"


def split_key(raw_path: bytes) -> tuple[str, bytes]:
    """The key in an undecoded path ("" if there is none) and the path without it."""
    match = _PREFIX.match(raw_path)
    if match is None:
        return "", raw_path
    return match.group(1).decode(), raw_path[match.end() :] or b"/"

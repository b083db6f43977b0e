"""Parses and validates the names of gs:// things. Pure: no file, socket or clock is touched here.

Raises ``InvalidRequest`` (message, cause, what to do next) for every name that breaks a rule.
"""

from __future__ import annotations

import re

from trainshed.buckets.errors import InvalidRequest

SCHEME = "gs://"
MAX_OBJECT_NAME_BYTES = 1024
MAX_OBJECT_DEPTH = 200
"""Segments of an object name: each is a directory level on disk, and a walk holds one open for each."""

_BUCKET_COMPONENT = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")


def validate_bucket_name(bucket: str) -> str:
    """Return ``bucket`` if it is a legal bucket name, else raise ``InvalidRequest``.

    Rules of the public service: 3-63 characters (222 with dots, each dot-separated component at
    most 63), lower-case letters, digits, ``-``, ``_``, ``.``; begins and ends with a letter or
    digit; no IPv4 address; no ``goog`` prefix.
    """
    limit = 222 if "." in bucket else 63
    cause = None
    if not 3 <= len(bucket) <= limit:
        cause = f"a bucket name has 3 to {limit} characters, this one has {len(bucket)}"
    elif _IPV4.fullmatch(bucket):
        cause = "a bucket name must not look like an IP address"
    elif bucket.startswith("goog"):
        cause = "a bucket name must not begin with 'goog'"
    elif any(len(part) > 63 for part in bucket.split(".")):
        cause = "each part of a bucket name between dots has at most 63 characters"
    elif not all(_BUCKET_COMPONENT.fullmatch(part) for part in bucket.split(".")):
        cause = (
            "a bucket name holds only lower-case letters, digits, '-', '_' and '.', "
            "and begins and ends with a letter or a digit"
        )
    if cause is not None:
        raise InvalidRequest(f"Invalid bucket name: '{bucket}': {cause}. Choose another name.")
    return bucket


def validate_object_name(name: str) -> str:
    """Return ``name`` if it is a legal object name, else raise ``InvalidRequest``.

    1 to 1,024 bytes of UTF-8, no line feed, carriage return or NUL, not ``.`` or ``..``; and a
    limit of ours: at most ``MAX_OBJECT_DEPTH`` segments.
    """
    cause = None
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = 0
        cause = "it is not valid UTF-8"
    if cause is None:
        if not 1 <= length <= MAX_OBJECT_NAME_BYTES:
            cause = f"an object name has 1 to {MAX_OBJECT_NAME_BYTES} bytes, this one has {length}"
        elif any(forbidden in name for forbidden in "\r\n\0"):
            cause = "it holds a line feed, a carriage return or a NUL"
        elif name in {".", ".."}:
            cause = "'.' and '..' are not object names"
        elif name.count("/") >= MAX_OBJECT_DEPTH:
            cause = f"it has more than {MAX_OBJECT_DEPTH} segments between slashes"
    if cause is not None:
        raise InvalidRequest(f"Invalid object name: {name!r}: {cause}. Choose another name.")
    return name


def parse_gs_uri(uri: str) -> tuple[str, str]:
    """Split ``gs://BUCKET/OBJECT`` into (bucket, object); the object is '' for a bare bucket.

    Raises ``InvalidRequest`` if the scheme is missing, the bucket name is illegal or the object
    name is illegal.
    """
    if not uri.startswith(SCHEME):
        raise InvalidRequest(
            f"Invalid Cloud Storage URI: '{uri}': it does not begin with '{SCHEME}'. "
            f"Write it as {SCHEME}BUCKET/OBJECT."
        )
    bucket, _, name = uri[len(SCHEME) :].partition("/")
    if not bucket:
        raise InvalidRequest(
            f"Invalid Cloud Storage URI: '{uri}': the bucket is missing. "
            f"Write it as {SCHEME}BUCKET/OBJECT."
        )
    validate_bucket_name(bucket)
    if name:
        validate_object_name(name)
    return bucket, name

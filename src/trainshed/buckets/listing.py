"""Listing a bucket: prefix, delimiter, offsets, globs and stable page tokens. Blocking.

Order is that of the names' UTF-8 bytes. A page token is the place to go on from, so a page is
right even if objects come and go between two pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from trainshed.buckets.errors import InvalidRequest, NotFound
from trainshed.buckets.globs import Search, compile_glob
from trainshed.buckets.port import MAX_RESULTS, Page, Query
from trainshed.buckets.records import ObjectRecord
from trainshed.buckets.walk import Walk

_HASH_LIMIT = 4 << 20
"""A listing computes missing checksums only of files up to this size (bytes)."""


def list_objects(base: int, query: Query, read: Callable[[str, int], ObjectRecord]) -> Page:
    """One page of the objects in an open directory; raises ``InvalidRequest`` (token, glob).

    ``read``: the record of an object by its name, with checksums up to so many bytes; raises ``NotFound``.
    """
    limit = max(1, min(query.max_results, MAX_RESULTS))
    objects: list[tuple[str, ObjectRecord]] = []
    prefixes: list[str] = []
    if "\0" in query.prefix:
        return Page(objects, prefixes, "")
    floor = floor_of(query)
    glob = compile_glob(query.match_glob) if query.match_glob else None
    walk = Walk(base, query.prefix, floor)
    search = Search(glob)
    for entry in walk:
        if query.end_offset and entry.name.encode() >= query.end_offset.encode():
            break
        if search.is_over():
            return Page(objects, prefixes, encode_token(entry.name.encode()))
        if not search.passes(entry.name):
            continue
        if len(objects) + len(prefixes) >= limit:
            return Page(objects, prefixes, encode_token(entry.name.encode()))
        common = common_prefix(entry.name, query)
        if common is None or (query.include_trailing_delimiter and common == entry.name):
            try:
                record = read(entry.name, _HASH_LIMIT)
            except NotFound:
                continue  # removed since the directory was read
            objects.append((entry.name, record))
        if common is not None:
            if not prefixes or prefixes[-1] != common:
                prefixes.append(common)
            # An object named like the prefix itself comes first; all others are skipped.
            walk.floor = _after(common)
    return Page(objects, prefixes, "")


def floor_of(query: Query) -> bytes:
    """The least name that the page may hold; raises ``InvalidRequest`` for a foreign token."""
    return _decode_token(query.page_token) if query.page_token else query.start_offset.encode()


def common_prefix(name: str, query: Query) -> str | None:
    """What a name is summed up to by the query's delimiter; None if it stands for itself."""
    if not query.delimiter:
        return None
    at = name.find(query.delimiter, len(query.prefix))
    return None if at < 0 else name[: at + len(query.delimiter)]


def _after(prefix: str) -> bytes:
    """The least byte string above everything that begins with ``prefix`` (UTF-8 never has 0xff)."""
    encoded = prefix.encode()
    return encoded[:-1] + bytes([encoded[-1] + 1])


def encode_token(floor: bytes) -> str:
    """The token of a page that begins there."""
    return base64.urlsafe_b64encode(floor).decode()


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"Invalid page token '{token}': it is not one that this service gave out. "
            "List again without a token."
        ) from error

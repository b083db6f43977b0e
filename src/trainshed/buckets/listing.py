"""Listing a bucket: prefix, delimiter, offsets, globs and stable page tokens. Blocking.

Order is that of the names' UTF-8 bytes. A page token is the place to go on from, so a page is
right even if objects come and go between two pages.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass

from trainshed.buckets.errors import InvalidRequest, NotFound
from trainshed.buckets.objects import ObjectStore
from trainshed.buckets.records import ObjectRecord
from trainshed.buckets.walk import Walk

MAX_RESULTS = 1000
_HASH_LIMIT = 4 << 20
"""A listing computes missing checksums only of files up to this size (bytes)."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to list; the fields are those of the public method of the same names."""

    prefix: str = ""
    delimiter: str = ""
    page_token: str = ""
    max_results: int = MAX_RESULTS
    start_offset: str = ""
    end_offset: str = ""
    include_trailing_delimiter: bool = False
    match_glob: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """One page: (name, record) of objects, common prefixes, and the token of the next page."""

    objects: list[tuple[str, ObjectRecord]]
    prefixes: list[str]
    next_page_token: str


def list_objects(store: ObjectStore, bucket: str, query: Query) -> Page:
    """One page of a bucket's objects; raises ``NotFound``, ``InvalidRequest`` (token, glob)."""
    limit = max(1, min(query.max_results, MAX_RESULTS))
    objects: list[tuple[str, ObjectRecord]] = []
    prefixes: list[str] = []
    if "\0" in query.prefix:
        return Page(objects, prefixes, "")
    floor = _decode_token(query.page_token) if query.page_token else query.start_offset.encode()
    glob = _glob(query.match_glob) if query.match_glob else None
    base = store.catalog.open(bucket)
    try:
        walk = Walk(base, query.prefix, floor)
        for entry in walk:
            if query.end_offset and entry.name.encode() >= query.end_offset.encode():
                break
            if glob is not None and not glob.fullmatch(entry.name):
                continue
            if len(objects) + len(prefixes) >= limit:
                return Page(objects, prefixes, _encode_token(entry.name.encode()))
            common = _common_prefix(entry.name, query)
            if common is None or (query.include_trailing_delimiter and common == entry.name):
                try:
                    record = store.read_record(bucket, entry.name, hash_limit=_HASH_LIMIT)
                except NotFound:
                    continue  # removed since the directory was read
                objects.append((entry.name, record))
            if common is not None:
                if not prefixes or prefixes[-1] != common:
                    prefixes.append(common)
                # An object named like the prefix itself comes first; all others are skipped.
                walk.floor = _after(common)
    finally:
        os.close(base)
    return Page(objects, prefixes, "")


def _common_prefix(name: str, query: Query) -> str | None:
    if not query.delimiter:
        return None
    at = name.find(query.delimiter, len(query.prefix))
    return None if at < 0 else name[: at + len(query.delimiter)]


def _after(prefix: str) -> bytes:
    """The least byte string above everything that begins with ``prefix`` (UTF-8 never has 0xff)."""
    encoded = prefix.encode()
    return encoded[:-1] + bytes([encoded[-1] + 1])


def _encode_token(floor: bytes) -> str:
    return base64.urlsafe_b64encode(floor).decode()


def _decode_token(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"Invalid page token '{token}': it is not one that this service gave out. "
            "List again without a token."
        ) from error


_GLOB_TOKENS = re.compile(r"\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{[^{}]*\}|.", re.DOTALL)


def _glob(pattern: str) -> re.Pattern[str]:
    """The public glob language: ``*`` and ``?`` stop at '/', ``**`` does not, sets, ``{a,b}``."""
    parts: list[str] = []
    for token in _GLOB_TOKENS.findall(pattern):
        match token[0], len(token):
            case "*", 2:
                parts.append(".*")
            case "*", _:
                parts.append("[^/]*")
            case "?", _:
                parts.append("[^/]")
            case "[", size if size > 1:
                negated = token[1] in "!^"
                body = token[2:-1] if negated else token[1:-1]
                escaped = body.replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
                parts.append(f"[{'^' if negated else ''}{escaped}]")
            case "{", size if size > 1:
                choices = (_glob(choice).pattern for choice in token[1:-1].split(","))
                parts.append(f"(?:{'|'.join(choices)})")
            case _:
                parts.append(re.escape(token))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise InvalidRequest(f"Invalid matchGlob '{pattern}': {error}. Correct it.") from error

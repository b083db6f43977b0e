"""Pages of lists: sizes, opaque tokens, and a bounded search for what a filter lets pass.

A token says where the previous page ended and is bound to the question it was given for.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from trainshed.api.scanning import Scan
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.works import Work
from trainshed.store.port import JobQuery, Reader

SCAN_LIMIT: Final = 2_000
"""Jobs that one request looks at before it answers a short page with a token to go on."""
_CHUNK: Final = 250
_DIGEST_SIZE: Final = 8
_MOST_DIGITS: Final = 19
_LARGEST: Final = 2**63 - 1
"""What the store can compare with."""


@dataclass(frozen=True, slots=True)
class Page:
    """Works with their etags, newest first; `next_token` is "" on the last page."""

    jobs: tuple[tuple[Work, str], ...]
    next_token: str


def page_size(requested: int, *, default: int, maximum: int, field: str = "page_size") -> int:
    """The size to serve: 0 means the default, more than the maximum means the maximum."""
    if requested < 0:
        raise InvalidRequest(
            (Violation(field, f"{requested} is negative; leave it out for {default} per page."),)
        )
    return min(requested or default, maximum)


def encode_token(position: str, *question: str) -> str:
    """An opaque token for `position`, valid only together with the same `question`."""
    packed = _digest(question) + position.encode()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_token(token: str, *question: str, field: str = "page_token") -> str:
    """The position of a token. Raises InvalidRequest for one that is not ours or of another question."""
    try:
        packed = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        position = packed[_DIGEST_SIZE:].decode()
    except (binascii.Error, ValueError):
        packed, position = b"", ""
    if not position or packed[:_DIGEST_SIZE] != _digest(question):
        raise _refused(field)
    return position


def decode_number(token: str, *question: str, field: str = "page_token") -> int:
    """The position of a token that is a number; 0 for no token. Raises InvalidRequest."""
    if not token:
        return 0
    return position_number(decode_token(token, *question, field=field), field)


def position_number(position: str, field: str = "page_token") -> int:
    """A number in a position: whoever knows how, can write a token of his own. Raises InvalidRequest."""
    if not (position.isascii() and position.isdecimal()) or len(position) > _MOST_DIGITS:
        raise _refused(field)
    return min(int(position), _LARGEST)


async def list_jobs(
    reader: Reader,
    query: JobQuery,
    passes: Callable[[Work], bool],
    *,
    token: str,
    question: tuple[str, ...],
) -> Page:
    """One page of at most `query.limit` jobs that pass, reading at most SCAN_LIMIT and as long as a scan may last.

    A page can be short, or empty, and still carry a token: the jobs further back were not looked at
    yet, and the request costs the same however long the history is (DESIGN §3.6).
    """
    after = decode_number(token, *question)
    found: list[tuple[Work, str]] = []
    scanned = 0
    scan = Scan(passes)
    while scanned < SCAN_LIMIT:
        # One more than is wanted tells whether there is a next page at all.
        chunk = min(_CHUNK, query.limit + 1) if scanned == 0 else _CHUNK
        rows = await reader.jobs(replace(query, after=after, limit=chunk))
        verdicts = await scan.judge([job for job, _ in rows])
        for row, passing in zip(rows, verdicts, strict=False):
            if passing:
                if len(found) == query.limit:
                    return Page(tuple(found), encode_token(str(after), *question))
                found.append(row)
            after = int(row[0].uid)
        scanned += len(rows)
        if len(verdicts) < len(rows):
            break
        if len(rows) < chunk:
            return Page(tuple(found), "")
    return Page(tuple(found), encode_token(str(after), *question))


def _refused(field: str) -> InvalidRequest:
    text = (
        "The page token was not given for this request; repeat parent, filter and order "
        "of the request that gave it, or start again without a token."
    )
    return InvalidRequest((Violation(field, text),))


def _digest(question: tuple[str, ...]) -> bytes:
    text = "\0".join(question)
    return hashlib.blake2b(
        text.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_SIZE
    ).digest()

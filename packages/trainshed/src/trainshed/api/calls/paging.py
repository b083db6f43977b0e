"""Pages of lists: sizes, opaque tokens, a bounded search with a filter.

A token says where the previous page ended and is bound to the request that it was given for. Filters are
applied off the event loop: all scans share one thread, in which they take short turns. However many callers
send expensive filters, they keep one thread busy at most, and share it fairly.
"""

import asyncio
import base64
import binascii
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.filters.jobs import JobFilter
from trainshed.api.filters.matching import everything, record_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.works import Work
from trainshed.store.port import Every, JobQuery
from trainshed.store.sqlite.reader import Reader

SCAN_LIMIT: Final = 2_000
"""Jobs that one request reads before it answers a short page with a token to go on."""
_MOST_ORDERS: Final = 10
"""Most fields that a list can be ordered by."""
_CHUNK: Final = 250
_MOST_STEPS: Final = 10
"""Most calls of the store in one request."""
_DIGEST_SIZE: Final = 8
_MOST_DIGITS: Final = 19
_LARGEST: Final = 2**63 - 1
"""The largest number that the store can compare with."""
T = TypeVar("T")
SECONDS: Final = 1.0
"""Seconds of computing time that one request may use; then it answers what it has, with a token to go on."""
_TURN: Final = 0.02
"""Seconds of computing time after which another scan gets its turn."""
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="scans")


class Page(Struct, frozen=True):
    """One page of a list of jobs."""

    #: Jobs with their etags, newest first.
    jobs: tuple[tuple[Work, str], ...]
    #: "" on the last page.
    next_token: str


def page_size(requested: int, *, default: int, maximum: int, field: str = "page_size") -> int:
    """Return the size to serve: 0 means the default, more than the maximum means the maximum. Raises
    InvalidRequest for a negative size."""
    if requested < 0:
        raise InvalidRequest(
            (Violation(field, f"{requested} is negative; leave it out for {default} per page."),)
        )
    return min(requested or default, maximum)


def _in_order(records: Iterable[T], text: str, fields: Mapping[str, Callable[[T], Any]]) -> list[T]:
    """Return the records sorted by a text such as `display_name, create_time desc`. Raises InvalidRequest on
    `order_by`."""
    orders: list[tuple[Callable[[T], Any], bool]] = []
    for part in text.split(",") if text.strip() else ():
        match part.split():
            case [field, *direction] if field in fields and direction in ([], ["asc"], ["desc"]):
                orders.append((fields[field], direction == ["desc"]))
            case _:
                raise _no_order(part.strip(), fields)
    if len(orders) > _MOST_ORDERS:
        raise _no_order(text, fields)
    ordered = list(records)
    for key, descending in reversed(orders):
        ordered.sort(key=key, reverse=descending)
    return ordered


def _no_order(text: str, fields: Iterable[str]) -> InvalidRequest:
    advice = f"use {', '.join(fields)}, each with or without desc, separated by commas."
    return InvalidRequest((Violation("order_by", f"{text!r} is no order; {advice}"),))


def encode_token(position: str, *question: str) -> str:
    """Return an opaque token for `position`, valid only together with the same `question`."""
    packed = _digest((*question, position)) + position.encode()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_token(token: str, *question: str) -> str:
    """Return the position of a token; "" for no token. Raises InvalidRequest for one that is not ours or of
    another question."""
    if not token:
        return ""
    try:
        packed = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        position = packed[_DIGEST_SIZE:].decode()
    except (binascii.Error, ValueError):
        packed, position = b"", ""
    if not position or packed[:_DIGEST_SIZE] != _digest((*question, position)):
        raise _refused()
    return position


def decode_number(token: str, *question: str) -> int:
    """Return the position of a token as a number; 0 for no token. Raises InvalidRequest."""
    return position_number(decode_token(token, *question) or "0")


def position_number(position: str) -> int:
    """Return a position as a number. Raises InvalidRequest: callers can make up tokens, so it may be none."""
    if not (position.isascii() and position.isdecimal()) or len(position) > _MOST_DIGITS:
        raise _refused()
    return min(int(position), _LARGEST)


def cut(
    rows: Sequence[T], size: int, position: Callable[[T], object], *question: str
) -> tuple[Sequence[T], str]:
    """Return a page of the first `size` rows, and the token of the next one, which begins behind the position
    of the last row; "" unless there are more rows."""
    page = rows[:size]
    return page, encode_token(str(position(page[-1])), *question) if len(rows) > size else ""


async def list_jobs(
    reader: Reader, query: JobQuery, wanted: JobFilter, *, token: str, question: tuple[str, ...]
) -> Page:
    """Return a page of at most `query.limit` jobs that pass the filter. Reads about SCAN_LIMIT jobs at most,
    for no longer than a scan may take.

    A page can be short, or empty, and still carry a token, because older jobs were not examined yet. So a
    request costs the same however long the history is (spec/invariants#finished-jobs). What can be decided
    without reading a job is left to the store, whose indexes answer most filters at once (ADR 3).
    """
    after = decode_number(token, *question)
    passing_jobs: list[tuple[Work, str]] = []
    scanned = 0
    scan = Scan(wanted.passes)
    for _ in range(_MOST_STEPS):
        # One more than is wanted tells whether there is a next page at all.
        chunk = min(_CHUNK, query.limit + 1) if scanned == 0 else _CHUNK
        where = wanted.where or Every(())
        matches = await reader.matching(replace(query, after=after, limit=chunk), where)
        rows, went_to = matches.jobs, matches.went_to
        verdicts = await scan.judge([job for job, _ in rows])
        for row, passing in zip(rows, verdicts, strict=False):
            if passing:
                if len(passing_jobs) == query.limit:
                    return Page(tuple(passing_jobs), encode_token(str(after), *question))
                passing_jobs.append(row)
            after = int(row[0].uid)
        scanned += len(rows)
        if len(verdicts) < len(rows):
            break
        if went_to is None:
            return Page(tuple(passing_jobs), "")
        after = int(went_to)
        if scanned >= SCAN_LIMIT:
            break
    return Page(tuple(passing_jobs), encode_token(str(after), *question))


def _refused() -> InvalidRequest:
    text = (
        "The page token belongs to another request. Repeat the parent, filter and order of the original "
        "request, or start again without a token."
    )
    return InvalidRequest((Violation("page_token", text),))


def _digest(question: tuple[str, ...]) -> bytes:
    text = "\0".join(question)
    return hashlib.blake2b(
        text.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_SIZE
    ).digest()


class Scan(Generic[T]):
    """Applies the filter of one request, within the computing time that a request may use."""

    def __init__(self, passes: Callable[[T], bool], *, seconds: float | None = None) -> None:
        self._passes = passes
        self._left = SECONDS if seconds is None else seconds

    async def judge(self, rows: Sequence[T]) -> list[bool]:
        """Return whether each row passes; for fewer rows once the time is used up, but always for the first
        one."""
        if self._passes is everything:
            return [True] * len(rows)
        verdicts: list[bool] = []
        loop = asyncio.get_running_loop()
        while len(verdicts) < len(rows) and (not verdicts or self._left > 0):
            verdicts += await loop.run_in_executor(_THREAD, self._turn, rows, len(verdicts))
        return verdicts

    def _turn(self, rows: Sequence[T], at: int) -> list[bool]:
        began = time.thread_time()
        turn, verdicts = min(_TURN, self._left), list[bool]()
        while at + len(verdicts) < len(rows):
            verdicts.append(self._passes(rows[at + len(verdicts)]))
            if time.thread_time() - began >= turn:
                break
        self._left -= time.thread_time() - began
        return verdicts


class Listing(Struct, Generic[T], frozen=True):
    """What a short list of records can be filtered and ordered by."""

    #: What is listed, in the plural.
    noun: str
    texts: Mapping[str, Callable[[T], str]]
    orders: Mapping[str, Callable[[T], Any]]
    #: Records of a page: by default, and at most.
    page: int = 100
    largest: int = 100
    #: What tells a record from all others.
    key: Callable[[Any], str] = lambda record: str(record.name)

    async def page_of(
        self,
        records: Iterable[T],
        request: Any,
        what: str,
        passes: Callable[[T], bool] | None = None,
    ) -> tuple[list[T], str]:
        """Return one page of the records that pass the request's filter, in its order, and the next page's
        token: the key of its first record, and how many come before, since any may be gone by then. `what`:
        whose list it is; `passes`: the filter, None = it is by texts and labels. Raises InvalidRequest."""
        size = page_size(request.page_size, default=self.page, maximum=self.largest)
        text = getattr(request, "filter", "")
        passes = passes or record_filter(text, self.noun, self.texts)
        order = getattr(request, "order_by", "")
        ordered = _in_order(records, order, self.orders)
        question = (what, text, order)
        count, _, first = decode_token(request.page_token, *question).partition(" ")
        # There is no time limit, since a token counts what passes. The cost is bounded, because names are
        # short and a filter's tests are limited in number.
        verdicts = await Scan(passes, seconds=math.inf).judge(ordered)
        passing = list(itertools.compress(ordered, verdicts))
        keys = [self.key(record) for record in passing if first]
        start = keys.index(first) if first in keys else position_number(count or "0")
        page, rest = passing[start : start + size], passing[start + size :]
        token = encode_token(f"{start + size} {self.key(rest[0])}", *question) if rest else ""
        return page, token

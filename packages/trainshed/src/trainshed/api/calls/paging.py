"""Pages of lists: page sizes, opaque tokens, and searches with a filter and a time limit.

A token contains the end of the previous page. It is valid only for the same list and filter. Filters run
outside the event loop. All filters share one thread, in which they take short turns. Any number of expensive
filters therefore occupies at most one thread.
"""

import asyncio
import base64
import binascii
import hashlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.filters.jobs import JobFilter
from trainshed.api.filters.matching import matches_all, record_filter
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.works import Work
from trainshed.store.port import Every, JobQuery
from trainshed.store.sqlite.reader import Reader

SCAN_LIMIT: Final = 2_000
"""Maximum number of jobs that one request reads. Beyond it, the request returns a short page with a token."""
_MAX_ORDERS: Final = 10
"""Maximum number of fields in `order_by`."""
_CHUNK: Final = 250
_MAX_QUERIES: Final = 10
"""Maximum number of queries that one request sends to the store."""
_DIGEST_SIZE: Final = 8
_MAX_DIGITS: Final = 19
_MAX_NUMBER: Final = 2**63 - 1
"""The largest number in queries of the store."""
T = TypeVar("T")
SCAN_SECONDS: Final = 1.0
"""Maximum computing time in seconds of one request's filter. Beyond it, the request returns a short page with
a token."""
_TURN_SECONDS: Final = 0.02
"""Computing time in seconds after which the filter of another request gets its turn."""
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="scans")


class Page(Struct, frozen=True):
    """One page of a list of jobs."""

    #: Jobs, newest first, each with its etag.
    jobs: tuple[tuple[Work, str], ...]
    #: Token of the next page; "" = this is the last page.
    next_token: str


def page_size(requested: int, *, default: int, maximum: int, field: str = "page_size") -> int:
    """Return the size of a page: `requested`, or the default for 0, limited to the maximum. Raises
    InvalidRequest for a negative size."""
    if requested < 0:
        raise InvalidRequest(
            (Violation(field, f"{requested} is negative. Omit the field for {default} results per page."),)
        )
    return min(requested or default, maximum)


def _in_order(records: Iterable[T], text: str, fields: Mapping[str, Callable[[T], Any]]) -> list[T]:
    """Return the records in an order such as `display_name, create_time desc`. Raises InvalidRequest for
    `order_by`."""
    orders: list[tuple[Callable[[T], Any], bool]] = []
    for part in text.split(",") if text.strip() else ():
        match part.split():
            case [field, *direction] if field in fields and direction in ([], ["asc"], ["desc"]):
                orders.append((fields[field], direction == ["desc"]))
            case _:
                raise _invalid_order(part.strip(), fields)
    if len(orders) > _MAX_ORDERS:
        raise _invalid_order(text, fields)
    ordered = list(records)
    for key, descending in reversed(orders):
        ordered.sort(key=key, reverse=descending)
    return ordered


def _invalid_order(text: str, fields: Iterable[str]) -> InvalidRequest:
    advice = f"Use {', '.join(fields)}, each with or without desc, separated by commas."
    return InvalidRequest((Violation("order_by", f"{text!r} is not a valid order. {advice}"),))


def encode_token(position: str, *question: str) -> str:
    """Return an opaque token for `position`. The token is valid only for the same `question`: the list and
    its filter."""
    packed = _digest((*question, position)) + position.encode()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def decode_token(token: str, *question: str) -> str:
    """Return the position in a token, or "" if the token is empty. Raises InvalidRequest if the token is
    invalid or was created for another `question`."""
    if not token:
        return ""
    try:
        packed = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
        position = packed[_DIGEST_SIZE:].decode()
    except (binascii.Error, ValueError):
        packed, position = b"", ""
    if not position or packed[:_DIGEST_SIZE] != _digest((*question, position)):
        raise _invalid_token()
    return position


def decode_position(token: str, *question: str) -> int:
    """Return the position in a token as a number, or 0 if the token is empty. Raises InvalidRequest."""
    return parse_position(decode_token(token, *question) or "0")


def parse_position(position: str) -> int:
    """Return a position as a number. Raises InvalidRequest, because callers can invent tokens."""
    if not (position.isascii() and position.isdecimal()) or len(position) > _MAX_DIGITS:
        raise _invalid_token()
    return min(int(position), _MAX_NUMBER)


def first_page(
    rows: Sequence[T], size: int, position: Callable[[T], object], *question: str
) -> tuple[Sequence[T], str]:
    """Return the first `size` rows, and the token of the page that starts after them. The token is "" on the
    last page."""
    page = rows[:size]
    return page, encode_token(str(position(page[-1])), *question) if len(rows) > size else ""


async def list_jobs(
    reader: Reader, query: JobQuery, job_filter: JobFilter, *, token: str, question: tuple[str, ...]
) -> Page:
    """Return a page of at most `query.limit` jobs that match the filter.

    The function reads about SCAN_LIMIT jobs at most, within the time limit of a scan. A short or empty page
    may therefore have a token, because older jobs were not read yet. The cost of a request does not grow with
    the history (spec/invariants#finished-jobs). The store evaluates conditions on its columns, and its
    indexes are sufficient for most filters (ADR 3).
    """
    after = decode_position(token, *question)
    passing_jobs: list[tuple[Work, str]] = []
    scanned = 0
    scan = Scan(job_filter.passes)
    for _ in range(_MAX_QUERIES):
        # Read one row more than requested, to detect whether a next page exists.
        chunk = min(_CHUNK, query.limit + 1) if scanned == 0 else _CHUNK
        where = job_filter.where or Every(())
        matches = await reader.matching(replace(query, after=after, limit=chunk), where)
        rows, next_after = matches.jobs, matches.next_after
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
        if next_after is None:
            return Page(tuple(passing_jobs), "")
        after = int(next_after)
        if scanned >= SCAN_LIMIT:
            break
    return Page(tuple(passing_jobs), encode_token(str(after), *question))


async def read_all(read: Callable[[str], Awaitable[Page]]) -> list[Work]:
    """Return the jobs of all pages, newest first. `read` returns the page of a token. Raises InvalidRequest
    if there are more than SCAN_LIMIT jobs, because sorting a long history would delay other requests."""
    jobs: list[Work] = []
    token = ""
    while len(jobs) <= SCAN_LIMIT:
        page = await read(token)
        jobs += [work for work, _ in page.jobs]
        if not (token := page.next_token):
            return jobs
    text = (
        f"More than {SCAN_LIMIT:,} jobs match the filter, which is too many to sort. Add a condition such as "
        'create_time>"2026-01-31T00:00:00Z" to the filter, or omit order_by.'
    )
    raise InvalidRequest((Violation("order_by", text),))


def _invalid_token() -> InvalidRequest:
    text = (
        "The page token belongs to another request. Repeat the parent, filter and order of the original "
        "request, or start again without a token."
    )
    return InvalidRequest((Violation("page_token", text),))


def _digest(question: tuple[str, ...]) -> bytes:
    text = "\0".join(question)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_SIZE).digest()


class Scan(Generic[T]):
    """Applies the filter of one request. The filter may use at most `seconds` of processor time (default:
    `SCAN_SECONDS`)."""

    def __init__(self, passes: Callable[[T], bool], *, seconds: float | None = None) -> None:
        self._passes = passes
        self._left = SCAN_SECONDS if seconds is None else seconds

    async def judge(self, rows: Sequence[T]) -> list[bool]:
        """Return whether each row matches. After the time limit, the result contains fewer rows, but at least
        one."""
        if self._passes is matches_all:
            return [True] * len(rows)
        verdicts: list[bool] = []
        loop = asyncio.get_running_loop()
        while len(verdicts) < len(rows) and (not verdicts or self._left > 0):
            verdicts += await loop.run_in_executor(_THREAD, self._turn, rows, len(verdicts))
        return verdicts

    def _turn(self, rows: Sequence[T], start: int) -> list[bool]:
        began = time.thread_time()
        turn, verdicts = min(_TURN_SECONDS, self._left), list[bool]()
        while start + len(verdicts) < len(rows):
            verdicts.append(self._passes(rows[start + len(verdicts)]))
            if time.thread_time() - began >= turn:
                break
        self._left -= time.thread_time() - began
        return verdicts


class Listing(Struct, Generic[T], frozen=True):
    """Determines how a list of records is filtered, ordered and divided into pages. For short lists, which
    are read completely."""

    #: Plural noun for the records in errors.
    noun: str
    texts: Mapping[str, Callable[[T], str]]
    orders: Mapping[str, Callable[[T], Any]]
    #: Default and maximum number of records per page.
    page: int = 100
    max_page: int = 100
    #: Returns the unique key of a record.
    key: Callable[[Any], str] = lambda record: str(record.name)

    async def page_of(
        self, records: Iterable[T], request: Any, parent: str, passes: Callable[[T], bool] | None = None
    ) -> tuple[list[T], str]:
        """Return a page of the records that match the request's filter, in the requested order, and the token
        of the next page.

        Records may be deleted between requests. Therefore the token contains the key of the next page's first
        record, and the number of records before it. `parent`: the name of the list's parent. `passes`: the
        filter; None = a filter by texts and labels. Raises InvalidRequest.
        """
        size = page_size(request.page_size, default=self.page, maximum=self.max_page)
        text = getattr(request, "filter", "")
        passes = passes or record_filter(text, self.noun, self.texts)
        order = getattr(request, "order_by", "")
        ordered = _in_order(records, order, self.orders)
        question = (parent, text, order)
        count, _, first = decode_token(request.page_token, *question).partition(" ")
        # The scan has no time limit, because a token counts matching records. The cost is limited, because
        # names are short and a filter has a limited number of tests.
        verdicts = await Scan(passes, seconds=math.inf).judge(ordered)
        passing = list(itertools.compress(ordered, verdicts))
        keys = [self.key(record) for record in passing if first]
        start = keys.index(first) if first in keys else parse_position(count or "0")
        page, next_page = passing[start : start + size], passing[start + size :]
        token = encode_token(f"{start + size} {self.key(next_page[0])}", *question) if next_page else ""
        return page, token

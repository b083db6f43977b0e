"""Lists a bucket: prefix, delimiter, offsets, globs and stable page tokens. Blocking.

Names are in the order of their UTF-8 bytes. A page token contains the next name, so pages stay correct when
objects are created or deleted between two requests. RE2 matches globs in linear time. A bucket may have
millions of names. A call therefore ends its page after a time limit, and the client requests the next page,
as the public API allows.
"""

import base64
import binascii
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from trainshed.buckets.disk.tree import Walk
from trainshed.buckets.errors import InvalidRequest
from trainshed.buckets.names import MAX_OBJECT_NAME_BYTES
from trainshed.buckets.port import MAX_RESULTS, ObjectRecord, Page, Query, read_digits
from trainshed.core.patterns import PatternError, Regex, compile_regex

Read = Callable[[], list[ObjectRecord]]


def list_page(
    query: Query, entries: Iterable[tuple[str, Read | None]], skip_to: Callable[[bytes], None] | None = None
) -> Page:
    """Return one page. Raises `InvalidRequest` (token, glob), and errors of `entries`.

    Args:

    - entries: names in order from `floor_of` on, each with a function that reads its records. None instead of
      a function = the name is a common prefix.
    - skip_to: called with a name; entries before it are not needed.
    """
    limit = max(1, min(query.max_results, MAX_RESULTS))
    start = _start_of(query)
    objects: list[tuple[str, ObjectRecord]] = []
    prefixes: list[str] = []
    glob = compile_glob(query.match_glob) if query.match_glob else None
    until = time.monotonic() + SEARCH_TIMEOUT
    for looked, (name, read) in enumerate(entries):
        if query.end_offset and name.encode() >= query.end_offset.encode():
            break
        # End the page at the time limit, but check at least one name first, so that a client always makes
        # progress.
        if glob is not None and looked and time.monotonic() >= until:
            return Page(objects, prefixes, encode_token(name.encode()))
        if glob is not None and not glob.is_all_of(name):
            continue
        common = name if read is None else common_prefix(name, query)
        if common is not None and common in prefixes[-1:]:
            continue
        room = limit - len(objects) - len(prefixes)
        if room <= 0:
            return Page(objects, prefixes, encode_token(name.encode()))
        is_shown = common is None or (query.include_trailing_delimiter and common == name)
        if read is not None and is_shown:
            least = start.generation if name.encode() == start.name else 0
            records = [record for record in read() if record.generation >= least]
            objects += [(name, record) for record in records[:room]]
            if len(records) > room:
                token = encode_token(name.encode(), records[room].generation)
                return Page(objects, prefixes, token)
        if common is not None:
            prefixes.append(common)
            if skip_to is not None:
                # Skip all further names with this common prefix, because the response contains each prefix
                # only once.
                skip_to(after_prefix(common))
    return Page(objects, prefixes, "")


def with_noncurrent(
    walk: Walk, prefix: bytes, next_removed: Callable[[bytes], bytes | None]
) -> Iterator[str]:
    """Yield the names of all objects with the prefix that have a live or a noncurrent generation, in byte
    order. `walk`: yields the objects with a live generation. `next_removed`: accepts a name, and returns the
    first name that may have noncurrent generations, starting at the accepted name."""
    live = (entry.name.encode() for entry in walk)
    first = next(live, None)
    floor = walk.floor
    while True:
        floor = max(floor, walk.floor)
        while first is not None and first < floor:
            first = next(live, None)
        removed = next_removed(floor)
        if removed is not None and not removed.startswith(prefix):
            removed = None
        name = min((candidate for candidate in (first, removed) if candidate is not None), default=None)
        if name is None:
            return
        yield name.decode()
        floor = name + b"\0"


def floor_of(query: Query) -> bytes:
    """Return the first possible name of the page. Raises `InvalidRequest` for an unknown page token."""
    return _start_of(query).name


class _Start(Struct, frozen=True):
    """The first name and generation of a page."""

    name: bytes
    #: The lowest generation of that name to return.
    generation: int = 0


def _start_of(query: Query) -> _Start:
    if not query.page_token:
        return _Start(query.start_offset.encode())
    # A token is a name, or a name, a line feed and a generation. Object names contain no line feed.
    name, _, generation = decode_token(query.page_token).partition(b"\n")
    return _Start(name, read_digits(generation.decode(), "pageToken") if generation.isdigit() else 0)


def common_prefix(name: str, query: Query) -> str | None:
    """Return the common prefix of a name by the query's delimiter, or None if the name itself is listed."""
    if not query.delimiter:
        return None
    at = name.find(query.delimiter, len(query.prefix))
    return None if at < 0 else name[: at + len(query.delimiter)]


def after_prefix(prefix: str) -> bytes:
    """Return the first bytes after all names with a prefix: the prefix with its last byte increased by one.
    This is always possible, because UTF-8 never contains 0xff, the highest byte."""
    encoded = prefix.encode()
    return encoded[:-1] + bytes([encoded[-1] + 1])


def encode_token(floor: bytes, generation: int = 0) -> str:
    """Return the token of a page that starts with this name and generation."""
    start = b"%b\n%d" % (floor, generation) if generation else floor
    return base64.urlsafe_b64encode(start).decode()


def decode_token(token: str) -> bytes:
    """Return the content of a page token. Raises `InvalidRequest` if this service did not create it."""
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"Invalid page token '{token}': this service did not create it. List again without a token."
        ) from error


SEARCH_TIMEOUT: Final = 2.0
"""Maximum time in seconds that one call searches for matching names. The call then ends its page."""
_TOKENS = re.compile(r"(?<![^/])\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]]*\]|\{[^{}]*\}|.", re.DOTALL)
_MAX_TRANSLATION: Final = 16 * MAX_OBJECT_NAME_BYTES
"""Maximum length of a translated glob. An escaped character becomes two characters, a wildcard five."""
_MAX_STEPS: Final = 20_000
"""Maximum number of RE2 steps. It is higher than usual, because names are short and a glob may need more
steps per character than usual."""


def compile_glob(pattern: str) -> Regex:
    """Compile a glob with `*`, `?`, `**`, character sets and `{a,b}`. `*` and `?` do not match '/', `**`
    does. Raises `InvalidRequest`."""
    if len(pattern.encode(errors="replace")) > MAX_OBJECT_NAME_BYTES:
        raise InvalidRequest(
            f"Invalid matchGlob: it has over {MAX_OBJECT_NAME_BYTES} bytes, the limit of object names. "
            "Shorten it."
        )
    try:
        return compile_regex(
            _translate(pattern), dot_matches_newline=True, longest=_MAX_TRANSLATION, most_steps=_MAX_STEPS
        )
    except PatternError as error:
        raise InvalidRequest(f"Invalid matchGlob '{pattern}': {error} Correct it.") from error


def _translate(pattern: str) -> str:
    parts: list[str] = []
    for token in _TOKENS.findall(pattern):
        match token[0], len(token):
            case "*", 3:
                # Matches any number of directories, including zero.
                parts.append("(?:.*/)?")
            case "*", 2:
                parts.append(".*")
            case "*", _:
                parts.append("[^/]*")
            case "?", _:
                parts.append("[^/]")
            case "[", size if size > 1:
                negated = token[1] in "!^"
                body = token[2:-1] if negated else token[1:-1]
                # A closing bracket in the first position is a member of the set.
                escaped = "".join(f"\\{sign}" if sign in "\\[]^" else sign for sign in body)
                parts.append(f"[{'^' if negated else ''}{escaped}]")
            case "{", size if size > 1:
                parts.append(f"(?:{'|'.join(map(_translate, token[1:-1].split(',')))})")
            case _:
                parts.append(re.escape(token))
    return "".join(parts)

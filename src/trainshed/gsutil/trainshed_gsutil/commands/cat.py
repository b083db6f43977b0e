"""`cat` writes the content of objects to standard output."""

import re
import sys

from trainshed_gsutil import downloading, urls
from trainshed_gsutil.checksums import BLOCK
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure, nothing_matched
from trainshed_gsutil.expansion import Expander

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_RANGE = re.compile(r"([0-9]+)-([0-9]*)|(-[0-9]+)")


def run(context: Context) -> int:
    options, given = context.parsed("hr:", at_least=1)
    show(context, given, headers=options.has("h"), asked=options.value("r").strip())
    return 0


def show(
    context: Context, given: "Sequence[str]", *, headers: bool = False, asked: str = ""
) -> None:
    """Write the objects. `asked`: a byte range, as `FIRST-LAST`, `FIRST-` or `-COUNT`. Raises Failure."""
    first, last = _range(asked)
    shown = False
    for text in given:
        url = urls.parse(text)
        if url.is_stream:
            for block in iter(lambda: sys.stdin.buffer.read(BLOCK), b""):
                context.output.content(block)
            continue
        matched = False
        for entry in Expander(context.storage).objects(url):
            matched = True
            if headers:
                context.output.error(("\n" if shown else "") + f"==> {entry.url} <==")
            shown = True
            if entry.resource is None:
                with open(entry.url.name, "rb") as file:
                    for block in iter(lambda: file.read(BLOCK), b""):
                        context.output.content(block)
                continue
            size = int(entry.resource["size"])
            begin = max(0, size + first) if first < 0 else first
            end = None if last is None else last + 1
            connection = context.storage.connection
            for block in downloading.blocks(connection, entry.resource, begin, end):
                context.output.content(block)
            sys.stdout.flush()
        if not matched:
            raise nothing_matched(text)


def _range(asked: str) -> "tuple[int, int | None]":
    """Returns (first byte, last byte or None); a negative first byte counts from the end."""
    if asked in ("", "-"):
        return 0, None
    match = _RANGE.fullmatch(asked)
    if match is None:
        raise CommandFailure(f"Invalid range ({asked})")
    first, last, tail = match.groups()
    if tail:
        return int(tail), None
    return int(first), int(last) if last else None

"""Splits a file that arrives in blocks into lines and CSV records, and formats rows for output files."""

import csv
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

MAX_RECORD: Final = 16 << 20
"""Maximum bytes of one record."""
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark at the beginning of some UTF-8 files."""
_ZIPPED: Final = b"\x1f\x8b"


class BadData(Exception):
    """A file of a dataset has an invalid form. The message contains the file and the row."""


class Record(NamedTuple):
    """One row of a CSV file. A named tuple is fast to create, and a dataset may have millions of rows."""

    #: Number of the row in the file, from 1, without empty lines.
    row: int
    #: Number of the line at which the record begins, from 1.
    line: int
    fields: list[str]


def lines(blocks: Iterable[bytes], uri: str) -> Iterator[bytes]:
    """Yield the lines of a file without line endings. The last line may lack a line ending. Raise BadData for
    a compressed file or a line that is too long."""
    rest, number = b"", 0
    for block in _strip_byte_order_mark(blocks, uri):
        pieces = (rest + block).split(b"\n")
        rest = pieces.pop()
        number += len(pieces)
        yield from pieces
        if len(rest) > MAX_RECORD:
            raise BadData(
                f"{uri}, line {number + 1}: the line is longer than the maximum, {MAX_RECORD >> 20} MiB."
            )
    if rest:
        yield rest


def _strip_byte_order_mark(blocks: Iterable[bytes], uri: str) -> Iterator[bytes]:
    """Yield the blocks of a file without its byte order mark. Raise BadData for a compressed file."""
    source = iter(blocks)
    first = b""
    for block in source:
        first += block
        if len(first) >= len(_MARK):
            break
    if first.startswith(_ZIPPED):
        raise BadData(
            f"{uri} is compressed. Decompress it first: `gcloud storage cat {uri} | gunzip "
            "| gcloud storage cp - gs://BUCKET/PATH`."
        )
    yield first.removeprefix(_MARK)
    yield from source


def records(blocks: Iterable[bytes], uri: str) -> Iterator[Record]:
    """Yield the rows of a CSV file. Raise BadData if the file is not valid CSV."""
    is_at_end = False

    def texts() -> Iterator[str]:
        nonlocal is_at_end
        for raw in lines(blocks, uri):
            # Bytes that are not valid UTF-8 are copied unchanged.
            yield raw.decode("utf-8", "surrogateescape") + "\n"
        is_at_end = True

    csv.field_size_limit(MAX_RECORD)
    reader = csv.reader(texts())
    row, line, problem = 0, 1, _NOT_CLOSED
    try:
        for fields in reader:
            if is_at_end:  # A quotation mark is missing: the parser read to the end of the file.
                break
            if fields:
                row += 1
                yield Record(row, line, fields)
            line = reader.line_num + 1
        else:
            return
    except csv.Error as failure:
        if "new-line character" in str(failure):
            problem = _CARRIAGE_RETURN
    raise BadData(f"{uri}, row {row + 1} (line {line}): {problem}")


_NOT_CLOSED: Final = (
    f"a quoted field starts here and is not closed within {MAX_RECORD >> 20} MiB or "
    'before the end of the file; close it with ", and double each quote inside '
    "the text."
)
_CARRIAGE_RETURN: Final = (
    "an unquoted field contains a carriage return, or the lines end with carriage "
    "returns only; end lines with line feeds."
)


class _Echo:
    """An output for a CSV writer. `write` returns the text that it receives, so the writer's `writerow`
    returns the formatted row."""

    def write(self, text: str) -> str:
        return text


_writer: Final[Any] = csv.writer(_Echo(), lineterminator="\r\n")


def format_row(fields: Iterable[str]) -> bytes:
    """Return a row as a line of CSV, without a line ending."""
    return _writer.writerow(fields)[:-2].encode("utf-8", "surrogateescape")

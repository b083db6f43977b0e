"""Lines and CSV records of a file that comes in blocks, one record at a time, and rows to be written."""

import csv
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

MAX_RECORD: Final = 16 << 20
"""The most bytes of one record."""
_MARK: Final = b"\xef\xbb\xbf"
"""The mark with which some programs begin a UTF-8 file."""
_ZIPPED: Final = b"\x1f\x8b"


class BadData(Exception):
    """A file of a dataset is not what it should be. The message names the file and the row."""


class Record(NamedTuple):
    """One row of a file. A tuple, because there are millions."""

    #: Counts from 1, without empty lines.
    row: int
    #: The line on which it begins, from 1.
    line: int
    fields: list[str]


def lines(blocks: Iterable[bytes], uri: str) -> Iterator[bytes]:
    """Yield the lines of a file without their ends, whether or not the last one has an end. Raise BadData for
    a compressed file or too long a line."""
    rest, number = b"", 0
    for block in _unmarked(blocks, uri):
        pieces = (rest + block).split(b"\n")
        rest = pieces.pop()
        number += len(pieces)
        yield from pieces
        if len(rest) > MAX_RECORD:
            raise BadData(f"{uri}, line {number + 1}: it has more than {MAX_RECORD >> 20} MiB.")
    if rest:
        yield rest


def _unmarked(blocks: Iterable[bytes], uri: str) -> Iterator[bytes]:
    """Yield the blocks without the mark that a file may begin with. Raise BadData for a compressed file."""
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
    """Yield the rows of a CSV file. Raise BadData for a file that cannot be read so."""
    is_at_end = False

    def texts() -> Iterator[str]:
        nonlocal is_at_end
        for raw in lines(blocks, uri):
            # Bytes that are no UTF-8 are passed on unchanged.
            yield raw.decode("utf-8", "surrogateescape") + "\n"
        is_at_end = True

    csv.field_size_limit(MAX_RECORD)
    reader = csv.reader(texts())
    row, line, problem = 0, 1, _NOT_CLOSED
    try:
        for fields in reader:
            if is_at_end:  # The parser has looked for more of this record.
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
    """The output of a CSV writer: returns the text, which the writer returns in turn."""

    def write(self, text: str) -> str:
        return text


_writer: Final[Any] = csv.writer(_Echo(), lineterminator="\r\n")


def row_of(fields: Iterable[str]) -> bytes:
    """Return a row in its written form, without a line end."""
    return _writer.writerow(fields)[:-2].encode("utf-8", "surrogateescape")

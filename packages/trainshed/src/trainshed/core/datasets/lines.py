"""Lines and CSV records of a file that comes in blocks. Only one record is held at a time."""

import csv
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MAX_RECORD: Final = 16 << 20
"""The most bytes of one record."""
csv.field_size_limit(MAX_RECORD)
_MARK: Final = b"\xef\xbb\xbf"
"""The mark with which some programs begin a UTF-8 file."""
_ZIPPED: Final = b"\x1f\x8b"


class BadData(Exception):
    """A file of a dataset is not what it should be. The message names the file and the row."""


class Record(NamedTuple):
    """One row of a file. A tuple, because there are millions."""

    #: Counts from 1, without empty lines.
    row: int
    #: Its bytes without the line end; quoted parts may have line ends.
    raw: bytes
    #: The line on which it begins, from 1.
    line: int
    #: Its fields, if it has quotes; None = they are the parts between its commas.
    quoted: list[str] | None = None

    @property
    def fields(self) -> list[str]:
        return _text(self.raw).split(",") if self.quoted is None else self.quoted


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
            f"{uri} is compressed; unpack it first, `gcloud storage cat {uri} | gunzip | gcloud storage cp - "
            "gs://BUCKET/PATH`."
        )
    yield first.removeprefix(_MARK)
    yield from source


def records(blocks: Iterable[bytes], uri: str) -> Iterator[Record]:
    """Yield the rows of a CSV file, without the line feed or carriage return at their end. Raise BadData for
    a file that cannot be read so."""
    source = lines(blocks, uri)
    quoted = _Quoted(source)
    row = line = 0
    for first in source:
        line += 1
        if b'"' in first:
            raw, fields, more = quoted.read(first)
            row += 1
            if quoted.is_open:
                raise BadData(
                    f"{uri}, row {row} (line {line}): a quoted field begins in it that is not closed within "
                    f'{MAX_RECORD >> 20} MiB or the file; close it with ", and double a quote that belongs '
                    "to the text."
                )
            yield Record(row, raw.removesuffix(b"\r"), line, fields)
            line += more
        elif raw := first[:-1] if first.endswith(b"\r") else first:
            row += 1
            yield Record(row, raw, line)


class _Quoted:
    """The parser of all records with quotes in a file: a new one for each record takes twice the time."""

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._parts: list[bytes] = []
        self._first: bytes | None = None
        self._parser = csv.reader(self._fed())
        #: The file ended, or the record became too long, before the record was complete.
        self.is_open = False

    def read(self, first: bytes) -> tuple[bytes, list[str], int]:
        """Return a record that begins with this line, its fields, and how many more lines it has."""
        self._first = first
        self._parts = [first]
        fields = next(self._parser, [""])
        return b"\n".join(self._parts), fields, len(self._parts) - 1

    def _fed(self) -> Iterator[str]:
        """Yield each first line, and then the lines that the parser needs after it."""
        size = 0
        while True:
            if self._first is not None:
                raw, self._first, size = self._first, None, 0
            else:
                raw = next(self._source, None)
                size += 0 if raw is None else len(raw)
                if raw is None or size > MAX_RECORD:
                    self.is_open = True
                    return
                self._parts.append(raw)
            yield _text(raw) + "\n"


def _text(raw: bytes) -> str:
    # Bytes that are no UTF-8 are passed on unchanged.
    return raw.decode("utf-8", "surrogateescape")

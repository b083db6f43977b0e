"""The two-part body of a multipart upload, read as a stream.

Written for what clients really send: boundaries in single, double or no quotes, lines that end in
LF alone, a metadata part without a name. The content is never buffered as a whole: only its last
bytes are held back, until it is known that they are not the closing delimiter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainshed.buckets.errors import InvalidRequest

_BOUNDARY = re.compile(r"""boundary=("[^"]*"|'[^']*'|[^;\s]+)""", re.IGNORECASE)
_MAX_HEAD = 1 << 20
_EPILOGUE = 256


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the content: the metadata part's bytes, the content part's type."""

    metadata: bytes
    content_type: str


def boundaries_of(content_type: str) -> tuple[bytes, ...]:
    """The delimiters that a ``Content-Type`` may mean, likeliest first; raises InvalidRequest."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise InvalidRequest(
            "Multipart upload without a boundary in its Content-Type. Send one, e.g. "
            "multipart/related; boundary=xyz."
        )
    literal = match.group(1)
    unquoted = literal.strip("\"'")
    candidates = (unquoted,) if literal[0] != "'" else (unquoted, literal)
    return tuple(b"--" + candidate.encode("latin-1") for candidate in candidates)


class MultipartReader:
    """Feed it blocks, take content out; ``finish`` gives the rest. No I/O."""

    def __init__(self, content_type: str) -> None:
        self._candidates = boundaries_of(content_type)
        self._delimiter = b""
        self._newline = b"\r\n"
        self._buffer = bytearray()
        self.head: Head | None = None
        """Known as soon as the first content byte is."""

    def feed(self, block: bytes) -> bytes:
        """Take a block in; returns the content that is certain by now, perhaps none."""
        self._buffer += block
        if self.head is None and not self._parse_head():
            if len(self._buffer) > _MAX_HEAD:
                raise InvalidRequest("The metadata part of the multipart upload is over 1 MiB.")
            return b""
        certain = len(self._buffer) - len(self._delimiter) - _EPILOGUE
        if certain <= 0:
            return b""
        content = bytes(self._buffer[:certain])
        del self._buffer[:certain]
        return content

    def finish(self) -> bytes:
        """The content that was held back; raises ``InvalidRequest`` if the body was cut."""
        end = self._buffer.rfind(self._newline + self._delimiter + b"--")
        if self.head is None or end < 0:
            # An empty content may have its delimiter right behind the blank line.
            if self.head is not None and self._buffer.startswith(self._delimiter + b"--"):
                return b""
            raise InvalidRequest("The multipart upload ends before its closing boundary.")
        return bytes(self._buffer[:end])

    def _parse_head(self) -> bool:
        for candidate in self._candidates:
            start = self._at_line_start(candidate, 0)
            if start >= 0:
                return self._parse_parts(candidate, start)
        return False

    def _parse_parts(self, delimiter: bytes, start: int) -> bool:
        buffer = self._buffer
        first = _headers(buffer, start)
        if first is None:
            return False
        second = self._at_line_start(delimiter, first[1])
        if second < 0:
            return False
        content = _headers(buffer, second)
        if content is None:
            return False
        line_end = buffer.find(b"\n", second)
        self._newline = b"\r\n" if buffer[line_end - 1] == ord("\r") else b"\n"
        self._delimiter = delimiter
        metadata = bytes(buffer[first[1] : second]).strip()
        self.head = Head(metadata, content[0].get("content-type", ""))
        del buffer[: content[1]]
        return True

    def _at_line_start(self, delimiter: bytes, start: int) -> int:
        at = self._buffer.find(delimiter, start)
        while at > 0 and self._buffer[at - 1] != ord("\n"):
            at = self._buffer.find(delimiter, at + 1)
        return at


def _headers(buffer: bytearray, delimiter_at: int) -> tuple[dict[str, str], int] | None:
    """Headers of the part whose delimiter is at an offset, and where its body begins."""
    position = buffer.find(b"\n", delimiter_at)
    headers: dict[str, str] = {}
    while position >= 0:
        end = buffer.find(b"\n", position + 1)
        if end < 0:
            return None
        line = bytes(buffer[position + 1 : end]).strip()
        if not line:
            return headers, end + 1
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
        position = end
    return None

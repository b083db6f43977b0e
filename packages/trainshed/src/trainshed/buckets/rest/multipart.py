"""Parses two kinds of multipart bodies: an upload (metadata and content), and a batch of small requests.

The requests of a batch are processed in order. As in the public service, they may only concern metadata, not
content.
"""

import os
import re
from collections.abc import Awaitable, Callable

from msgspec import Struct

from trainshed.buckets.content import Checksums, merge_checksums, parse_goog_hash
from trainshed.buckets.errors import InvalidRequest
from trainshed.buckets.names import Endpoint
from trainshed.buckets.rest.calls import Call, answer, error_answer
from trainshed.httpd.messages import Response

_BOUNDARY = re.compile(r"""boundary=("[^"]*"|'[^']*'|[^;\s]+)""", re.IGNORECASE)
_MAX_HEAD = 1 << 20
"""Maximum size in bytes of the metadata part."""
_MAX_EPILOGUE = 256
"""Maximum number of bytes from the last delimiter to the end of the body. The reader withholds the last bytes
that it received, because they may contain the delimiter."""


class Head(Struct, frozen=True):
    """The data before the content: the metadata part, and the media type and checksums in the headers of the
    content part."""

    metadata: bytes
    content_type: str
    expected: Checksums


def boundaries_of(content_type: str) -> tuple[bytes, ...]:
    """Return the possible delimiters of a `Content-Type`, most likely first. Raises InvalidRequest."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise InvalidRequest(
            "The Content-Type of the multipart body has no boundary. Send one, for example "
            "multipart/related; boundary=xyz."
        )
    literal = match.group(1)
    unquoted = literal.strip("\"'")
    candidates = (unquoted,) if literal[0] != "'" else (unquoted, literal)
    return tuple(b"--" + candidate.encode("latin-1") for candidate in candidates)


class MultipartReader:
    """Separates the content from a multipart body that arrives in blocks. No I/O."""

    def __init__(self, content_type: str) -> None:
        self._candidates = boundaries_of(content_type)
        self._delimiter = b""
        self._newline = b"\r\n"
        self._buffer = bytearray()
        #: The part of the body before the content. None until it has arrived completely.
        self.head: Head | None = None

    def feed(self, block: bytes) -> bytes:
        """Add a block. Return bytes that are certainly part of the content, possibly none."""
        self._buffer += block
        if self.head is None and not self._parse_head():
            if len(self._buffer) > _MAX_HEAD:
                raise InvalidRequest("The metadata part of the multipart upload is over 1 MiB. Shorten it.")
            return b""
        certain = len(self._buffer) - len(self._delimiter) - _MAX_EPILOGUE
        if certain <= 0:
            return b""
        content = bytes(self._buffer[:certain])
        del self._buffer[:certain]
        return content

    def finish(self) -> bytes:
        """Return the remaining content. Raises `InvalidRequest` if the body is truncated."""
        end = self._buffer.rfind(self._newline + self._delimiter + b"--")
        if self.head is None or end < 0:
            # If the content is empty, the delimiter may directly follow the blank line.
            if self.head is not None and self._buffer.startswith(self._delimiter + b"--"):
                return b""
            raise InvalidRequest("The multipart upload ends before its closing boundary. Send all of it.")
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
        sums = parse_goog_hash([content[0].get("x-goog-hash", "")])
        expected = merge_checksums(sums, Checksums(content[0].get("content-md5", ""), ""))
        self.head = Head(metadata, content[0].get("content-type", ""), expected)
        del buffer[: content[1]]
        return True

    def _at_line_start(self, delimiter: bytes, start: int) -> int:
        at = self._buffer.find(delimiter, start)
        while at > 0 and self._buffer[at - 1] != ord("\n"):
            at = self._buffer.find(delimiter, at + 1)
        return at


def _headers(buffer: bytearray, delimiter_at: int) -> tuple[dict[str, str], int] | None:
    """Return the headers of a part, and the offset of its body. `delimiter_at`: the offset of the delimiter
    before the part. Return None while the headers are incomplete."""
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


_MAX_CALLS = 1000
"""Maximum number of requests in a batch."""
_MAX_BATCH_BYTES = 10 << 20
"""Maximum size in bytes of a batch's body."""
_MAX_ANSWER_BYTES = 32 << 20
"""Maximum size in bytes of the response to a batch, which is in memory. After this size is reached, the
remaining requests are rejected."""


class InnerRequest(Struct, frozen=True):
    """One request of a batch."""

    method: str
    #: The path, percent-encoded and without a host.
    path: bytes
    query: bytes
    #: The names are in lower case.
    headers: list[tuple[bytes, bytes]]
    body: bytes
    content_id: str


async def answer_batch(call: Call, answer_part: Callable[[InnerRequest], Awaitable[Response]]) -> Response:
    """Return the response to a batch: the responses to its requests, in order. Raises `InvalidRequest` if the
    batch is malformed."""
    sent = b"".join([block async for block in call.blocks(limit=_MAX_BATCH_BYTES)])
    kind = call.request.headers.get("content-type", "")
    requests = await call.run(parse_batch, kind, sent)
    boundary = f"batch_{os.urandom(12).hex()}"
    body = bytearray()
    for inner in requests:
        if len(body) > _MAX_ANSWER_BYTES:
            text = "The batch's response is too large, so this call was rejected. Send it in another batch."
            response = error_answer(InvalidRequest(text), Endpoint.METADATA)
        else:
            response = await answer_part(inner)
        lines = [
            f"--{boundary}",
            "Content-Type: application/http",
            f"Content-ID: <response-{inner.content_id.strip('<>')}>",
            "",
            f"HTTP/1.1 {response.status} {'OK' if response.status < 300 else 'Error'}",
            *(f"{name.decode('latin-1')}: {value.decode('latin-1')}" for name, value in response.headers),
            "",
            "",
        ]
        body += "\r\n".join(lines).encode("latin-1") + response.body + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return answer(bytes(body), kind=f'multipart/mixed; boundary="{boundary}"')


def parse_batch(content_type: str, body: bytes) -> list[InnerRequest]:
    """Split a batch into its requests. Raises `InvalidRequest`."""
    text = b"\n" + body
    starts = (b"\n" + delimiter for delimiter in boundaries_of(content_type))
    start = next((start for start in starts if start in text), None)
    if start is None:
        raise InvalidRequest(
            "The batch does not contain the boundary that its Content-Type specifies. Send the same boundary "
            "in both."
        )
    parts = text.split(start, _MAX_CALLS + 2)[1:]
    requests: list[InnerRequest] = []
    for number, part in enumerate(parts):
        if part.startswith(b"--"):
            break
        headers, content = _headers(bytearray(part), 0) or ({}, len(part))
        request = part[content:].removesuffix(b"\r")
        requests.append(_request(request, headers.get("content-id", str(number))))
    if not 1 <= len(requests) <= _MAX_CALLS:
        raise InvalidRequest(f"A batch must have 1 to {_MAX_CALLS} requests. Split it.")
    return requests


def _request(payload: bytes, content_id: str) -> InnerRequest:
    headers, content = _headers(bytearray(payload + b"\n\n"), 0) or ({}, len(payload))
    words = payload.partition(b"\n")[0].split()
    if len(words) < 2:
        raise InvalidRequest("A part of the batch has no request line. Send, for example, 'DELETE /path'.")
    target = words[1]
    if b"://" in target:
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    pairs = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    method = words[0].decode("latin-1")
    return InnerRequest(method, path, query, pairs, payload[content:], content_id)

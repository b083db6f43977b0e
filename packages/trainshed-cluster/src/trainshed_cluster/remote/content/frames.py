"""Frames make a stream that tells whether it is complete: a tar in pieces, then its identity, or why the
sender failed.

Each frame consists of one byte of kind, four of length, and its content. Standard library only.
"""

import hashlib
import json
import struct
from collections.abc import Callable

_HEAD = struct.Struct(">cI")
_DATA, _END, _FAILED = b"D", b"E", b"F"
PIECE = 1 << 18
_LONGEST = 1 << 20


class Torn(Exception):
    """The stream is broken or incomplete. The message says why."""


def failed(text: str) -> bytes:
    """Return the last frame of a stream whose sender failed. `text`: why."""
    content = text.encode(errors="replace")[:_LONGEST]
    return _HEAD.pack(_FAILED, len(content)) + content


class FrameWriter:
    """Writes such a stream. `put`: writes all bytes that it is given."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waits = 0

    def write(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waits += len(data)
        if self._waits >= PIECE:
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waits = 0
        self._digest.update(data)
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._put(_HEAD.pack(_DATA, len(piece)) + piece)

    def end(self, identity: str) -> None:
        """End the stream. `identity`: of what was written."""
        self._flush()
        content = json.dumps({"stream": self._digest.hexdigest(), "identity": identity}).encode()
        self._put(_HEAD.pack(_END, len(content)) + content)


class FrameReader:
    """Reads such a stream. `get`: returns that many bytes, fewer only at the end."""

    def __init__(self, get: Callable[[int], bytes]) -> None:
        self._get = get
        self._digest = hashlib.sha256()
        self._piece = memoryview(b"")
        self._identity: str | None = None

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end. Raises Torn."""
        if len(self._piece) >= size:
            data, self._piece = self._piece[:size], self._piece[size:]
            return bytes(data)
        parts = [bytes(self._piece)]
        missing = size - len(self._piece)
        self._piece = memoryview(b"")
        while missing > 0 and self._identity is None:
            self._next()
            parts.append(bytes(self._piece[:missing]))
            self._piece = self._piece[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def finish(self) -> str:
        """Read to the end. Returns the identity of what was sent. Raises Torn."""
        while self._identity is None:
            self._next()
        return self._identity

    def _next(self) -> None:
        head = self._get(_HEAD.size)
        if len(head) < _HEAD.size:
            raise Torn("the connection broke off in the middle")
        kind, length = _HEAD.unpack(head)
        if length > _LONGEST or kind not in (_DATA, _END, _FAILED):
            raise Torn("what came is no such stream")
        content = self._get(length)
        if len(content) < length:
            raise Torn("the connection broke off in the middle")
        if kind == _DATA:
            self._digest.update(content)
            self._piece = memoryview(content)
        elif kind == _FAILED:
            raise Torn(content.decode(errors="replace"))
        else:
            self._end(content)

    def _end(self, content: bytes) -> None:
        try:
            end = json.loads(content)
            stream, identity = str(end["stream"]), str(end["identity"])
        except (ValueError, KeyError, TypeError):
            raise Torn("what came is no such stream") from None
        if stream != self._digest.hexdigest():
            raise Torn("other bytes came than were sent")
        self._identity = identity

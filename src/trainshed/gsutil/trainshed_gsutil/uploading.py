"""Uploads files and streams: small ones in one request, larger ones in a session that continues where it
broke.

At most one part of a stream, or one block of a file, is in memory.
"""

import binascii
import hashlib
import http.client
import io
import json
import os
import re
import time
import urllib.parse

from trainshed_gsutil.checksums import BLOCK, base64_text
from trainshed_gsutil.connection import BROKEN, Again, Connection, pauses
from trainshed_gsutil.errors import CommandFailure, HashMismatch, Unreachable
from trainshed_gsutil.properties import DEFAULT_TYPE
from trainshed_gsutil.storage import object_path, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    Resource = dict[str, Any]

WHOLE = 8 << 20
"""Bytes up to which content goes in one request with its properties."""
_PART = 8 << 20
"""Bytes of a stream that are sent at a time, and kept until the service has them."""
_RANGE = re.compile(r"bytes=0-(\d+)")


def upload(
    connection: Connection,
    file: "IO[bytes]",
    bucket: str,
    resource: "Resource",
    conditions: "dict[str, str]",
) -> "Resource":
    """Upload an open file, which may be a stream, and return the object's properties. `resource`: its name
    and requested properties. Raises ServiceFailure, Unreachable, HashMismatch, OSError of the file."""
    seekable = file.seekable()
    size = os.fstat(file.fileno()).st_size if seekable else 0
    # Files whose size is not known, such as those below /proc, are read as streams.
    first = file.read(_PART) if size <= WHOLE else b""
    if size <= WHOLE and len(first) < _PART:
        return _whole(connection, first, bucket, resource, conditions)
    session = _Session(connection, bucket, resource, conditions)
    return session.send_file(file, size) if size > WHOLE else session.send_stream(first, file)


def _whole(
    connection: Connection,
    data: bytes,
    bucket: str,
    resource: "Resource",
    conditions: "dict[str, str]",
) -> "Resource":
    # With it the service compares the checksum before it makes the object.
    described = dict(resource, md5Hash=base64_text(hashlib.md5(data).digest()))
    edge = b"trainshed-" + binascii.hexlify(os.urandom(16))
    body = b"".join(
        (
            b"--" + edge + b"\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n",
            json.dumps(described).encode("utf-8"),
            b"\r\n--%s\r\nContent-Type: %s\r\n\r\n" % (edge, _type(resource).encode("utf-8")),
            data,
            b"\r\n--" + edge + b"--",
        )
    )
    headers = {"Content-Type": "multipart/related; boundary=%s" % edge.decode("ascii")}
    query = dict(conditions, uploadType="multipart")
    return connection.json("POST", _path(bucket), query, body, headers)


def _path(bucket: str) -> str:
    return "/upload/storage/v1/b/%s/o" % quoted(bucket)


def _type(resource: "Resource") -> str:
    return resource.get("contentType") or DEFAULT_TYPE


class _Session:
    """A resumable upload."""

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        resource: "Resource",
        conditions: "dict[str, str]",
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._digest = hashlib.md5()
        self._hashed = 0
        headers = {
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": _type(resource),
        }
        query = dict(conditions, uploadType="resumable")
        answer = connection.answer(
            "POST", _path(bucket), query, json.dumps(resource).encode("utf-8"), headers
        )
        location = urllib.parse.urlsplit(answer.headers["Location"])
        self._query = dict(urllib.parse.parse_qsl(location.query))

    def send_file(self, file: "IO[bytes]", size: int) -> "Resource":
        """Send a whole file of `size` bytes."""
        return self._checked(self._deliver(file, 0, 0, size, size))

    def send_stream(self, first: bytes, file: "IO[bytes]") -> "Resource":
        """Send `first`, and then what follows in `file`."""
        start, part = 0, first
        while len(part) == _PART:
            self._deliver(io.BytesIO(part), start, start, start + len(part), None)
            start += len(part)
            part = file.read(_PART)
        end = start + len(part)
        return self._checked(self._deliver(io.BytesIO(part), start, start, end, end))

    def _deliver(
        self, file: "IO[bytes]", start: int, offset: int, end: int, total: "int | None"
    ) -> "Resource":
        """Send the upload's bytes from `offset` to `end`; after a failure continue from where the service has
        them. `file` begins with the byte `start`. Returns the object, {} while `total` is not known."""
        left = pauses()
        while True:
            before = offset
            try:
                answer = self._put(file, start, offset, end, total)
            except (Again, *BROKEN) as broken:
                self._connection.drop()
                pause = next(left, None)
                if pause is None:
                    raise Unreachable(f"The upload broke off, again and again: {broken}") from None
                time.sleep(pause)
                answer = self._connection.repeated(lambda: self._ask(total))
            if isinstance(answer, dict):
                return answer
            offset = answer
            if total is None and offset >= end:
                return {}
            if offset > before:
                left = pauses()

    def _put(
        self, file: "IO[bytes]", start: int, offset: int, end: int, total: "int | None"
    ) -> "Resource | int":
        """Send one request. Returns the object, or the number of bytes that the service has."""
        size = "*" if total is None else str(total)
        span = "%d-%d" % (offset, end - 1) if end > offset else "*"
        headers = {
            "Content-Length": str(end - offset),
            "Content-Range": "bytes %s/%s" % (span, size),
        }
        connection = self._connection.begin("PUT", _path(self._bucket), self._query, headers)
        file.seek(offset - start)
        try:
            while offset < end:
                block = file.read(min(BLOCK, end - offset))
                if not block:
                    raise CommandFailure("The file became shorter while it was sent.")
                self._hash(offset, block)
                connection.send(block)
                offset += len(block)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The service may have sent its reason before it closed the connection.
        return self._understood(connection.getresponse())

    def _ask(self, total: "int | None") -> "Resource | int":
        """Ask how many bytes the service has."""
        headers = {
            "Content-Length": "0",
            "Content-Range": "bytes */%s" % ("*" if total is None else total),
        }
        connection = self._connection.begin("PUT", _path(self._bucket), self._query, headers)
        return self._understood(connection.getresponse())

    def _understood(self, answer: http.client.HTTPResponse) -> "Resource | int":
        data = answer.read()
        if answer.status == 308:
            match = _RANGE.match(answer.headers.get("Range") or "")
            return int(match.group(1)) + 1 if match else 0
        if answer.status >= 300:
            raise self._connection.refusal(answer.status, data)
        return json.loads(data.decode("utf-8"))

    def _hash(self, offset: int, block: bytes) -> None:
        """Add bytes that were not sent before to the checksum."""
        new = block[max(0, self._hashed - offset) :]
        self._digest.update(new)
        self._hashed += len(new)

    def _checked(self, made: "Resource") -> "Resource":
        digest = base64_text(self._digest.digest())
        if made.get("md5Hash", digest) != digest:
            path = object_path(self._bucket, made["name"])
            self._connection.json("DELETE", path, {"ifGenerationMatch": made["generation"]})
            raise HashMismatch(
                "gs://%s/%s: the service has another content than was sent (MD5 %s, sent %s). It "
                "was removed; copy it "
                "again." % (self._bucket, made["name"], made["md5Hash"], digest)
            )
        return made

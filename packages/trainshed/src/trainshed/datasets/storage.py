"""Gives the step of a dataset access to the buckets, through the bucket process's socket for programs and
with a job's rights.

It blocks, and repeats requests that failed for passing reasons.
"""

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from msgspec import Struct

from trainshed.core.patterns import fixed_part, matches
from trainshed.core.units import Bytes
from trainshed.datasets.port import Account, DataRefused, DataUnwritten
from trainshed.replica.system.unix_sockets import reachable

BLOCK: Final = 1 << 20
QUANTUM: Final = 1 << 18
"""Bytes that divide the size of every part of an upload but the last."""
_PAUSES: Final = (0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds before each next try; after the last one the request fails."""
_TIMEOUT: Final = 120.0


class Found(Struct, frozen=True):
    """An object, as listings show it."""

    uri: str
    size: Bytes
    generation: str


class _Passing(Exception):
    """A failure that may not happen again at the next try."""


class Storage:
    """A client of the buckets with one connection, for use by one thread."""

    def __init__(self, path: str, account: Account) -> None:
        """`path`: the bucket process's socket for programs."""
        self._path = path
        self._account = account
        self._connection: _Connection | None = None

    def named(self, pattern: str) -> list[Found]:
        """Returns the objects that a URI, which may hold wildcards, names, in the order of their names."""
        bucket, name = _parted(pattern)
        objects: list[Found] = []
        token = ""
        while True:
            query = {
                "prefix": fixed_part(name),
                "fields": "nextPageToken,items(name,size,generation)",
            }
            if token:
                query["pageToken"] = token
            page = self._json("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query, pattern)
            for item in page.get("items", ()):
                if matches(name, item["name"]):
                    uri = f"gs://{bucket}/{item['name']}"
                    objects.append(Found(uri, int(item["size"]), item["generation"]))
            token = page.get("nextPageToken", "")
            if not token:
                return objects

    def read(self, uri: str) -> bytes | None:
        """Returns the content of a small object; None if it does not exist."""
        answer = self._try(lambda: self._call("GET", _object(uri), {"alt": "media"}))
        if answer.status == 404:
            return None
        return _require(answer, uri).body

    def blocks(self, source: Found) -> Iterator[bytes]:
        """Yields the content of that generation, read on a separate connection."""
        at, failed = 0, 0
        while True:
            try:
                for block in self._blocks_from(source, at):
                    at += len(block)
                    failed = 0
                    yield block
                return
            except (_Passing, OSError, http.client.HTTPException) as failure:
                self._pause(failed, failure)
                failed += 1

    def _blocks_from(self, source: Found, at: int) -> Iterator[bytes]:
        connection = self._connected()
        try:
            query = urlencode({"alt": "media", "generation": source.generation})
            headers = {"Range": f"bytes={at}-"} if at else {}
            connection.request("GET", f"{_object(source.uri)}?{query}", headers=headers)
            response = connection.getresponse()
            if response.status not in (200, 206):
                body = response.read(BLOCK)
                _require(_Answer(response.status, body, {}), source.uri)
            # What is unpacked on its way has no parts: all of it comes again.
            seen = at if response.status == 200 else 0
            while block := response.read(BLOCK):
                if fresh := block[seen:]:
                    yield fresh
                seen = max(0, seen - len(block))
            if response.length:
                raise _Passing("the connection was closed")
        finally:
            connection.close()

    def begin_upload(self, uri: str, content_type: str) -> str:
        bucket, name = _parted(uri)
        query = {"uploadType": "resumable", "name": name}
        body = json.dumps({"contentType": content_type}).encode()
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        headers = {"Content-Type": "application/json"}
        answer = self._try(lambda: self._call("POST", path, query, body, headers))
        place = urlsplit(_require(answer, uri).headers["location"])
        return f"{place.path}?{place.query}"

    def put_part(self, upload: str, uri: str, part: bytes, at: int, *, is_last: bool) -> None:
        """Send the bytes from offset `at` on. Sending a part again does no harm."""
        end = at + len(part)
        whole = str(end) if is_last else "*"
        span = f"bytes {at}-{end - 1}/{whole}" if part else f"bytes */{whole}"
        answer = self._try(lambda: self._call("PUT", upload, {}, part, {"Content-Range": span}))
        if answer.status != 308:
            _require(answer, uri)
        elif is_last or answer.headers.get("range") != f"bytes=0-{end - 1}":
            raise DataUnwritten(f"The upload of {uri} is not whole; it is begun again.")

    def write(self, uri: str, content: bytes, content_type: str) -> None:
        bucket, name = _parted(uri)
        query = {"uploadType": "media", "name": name}
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        answer = self._try(
            lambda: self._call("POST", path, query, content, {"Content-Type": content_type})
        )
        _require(answer, uri)

    def delete(self, uri: str) -> None:
        """Delete an object; one that does not exist is no error."""
        answer = self._try(lambda: self._call("DELETE", _object(uri), {}))
        if answer.status != 404:
            _require(answer, uri)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _json(self, method: str, path: str, query: dict[str, str], uri: str) -> dict[str, Any]:
        answer = self._try(lambda: self._call(method, path, query))
        return cast("dict[str, Any]", json.loads(_require(answer, uri).body))

    def _try(self, call: "Callable[[], _Answer]") -> "_Answer":
        failed = 0
        while True:
            try:
                answer = call()
                if answer.status in (408, 429) or answer.status >= 500:
                    raise _Passing(answer.message)
            except (_Passing, OSError, http.client.HTTPException) as failure:
                self.close()
                self._pause(failed, failure)
                failed += 1
            else:
                return answer

    def _pause(self, failed: int, failure: Exception) -> None:
        if failed == len(_PAUSES):
            raise DataUnwritten(f"The buckets do not answer: {failure}.") from failure
        time.sleep(_PAUSES[failed])

    def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> "_Answer":
        if self._connection is None:
            self._connection = self._connected()
        target = f"{path}?{urlencode(query)}" if query else path
        self._connection.request(method, target, body=body, headers=headers or {})
        response = self._connection.getresponse()
        return _Answer(
            response.status,
            response.read(),
            {name.lower(): value for name, value in response.getheaders()},
        )

    def _connected(self) -> "_Connection":
        return _Connection(self._path, self._account)


class _Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def message(self) -> str:
        try:
            return str(json.loads(self.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return f"HTTP status {self.status}"


class _Connection(http.client.HTTPConnection):
    """A connection to the socket, which first sends on whose behalf it asks."""

    def __init__(self, path: str, account: Account) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path
        self._account = account

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT)
        with reachable(self._path) as short:
            self.sock.connect(short)
        caller = {
            "project": self._account.project,
            "job_uid": self._account.job_uid,
            "replica": "dataset",
            "service_account": self._account.email,
        }
        self.sock.sendall(json.dumps(caller).encode() + b"\n")


def _require(answer: _Answer, uri: str) -> _Answer:
    if answer.status < 300:
        return answer
    if answer.status >= 500 or answer.status in (408, 429):
        raise _Passing(answer.message)
    raise DataRefused(f"{uri}: {answer.message}")


def _parted(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _object(uri: str) -> str:
    bucket, name = _parted(uri)
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"

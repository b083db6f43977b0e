"""Gives the step of a dataset access to the buckets, through the bucket process's socket for programs and
with a job's rights.

It blocks, and repeats requests that failed for passing reasons.
"""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import Struct

from trainshed.core.patterns import fixed_part, matches
from trainshed.core.units import Bytes
from trainshed.datasets.port import Account, DataRefused, DataUnwritten
from trainshed.replica.system.unix_sockets import reachable

BLOCK: Final = 4 << 20
"""Bytes that are read of a file at a time."""
_PAUSES: Final = (0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds before each next try; after the last one the request fails."""
_TIMEOUT: Final = 120.0


class Found(Struct, frozen=True):
    """An object, as listings show it."""

    uri: str
    size: Bytes
    generation: str


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
        query = {"prefix": fixed_part(name), "fields": "nextPageToken,items(name,size,generation)"}
        objects: list[Found] = []
        while True:
            answer = self._ask("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
            page: dict[str, Any] = json.loads(_require(answer, pattern).body)
            for item in page.get("items", ()):
                if matches(name, item["name"]):
                    uri = f"gs://{bucket}/{item['name']}"
                    objects.append(Found(uri, int(item["size"]), item["generation"]))
            query["pageToken"] = page.get("nextPageToken", "")
            if not query["pageToken"]:
                return objects

    def read(self, uri: str) -> bytes | None:
        """Returns the content of a small object; None if it does not exist."""
        answer = self._ask("GET", _object(uri), {"alt": "media"})
        return None if answer.status == 404 else _require(answer, uri).body

    def blocks(self, source: Found) -> Iterator[bytes]:
        """Yields the content of that generation."""
        query = {"alt": "media", "generation": source.generation}
        at = 0
        while at < source.size:
            span = {"Range": f"bytes={at}-{at + BLOCK - 1}"}
            answer = _require(
                self._ask("GET", _object(source.uri), query, headers=span), source.uri
            )
            yield answer.body
            if answer.status == 200:
                return  # It was unpacked on its way, and has no parts.
            at += len(answer.body)

    def write(self, uri: str, content: bytes, content_type: str) -> None:
        bucket, name = _parted(uri)
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        query = {"uploadType": "media", "name": name}
        _require(self._ask("POST", path, query, content, {"Content-Type": content_type}), uri)

    def copy(self, source: Found, target: str) -> bool:
        """Copy that generation of an object; return False if it does not exist any more."""
        path = f"{_object(source.uri)}/rewriteTo/{_object(target).removeprefix('/storage/v1/')}"
        answer = self._ask("POST", path, {"sourceGeneration": source.generation}, b"")
        if answer.status == 404:
            return False
        _require(answer, target)
        return True

    def delete(self, uri: str) -> None:
        """Delete an object; one that does not exist is no error."""
        answer = self._ask("DELETE", _object(uri), {})
        if answer.status != 404:
            _require(answer, uri)

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> "_Answer":
        """Return the answer to a request, repeated while it fails for passing reasons. Raises
        DataUnwritten."""
        problem = ""
        for pause in (*_PAUSES, None):
            try:
                if self._connection is None:
                    self._connection = _Connection(self._path, self._account)
                self._connection.request(method, f"{path}?{urlencode(query)}", body, headers or {})
                response = self._connection.getresponse()
                answer = _Answer(response.status, response.read())
                if answer.status not in (408, 429) and answer.status < 500:
                    return answer
                problem = answer.message
            except (OSError, http.client.HTTPException) as failure:
                problem = str(failure)
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if pause is not None:
                time.sleep(pause)
        raise DataUnwritten(f"The buckets do not answer: {problem}.")


class _Answer(Struct, frozen=True):
    status: int
    body: bytes

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
    """Return the answer if it is no error. Raises DataRefused."""
    if answer.status < 300:
        return answer
    raise DataRefused(f"{uri}: {answer.message}")


def _parted(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _object(uri: str) -> str:
    bucket, name = _parted(uri)
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"

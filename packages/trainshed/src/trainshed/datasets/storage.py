"""Accesses the buckets for the process that splits a dataset. Requests use the bucket process's socket for
programs, and a job's permissions. All methods block, and repeat requests after temporary failures."""

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
"""Bytes per read of a file."""
_RETRY_DELAYS: Final = (0.1, 0.3, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Seconds to wait before each retry. If the last retry fails, the request fails."""
_TIMEOUT: Final = 120.0


class StoredObject(Struct, frozen=True):
    """An object in a bucket's listing."""

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

    def list_objects(self, pattern: str) -> list[StoredObject]:
        """Return the objects that match a URI with wildcards, sorted by name."""
        bucket, name = _split_uri(pattern)
        query = {"prefix": fixed_part(name), "fields": "nextPageToken,items(name,size,generation)"}
        objects: list[StoredObject] = []
        while True:
            answer = self._request("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
            page: dict[str, Any] = json.loads(_require(answer, pattern).body)
            for item in page.get("items", ()):
                if matches(name, item["name"]):
                    uri = f"gs://{bucket}/{item['name']}"
                    objects.append(StoredObject(uri, int(item["size"]), item["generation"]))
            query["pageToken"] = page.get("nextPageToken", "")
            if not query["pageToken"]:
                return objects

    def read(self, uri: str) -> bytes | None:
        """Return the content of a small object, or None if it does not exist."""
        answer = self._request("GET", _object(uri), {"alt": "media"})
        return None if answer.status == 404 else _require(answer, uri).body

    def blocks(self, source: StoredObject) -> Iterator[bytes]:
        """Yield the content of one generation of an object."""
        query = {"alt": "media", "generation": source.generation}
        at = 0
        while at < source.size:
            span = {"Range": f"bytes={at}-{at + BLOCK - 1}"}
            answer = _require(self._request("GET", _object(source.uri), query, headers=span), source.uri)
            yield answer.body
            if answer.status == 200:
                return  # Complete: the content was decompressed on the way.
            at += len(answer.body)

    def write(self, uri: str, content: bytes, content_type: str) -> None:
        bucket, name = _split_uri(uri)
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        query = {"uploadType": "media", "name": name}
        _require(self._request("POST", path, query, content, {"Content-Type": content_type}), uri)

    def copy(self, source: StoredObject, target: str) -> bool:
        """Copy one generation of an object. Return False if that generation no longer exists."""
        path = f"{_object(source.uri)}/rewriteTo/{_object(target).removeprefix('/storage/v1/')}"
        answer = self._request("POST", path, {"sourceGeneration": source.generation}, b"")
        if answer.status == 404:
            return False
        _require(answer, target)
        return True

    def delete(self, uri: str) -> None:
        """Delete an object. It is not an error if the object does not exist."""
        answer = self._request("DELETE", _object(uri), {})
        if answer.status != 404:
            _require(answer, uri)

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> "_Answer":
        """Return the response to a request. Retry after temporary failures. Raises DataUnwritten."""
        problem = ""
        for delay in (*_RETRY_DELAYS, None):
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
            if delay is not None:
                time.sleep(delay)
        raise DataUnwritten(f"The service's bucket process does not respond: {problem}. Try again later.")


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
    """A connection to the socket. Its first line identifies the caller."""

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
    """Return a successful response. For all others, raise DataRefused. `uri`: the object in its message."""
    if answer.status < 300:
        return answer
    raise DataRefused(f"{uri}: {answer.message}")


def _split_uri(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _object(uri: str) -> str:
    bucket, name = _split_uri(uri)
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"

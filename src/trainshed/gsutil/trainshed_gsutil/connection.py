"""Sends HTTP requests to the endpoint: one connection for each thread, which is opened again when it breaks.
Requests that fail for passing reasons are repeated."""

import http.client
import json
import os
import random
import threading
import time
import urllib.parse
from typing import NamedTuple

from trainshed_gsutil.errors import Unreachable, of_answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from email.message import Message
    from typing import Any, Callable, Iterator, Mapping, TypeVar

    T = TypeVar("T")

VARIABLE = "STORAGE_EMULATOR_HOST"
_PAUSES = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0)
"""Seconds between the tries of one request: a restarting service is back within them."""
_TRIED_AGAIN = frozenset((408, 429, 500, 502, 503, 504))
_SILENCE = 300.0
"""Seconds without a byte after which a connection counts as broken."""

BROKEN = (OSError, http.client.HTTPException)


def pauses() -> "Iterator[float]":
    """The seconds to wait before each further try."""
    return (pause * random.uniform(0.8, 1.2) for pause in _PAUSES)


class Answer(NamedTuple):
    """A response with a small body."""

    headers: "Message"
    content: bytes


class Connection:
    """The endpoint's connections. `address`: `http://HOST:PORT`, perhaps with a path that precedes all
    others."""

    def __init__(self, address: str) -> None:
        if "//" not in address:
            address = "http://" + address
        parts = urllib.parse.urlsplit(address)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self._own = threading.local()

    @classmethod
    def of_environment(cls) -> "Connection":
        """The endpoint that the environment names. Raises Unreachable if it names none."""
        address = os.environ.get(VARIABLE, "")
        if not address:
            raise Unreachable(
                f"{VARIABLE} is not set, which says where storage is. Programs of jobs have it: "
                "pass it on to this process."
            )
        return cls(address)

    def drop(self) -> None:
        """Close this thread's connection, which is in the middle of a response."""
        open_one = getattr(self._own, "connection", None)
        if open_one is not None:
            open_one.close()
        self._own.connection = None

    def begin(
        self, method: str, path: str, query: "Mapping[str, str]", headers: "Mapping[str, str]"
    ) -> http.client.HTTPConnection:
        """Send a request's head; the caller sends the body. Raises OSError, HTTPException."""
        connection = getattr(self._own, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._own.connection = kind(self._host, timeout=_SILENCE)
        target = self._prefix + path
        if query:
            target += "?" + urllib.parse.urlencode(query)
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection

    def json(
        self,
        method: str,
        path: str,
        query: "Mapping[str, str]",
        body: bytes = b"",
        headers: "Mapping[str, str] | None" = None,
    ) -> "dict[str, Any]":
        """Send a small request, with repetitions, and return the JSON of its answer. Raises ServiceFailure,
        Unreachable."""
        data = self.answer(method, path, query, body, headers).content
        return json.loads(data.decode("utf-8")) if data else {}

    def answer(
        self,
        method: str,
        path: str,
        query: "Mapping[str, str]",
        body: bytes = b"",
        headers: "Mapping[str, str] | None" = None,
    ) -> "Answer":
        """As `json`, but returns the whole answer with its headers."""
        given = dict(headers or {})
        given["Content-Length"] = str(len(body))

        def once() -> Answer:
            connection = self.begin(method, path, query, given)
            if body:
                connection.send(body)
            got = connection.getresponse()
            data = got.read()
            if got.status >= 300:
                raise self.refusal(got.status, data)
            return Answer(got.headers, data)

        return self.repeated(once)

    def refusal(self, status: int, data: bytes) -> Exception:
        """Returns the exception that an error response stands for."""
        failure = of_answer(status, data.decode("utf-8", "replace"))
        return Again(failure) if status in _TRIED_AGAIN else failure

    def repeated(self, once: "Callable[[], T]") -> "T":
        """Call `once` until it succeeds or no try is left. Raises what the last call raised."""
        for pause in pauses():
            try:
                return once()
            except Again:
                pass
            except BROKEN:
                self.drop()
            time.sleep(pause)
        try:
            return once()
        except Again as last:
            raise last.failure from None
        except BROKEN as last:
            self.drop()
            raise Unreachable("%s does not answer: %s" % (self._host, last)) from None


class Again(Exception):
    """The request failed for a passing reason. `failure` is raised if it still fails at the last try."""

    def __init__(self, failure: Exception) -> None:
        super().__init__(str(failure))
        self.failure = failure

"""Forwards storage requests from the API process to the bucket process, over its Unix socket, and sends the
service's own.

The gateway streams both ways with back-pressure and buffers nothing. It finds out who asks (by the
``Identify`` that the composition root hands in) and tells the bucket process in a header that no client can
set; what the caller may do is decided there. While the bucket process restarts, requests get a 503, which
clients retry.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainshed.buckets.authentication import Renewal
from trainshed.buckets.callers import Caller, encode_caller, split_key
from trainshed.buckets.errors import BucketsError, Unauthenticated, Unavailable
from trainshed.buckets.rest.calls import GUARDS, IDENTITY_HEADER, VerbatimName
from trainshed.buckets.rest.views import error_view
from trainshed.eventloop.background import joined
from trainshed.httpd.forwarding import Answer
from trainshed.httpd.messages import CHALLENGE, JSON, Receive, Response, Scope, Send, sized
from trainshed.replica.system.unix_sockets import reachable

PREFIXES = ("/storage/", "/upload/", "/resumable/", "/download/", "/batch/storage/", "/with/")
_log = logging.getLogger(__name__)
_READ = 1 << 18
_HOP_BY_HOP = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"),
    *(b"transfer-encoding", b"expect", b"x-forwarded-proto", IDENTITY_HEADER.encode()),
}
_CAPITALS = {b"location": VerbatimName(b"Location"), b"range": VerbatimName(b"Range")}

Identify = Callable[[str | None, str], Awaitable[Caller]]
"""Returns who asks, given the ``Authorization`` header and the key in the address (``Authenticator.caller``).
A ``BucketsError`` that it raises is the answer."""


def handles(path: str) -> bool:
    """Whether a request path belongs to the storage API."""
    return path.startswith(PREFIXES)


class _Lost(Exception):
    """The bucket process closed the connection before it answered."""


class BucketsGateway:
    """An ASGI application that looks to clients like the bucket process."""

    def __init__(self, uds: Path, identify: Identify) -> None:
        self._uds = uds
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one HTTP request."""
        if scope["type"] != "http":
            return
        try:
            raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
            sent: bytes | None = dict(scope["headers"]).get(b"authorization")
            header = sent.decode("latin-1") if sent is not None else None
            key, _ = split_key(raw_path)
            caller = await self._identify(header, key)

            async def ask() -> None:
                if await self._identify(header, key) != caller:
                    raise Unauthenticated("Your roles have changed meanwhile: send this again.")

            head = _head_of(scope, caller)
            await self._forward(scope, receive, send, head, Renewal(ask, header))
        except BucketsError as error:
            await _refused(error).send(receive, send)

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, head: _Head, renew: Renewal
    ) -> None:
        try:
            with reachable(str(self._uds)) as short:
                reader, writer = await asyncio.open_unix_connection(short, limit=_READ)
        except OSError as error:
            raise _restarting() from error
        pump = _Pump(receive, writer, renew, chunked=head.chunked)
        try:
            writer.write(head.encoded)
            await self._exchange(reader, scope["method"], pump, send)
        except (_Lost, ConnectionError) as error:
            if not pump.client_gone:
                raise _restarting() from error
        finally:
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, method: str, pump: _Pump, send: Send
    ) -> None:
        """Forward the body and the answer."""
        pumping, started = joined(pump.run()), False
        try:
            reply = Answer()
            while not reply.is_done:
                data = await reader.read(_READ)
                if pump.refusal is not None:
                    raise pump.refusal
                if not data:
                    if started and not pump.client_gone:
                        raise RuntimeError("the bucket process died during an answer")
                    raise _Lost
                reply.parser.feed_data(data)
                if reply.has_head and not started:
                    started = True
                    await send(
                        {
                            "type": "http.response.start",
                            "status": reply.status,
                            "headers": [
                                (_CAPITALS.get(name, name), value)
                                for name, value in reply.headers
                                if name not in _HOP_BY_HOP
                            ],
                        }
                    )
                    if method == "HEAD":
                        break  # The parser would wait for the body that Content-Length announces.
                if body := reply.blocks():
                    await pump.renew()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BucketsError as refusal:
            if not started:
                raise
            _log.warning("an answer was cut: %s", refusal)
        finally:
            pumping.cancel()


class _Pump:
    """Forwards a request's body, then waits for the client to go away."""

    def __init__(
        self, receive: Receive, writer: asyncio.StreamWriter, renew: Renewal, *, chunked: bool
    ) -> None:
        self._receive = receive
        self._writer = writer
        self._chunked = chunked
        self.renew = renew
        self.client_gone = False
        #: Why the request may not go on.
        self.refusal: BucketsError | None = None

    async def run(self) -> None:
        """Run until the client is gone; it is cancelled when the exchange is over."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.client_gone = True
                self._writer.close()  # What was cut must look cut on the other side, too.
                return
            try:
                await self.renew()
            except BucketsError as refusal:
                self.refusal = refusal
                self._writer.close()
                return
            body: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            if body:
                block = b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body
                self._writer.write(block)
            if self._chunked and not more:
                self._writer.write(b"0\r\n\r\n")
            try:
                await self._writer.drain()
            except ConnectionError:
                return  # The reading side sees this, too, and may have an answer to forward.


class _Head(Struct, frozen=True):
    """A request's line and headers as they are forwarded."""

    encoded: bytes
    chunked: bool


def _head_of(scope: Scope, caller: Caller) -> _Head:
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target)]
    chunked = False
    for name, value in scope["headers"]:
        chunked = chunked or (name == b"transfer-encoding" and b"chunked" in value.lower())
        if name not in _HOP_BY_HOP:
            lines.append(b"%b: %b" % (name, value))
    if chunked:
        lines.append(b"transfer-encoding: chunked")
    lines.append(b"x-forwarded-proto: %b" % scope.get("scheme", "http").encode())
    lines.append(b"%b: %b" % (IDENTITY_HEADER.encode(), encode_caller(caller)))
    lines.append(b"connection: close")
    return _Head(b"\r\n".join([*lines, b"", b""]), chunked)


def _refused(error: BucketsError) -> Response:
    more = [*GUARDS]
    if error.status == 401:
        more.append(CHALLENGE)
    if error.status == 503:
        more.append((b"retry-after", b"1"))
    return sized(msgspec.json.encode(error_view(error)), JSON, error.status, more)


def _restarting() -> Unavailable:
    return Unavailable(
        "The bucket service is not answering: it is restarting, or could not start. "
        "Try again in a moment; if it lasts, look into the service's log."
    )


class BucketCalls:
    """Requests of the service itself, with the rights of one caller and without a body. Paths are encoded,
    and have their query."""

    def __init__(self, uds: Path, caller: Caller, is_valid: Callable[[], bool]) -> None:
        """`uds`: the bucket process's socket for the service. `is_valid`: whether the caller may go on."""

        async def identify(_authorization: str | None, _key: str) -> Caller:
            if not is_valid():
                raise Unauthenticated("Your session has ended, or your roles have changed.")
            return caller

        self._gateway = BucketsGateway(uds, identify)

    async def send(self, method: str, path: str, receive: Receive, send: Send) -> None:
        """Forward a request, and its answer to `send`."""
        raw, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), (b"content-length", b"0")],
        }
        await self._gateway(scope, receive, send)

    async def ask(self, method: str, path: str, most: int = 64 << 20) -> tuple[int, Any]:
        """Return the answer's status and JSON; 503 while the bucket process restarts, 413 if the answer has
        more bytes than `most`."""
        status, body = 0, bytearray()
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await asyncio.Event().wait()  # Never disconnects before the answer is there.
            return message

        async def take(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if len(body) <= most:
                body.extend(message.get("body", b""))

        try:
            await self.send(method, path, receive, take)
        except RuntimeError as died:
            return 503, {"error": {"message": str(died)}}
        if len(body) > most:
            return 413, {"error": {"message": "The answer is too large."}}
        return status, json.loads(body) if body else {}

"""Forwards storage requests from the API process to the bucket process, over its Unix socket.

The gateway streams in both directions with back-pressure and without buffers. It authenticates the caller (by
the `Identify` of the composition root) and sends the identity in a header that clients cannot set. The bucket
process checks the permissions. While the bucket process restarts, clients receive status 503 and retry.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from trainshed.buckets.authentication import PermissionRecheck
from trainshed.buckets.callers import Caller, encode_caller, split_key
from trainshed.buckets.errors import BucketsError, Unauthenticated, Unavailable
from trainshed.buckets.rest.calls import GUARDS, IDENTITY_HEADER, VerbatimName
from trainshed.buckets.rest.views import error_view
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.forwarding import NoResponse, Rules, forward
from trainshed.httpd.messages import (
    CHALLENGE,
    JSON,
    Disconnected,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    sized_response,
)
from trainshed.replica.system.unix_sockets import reachable

PREFIXES = ("/storage/", "/upload/", "/resumable/", "/download/", "/batch/storage/", "/with/")
_log = logging.getLogger(__name__)
_OWN_HEADERS = (b"x-forwarded-proto", IDENTITY_HEADER.encode())
"""Headers that only the gateway may set. The gateway removes them from requests, so that clients cannot forge
an identity."""
_CAPITALS = {b"location": VerbatimName(b"Location"), b"range": VerbatimName(b"Range")}

Identify = Callable[[str | None, str | None], Awaitable[Caller]]
"""Returns the caller of a request, from its `Authorization` header and the key in its URL
(`Authenticator.caller`). A `BucketsError` that it raises becomes the response."""


class BucketsGateway:
    """An ASGI application that behaves like the bucket process."""

    def __init__(self, uds: Path, identify: Identify) -> None:
        self._uds = uds
        self._identify = identify
        self._never = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_started = False

        async def note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            answer = await self._forward(Request(scope, receive))
            await answer.send(receive, note)
        except Disconnected:
            _log.debug("client disconnected: %s %s", scope["method"], scope["path"])
        except BucketsError as error:
            if has_started:
                _log.warning("an answer was cut off: %s", error)
            else:
                await _error_response(error).send(receive, send)

    async def _forward(self, request: Request) -> Response:
        """Forward a request and return its response. The transfer ends if the caller loses the permission.
        Raises BucketsError and Disconnected."""
        raw_path: bytes = request.scope.get("raw_path") or request.path.encode()
        header = request.headers.get("authorization")
        key, _ = split_key(raw_path)
        caller = await self._identify(header, key)

        async def check() -> None:
            if await self._identify(header, key) != caller:
                raise Unauthenticated("Your roles changed during the request. Send the request again.")

        ours = (
            (b"x-forwarded-proto", request.scope.get("scheme", "http").encode()),
            (IDENTITY_HEADER.encode(), encode_caller(caller)),
        )
        rules = Rules(
            lambda headers: [*(pair for pair in headers if pair[0] not in _OWN_HEADERS), *ours],
            lambda headers: [(_CAPITALS.get(name, name), value) for name, value in headers],
            timeout=None,
        )
        try:
            with reachable(str(self._uds)) as short:
                line = _Line(*await asyncio.open_unix_connection(short))
        except OSError as error:
            raise _restart_error() from error
        line.revalidate = PermissionRecheck(check, None if key else header)
        try:
            return await forward(line, request, rules, self._never)
        except NoResponse as error:
            raise _restart_error() from error


class _Line(StreamLine):
    """A connection to the bucket process that checks the caller's permission while data moves."""

    revalidate: PermissionRecheck

    async def read(self) -> bytes:
        data = await super().read()
        await self.revalidate()
        return data

    async def write(self, data: bytes) -> None:
        await self.revalidate()
        await super().write(data)


def _error_response(error: BucketsError) -> Response:
    more = {401: (CHALLENGE,), 503: ((b"retry-after", b"1"),)}.get(error.status, ())
    return sized_response(msgspec.json.encode(error_view(error)), JSON, error.status, (*GUARDS, *more))


def _restart_error() -> Unavailable:
    return Unavailable(
        "The bucket service does not answer: it is restarting, or could not start. Try again in a moment. "
        "If this persists, read the service's log."
    )

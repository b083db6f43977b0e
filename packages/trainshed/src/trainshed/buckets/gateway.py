"""Forwards storage requests from the API process to the bucket process, over its Unix socket.

The gateway streams both ways with back-pressure and buffers nothing. It finds out who asks (by the
`Identify` that the composition root hands in) and tells the bucket process in a header that no client can
set; what the caller may do is decided there. While the bucket process restarts, requests get a 503, which
clients retry.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from trainshed.buckets.authentication import Renewal
from trainshed.buckets.callers import Caller, encode_caller, split_key
from trainshed.buckets.errors import BucketsError, Unauthenticated, Unavailable
from trainshed.buckets.rest.calls import GUARDS, IDENTITY_HEADER, VerbatimName
from trainshed.buckets.rest.views import error_view
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.forwarding import NoAnswer, Rules, forward
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
    sized,
)
from trainshed.replica.system.unix_sockets import reachable

PREFIXES = ("/storage/", "/upload/", "/resumable/", "/download/", "/batch/storage/", "/with/")
_log = logging.getLogger(__name__)
_OURS = (b"x-forwarded-proto", IDENTITY_HEADER.encode())
"""Headers that the gateway alone sends."""
_CAPITALS = {b"location": VerbatimName(b"Location"), b"range": VerbatimName(b"Range")}

Identify = Callable[[str | None, str | None], Awaitable[Caller]]
"""Returns who asks, given the `Authorization` header and the key in the address (`Authenticator.caller`).
A `BucketsError` that it raises is the answer."""


class BucketsGateway:
    """An ASGI application that looks to clients like the bucket process."""

    def __init__(self, uds: Path, identify: Identify) -> None:
        self._uds = uds
        self._identify = identify
        self._never = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            answer = await self._forward(Request(scope, receive))
            await answer.send(receive, note)
        except Disconnected:
            _log.debug("client went away: %s %s", scope["method"], scope["path"])
        except BucketsError as error:
            if begun:
                _log.warning("an answer was cut: %s", error)
            else:
                await _refused(error).send(receive, send)

    async def _forward(self, request: Request) -> Response:
        """Forward a request, as long as who sends it may. Raises BucketsError, Disconnected."""
        raw_path: bytes = request.scope.get("raw_path") or request.path.encode()
        header = request.headers.get("authorization")
        key, _ = split_key(raw_path)
        caller = await self._identify(header, key)

        async def ask() -> None:
            if await self._identify(header, key) != caller:
                raise Unauthenticated("Your roles have changed meanwhile: send this again.")

        ours = (
            (b"x-forwarded-proto", request.scope.get("scheme", "http").encode()),
            (IDENTITY_HEADER.encode(), encode_caller(caller)),
        )
        rules = Rules(
            lambda headers: [*(pair for pair in headers if pair[0] not in _OURS), *ours],
            lambda headers: [(_CAPITALS.get(name, name), value) for name, value in headers],
            patience=None,
        )
        try:
            with reachable(str(self._uds)) as short:
                line = _Line(*await asyncio.open_unix_connection(short))
        except OSError as error:
            raise _restarting() from error
        line.renew = Renewal(ask, None if key else header)
        try:
            return await forward(line, request, rules, self._never)
        except NoAnswer as error:
            raise _restarting() from error


class _Line(StreamLine):
    """A connection to the bucket process, on which something moves as long as the caller may."""

    renew: Renewal

    async def read(self) -> bytes:
        data = await super().read()
        await self.renew()
        return data

    async def write(self, data: bytes) -> None:
        await self.renew()
        await super().write(data)


def _refused(error: BucketsError) -> Response:
    more = {401: (CHALLENGE,), 503: ((b"retry-after", b"1"),)}.get(error.status, ())
    return sized(msgspec.json.encode(error_view(error)), JSON, error.status, (*GUARDS, *more))


def _restarting() -> Unavailable:
    return Unavailable(
        "The bucket service is not answering: it is restarting, or could not start. "
        "Try again in a moment; if it lasts, look into the service's log."
    )

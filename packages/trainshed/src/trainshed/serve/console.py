"""Builds the console of a service."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from trainshed.access.principals import Principal
from trainshed.access.sessions import Sessions
from trainshed.api.calls.services import Services
from trainshed.api.inside import InsideCaller
from trainshed.buckets.authentication import caller_of
from trainshed.buckets.gateway import BucketsGateway
from trainshed.console.application import ConsoleApplication
from trainshed.console.backend import Facts
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.httpd.messages import Message, Receive, Response, Scope, Send
from trainshed.serve import clock
from trainshed.serve.addresses import browsers_address
from trainshed.serve.bootstrap import Bootstrap
from trainshed.wire.json import decode_text
from trainshed.wire.status import Refused, StatusCode

SESSIONS = "sessions.json"
_MOST = 4 << 20
"""Most bytes of an answer of the storage API that a page is made of."""
_KEPT = frozenset({b"content-type", b"content-length", b"x-goog-generation", b"x-goog-hash"})


class GatewayBuckets:
    """Calls the bucket process on behalf of a visitor (`console.backend.Buckets`)."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def ask(self, principal: Principal, path: str) -> Any:
        status, parts, size = 0, list[bytes](), 0

        async def take(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                return
            body: bytes = message.get("body", b"")
            size += len(body)
            if size <= _MOST:
                parts.append(body)

        await self.send(principal, path, _nothing_more(), take)
        if size > _MOST:
            raise Refused(StatusCode.RESOURCE_EXHAUSTED, "That is more than a page can show.")
        answer: Any = decode_text(b"".join(parts))
        if status >= 400:
            fault: Any = answer["error"]
            codes = {404: StatusCode.NOT_FOUND, 503: StatusCode.UNAVAILABLE}
            raise Refused(
                codes.get(status, StatusCode.PERMISSION_DENIED), str(fault.get("message", status))
            )
        return answer

    def download(self, principal: Principal, path: str, name: str) -> Response:
        return _Download(self, principal, path, name)

    async def send(self, principal: Principal, path: str, receive: Receive, send: Send) -> None:
        """Answer `GET path`."""
        raw, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": unquote(raw),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost")],
            "scheme": "http",
        }
        gateway = BucketsGateway(self._socket, lambda header, key: caller_of(principal))
        await gateway(scope, receive, send)


class _Download(Response):
    """The download of an object. What jobs wrote is never shown as a page of this address."""

    def __init__(self, buckets: GatewayBuckets, principal: Principal, path: str, name: str) -> None:
        super().__init__()
        self._buckets = buckets
        self._ask = principal, path
        self._name = name

    async def send(self, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() in _KEPT]
                if message["status"] < 400:
                    disposition = f"attachment; filename*=UTF-8''{quote(self._name, safe='')}"
                    kept.append((b"content-disposition", disposition.encode()))
                kept.append((b"content-security-policy", b"sandbox; default-src 'none'"))
                names = {name for name, _ in kept}
                more = [pair for pair in self.headers if pair[0] not in names]
                message = {**message, "headers": [*kept, *more]}
            await send(message)

        await self._buckets.send(*self._ask, receive, pass_on)


def _nothing_more() -> Receive:
    """Return the input of a request without a body, whose client stays connected."""
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        message = next(messages, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    return receive


def build_console(
    bootstrap: Bootstrap, services: Services, closing: asyncio.Event
) -> ConsoleApplication:
    """Build the console. `closing`: set when the service stops."""
    settings = bootstrap.settings
    return ConsoleApplication(
        Sessions(settings.data / SESSIONS, lambda: bootstrap.tokens, clock.now),
        InsideCaller(services),
        GatewayBuckets(bootstrap.gateway_socket),
        signing_in=bootstrap.signing_in,
        facts=Facts(
            version=services.settings.version,
            project=settings.project,
            region=settings.region,
            bucket=DEFAULT_BUCKET,
            address=browsers_address(settings, bootstrap.listener.getsockname()[1]).rstrip("/"),
        ),
        now=clock.now,
        closing=closing,
    )

"""Builds the console of a service."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainshed.access.principals import Principal
from trainshed.access.sessions import Sessions
from trainshed.api.calls.services import Services
from trainshed.api.inside import InsideCaller
from trainshed.buckets.authentication import caller_of
from trainshed.buckets.gateway import BucketCalls
from trainshed.console.application import ConsoleApplication
from trainshed.console.visits import Facts
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.httpd.messages import Message, Receive, Response, Send
from trainshed.serve import clock
from trainshed.serve.addresses import browsers_address
from trainshed.serve.bootstrap import Bootstrap
from trainshed.wire.status import Refused, StatusCode

SESSIONS = "sessions.json"
_MOST = 4 << 20
"""Most bytes of an answer of the storage API that a page is made of."""
_CODES = {
    404: StatusCode.NOT_FOUND,
    413: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
}
_KEPT = frozenset({b"content-type", b"content-length", b"x-goog-generation", b"x-goog-hash"})


class GatewayBuckets:
    """Calls the bucket process on behalf of a visitor (`console.visits.Buckets`)."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def ask(self, principal: Principal, path: str) -> Any:
        status, answer = await self._calls(principal).ask("GET", path, _MOST)
        if status < 400:
            return answer
        code = _CODES.get(status, StatusCode.PERMISSION_DENIED)
        raise Refused(code, str(answer["error"].get("message", status)))

    def download(self, principal: Principal, path: str, name: str) -> Response:
        return _Download(self._calls(principal), path, name)

    def _calls(self, principal: Principal) -> BucketCalls:
        return BucketCalls(self._socket, caller_of(principal))


class _Download(Response):
    """The download of an object. What jobs wrote is never shown as a page of this address."""

    def __init__(self, calls: BucketCalls, path: str, name: str) -> None:
        super().__init__()
        self._calls = calls
        self._path = path
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

        await self._calls.send("GET", self._path, receive, pass_on)


def build_console(
    bootstrap: Bootstrap, services: Services, closing: asyncio.Event
) -> ConsoleApplication:
    """Build the console. `closing`: set when the service stops."""
    settings = bootstrap.settings
    return ConsoleApplication(
        Sessions(
            settings.data / SESSIONS,
            bootstrap.signing_in.authenticate,
            bootstrap.tokens.known,
            clock.now,
        ),
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

"""What every surface does with a request: begin it, answer it or say why not, send that, and note how it
ended."""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from trainshed.httpd.messages import (
    Disconnected,
    Message,
    Receive,
    Request,
    Response,
    Scope,
    Send,
)

C = TypeVar("C")
_log = logging.getLogger(__name__)


class Surface(Protocol[C]):
    """What one application knows of its requests. `C`: a request in progress, as its handlers see it."""

    def begin(self, request: Request) -> C:
        """The request in progress. Raises nothing: there is nobody yet who could tell it."""
        ...

    async def answer(self, call: C) -> Response:
        """Find who calls and what is meant, and do it. Raises whatever is wrong."""
        ...

    def refuse(self, call: C, error: Exception) -> Response:
        """The answer to a request that raised this, in the public form of its API. The last frame that knows
        the request: a fault of the service itself is logged here."""
        ...

    def ended(self, call: C, status: int) -> None:
        """It was answered with this status; 0: its client went away before."""
        ...


class Front(Generic[C]):
    """A surface as an ASGI application."""

    def __init__(self, surface: Surface[C]) -> None:
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        call = self._surface.begin(Request(scope, receive))
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            response = await self.respond(call)
            await response.send(receive, noted)
        except Disconnected:
            _log.debug("client went away: %s %s", scope["method"], scope["path"])
        finally:
            self._surface.ended(call, status)

    async def respond(self, call: C) -> Response:
        """The answer, which may be a refusal. Raises Disconnected."""
        try:
            return await self._surface.answer(call)
        except Disconnected:
            raise
        except Exception as error:  # Broad: whatever it is, the caller is told.
            return self._surface.refuse(call, error)

"""Runs every request in the same way: begins it, answers or refuses it, and sends the response."""

from __future__ import annotations

import logging
from typing import Generic, Protocol, TypeVar

from trainshed.httpd.messages import (
    Disconnected,
    Receive,
    Request,
    Response,
    Scope,
    Send,
)

C = TypeVar("C")
_log = logging.getLogger(__name__)


class Surface(Protocol[C]):
    """What one application does with its requests. `C` is the type of a request in progress."""

    def begin(self, request: Request) -> C:
        """Returns the request in progress. It must not raise: there is no call yet that an error could be
        shown in."""
        ...

    async def answer(self, call: C) -> Response:
        """Find out who calls and what is asked, and do it. Raises whatever is wrong."""
        ...

    def refuse(self, call: C, error: Exception) -> Response:
        """Returns the response to a request that raised `error`, in the public form of its API. A fault of
        the service itself is logged here, since no later function knows the request."""
        ...


class Front(Generic[C]):
    """A surface as an ASGI application."""

    def __init__(self, surface: Surface[C]) -> None:
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        call = self._surface.begin(Request(scope, receive))
        try:
            response = await self.respond(call)
            await response.send(receive, send)
        except Disconnected:
            _log.debug("client went away: %s %s", scope["method"], scope["path"])

    async def respond(self, call: C) -> Response:
        """Returns the response, which may be a refusal. Raises Disconnected."""
        try:
            return await self._surface.answer(call)
        except Disconnected:
            raise
        except Exception as error:  # Whatever went wrong, the caller gets an answer.
            return self._surface.refuse(call, error)

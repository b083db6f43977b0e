"""Stands in for the console until its first request, and loads it then: most services are only called by
programs, and do without its memory."""

import asyncio
import importlib

from trainshed.access.sessions import Sessions
from trainshed.api.calls.services import Services
from trainshed.cli.spelling import typed
from trainshed.console.facts import Facts
from trainshed.httpd.messages import Application, Receive, Scope, Send
from trainshed.serve import clock
from trainshed.serve.addresses import browsers_address
from trainshed.serve.bootstrap import Bootstrap

SESSIONS = "sessions.json"


class LazyConsole:
    """The console as an application, loaded with the first request."""

    def __init__(self, bootstrap: Bootstrap, services: Services, closing: asyncio.Event) -> None:
        """`closing`: set when the service stops."""
        settings = bootstrap.settings
        self._bootstrap = bootstrap
        self._services = services
        self._closing = closing
        self._facts = Facts(
            version=services.settings.version,
            project=settings.project,
            region=settings.region,
            bucket=settings.default_bucket,
            address=browsers_address(settings, bootstrap.listener.getsockname()[1]).rstrip("/"),
            command=typed(),
        )
        self._sessions = Sessions(settings.data / SESSIONS, lambda: bootstrap.tokens, clock.now)
        self._loading = asyncio.Lock()
        self._console: Application | None = None

    def link(self, token: str) -> str:
        """Return an address that signs a browser in once with this token. Raises Unauthenticated."""
        return self._facts.login_link(self._sessions.link_code(token))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._console is None:
            self._console = await self._loaded()
        await self._console(scope, receive, send)

    async def _loaded(self) -> Application:
        async with self._loading:
            if self._console is not None:
                return self._console
            await asyncio.to_thread(importlib.import_module, "trainshed.serve.console")
            from trainshed.serve.console import build_console

            # Within the lock, so that requests that wait for it find the console.
            self._console = build_console(
                self._bootstrap, self._services, self._sessions, self._facts, self._closing
            )
            return self._console

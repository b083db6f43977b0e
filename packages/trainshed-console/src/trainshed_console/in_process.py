"""Calls API methods in this process for authenticated callers. Permissions, checks, limits and errors are the
same as over HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call
from trainshed.api.calls.errors import public_error
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Services
from trainshed.api.calls.versions import Version
from trainshed.api.projects import LIST_PROJECTS, visible_projects
from trainshed.api.trainshed_v1 import transport
from trainshed.core.errors import NotFound
from trainshed.store.notices import Notices
from trainshed.wire import routes
from trainshed.wire.json import to_public
from trainshed.wire.status import CallRejected
from trainshed.wire.trainshed_v1.record import Record

Query = Mapping[str, Sequence[str]]


class InProcessCaller:
    """Calls API methods as a principal. All methods raise CallRejected."""

    def __init__(self, services: Services, registry: Registry) -> None:
        self._services = services
        self._registry = registry

    @property
    def notices(self) -> Notices:
        return self._services.notices

    def serves(self, method: str) -> bool:
        """Return whether this service has a method of the public APIs. Additions add methods."""
        return method in self._registry.methods

    async def projects(self, principal: Principal) -> Sequence[str]:
        """Return the sorted IDs of the projects that the principal may list. A principal with access to all
        projects also receives the projects of past jobs."""
        known = visible_projects(principal, self._services)
        if PERMISSIONS[LIST_PROJECTS] in principal.rights.everywhere:
            return sorted({*known, *await self._services.reader.projects()})
        return sorted({*known, *principal.rights.projects})

    async def ask(
        self,
        principal: Principal,
        verb: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Record:
        """Call a method of `/trainshed/v1`, and return its response. `path`: relative and URL-encoded."""
        with _convert_errors():
            return await transport.answer(
                self._services, principal, verb, path, query=query or {}, body=body or {}
            )

    async def lines(
        self, principal: Principal, path: str, query: Query | None = None
    ) -> AsyncGenerator[bytes]:
        """Call a streaming method of `/trainshed/v1`, and return the lines of its response."""
        with _convert_errors():
            return await transport.stream_lines(self._services, principal, path, query or {})

    async def call(self, principal: Principal, verb: str, path: str, body: bytes = b"") -> Any:
        """Call a method of the public APIs, and return the JSON of its response. `path`: URL-encoded, with
        the query."""
        with _convert_errors():
            plain, _, query = path.partition("?")
            if (matched := routes.match(verb, plain)) is None:
                raise NotFound(f"The method {verb} {plain} does not exist.")
            route, variables = matched
            read = partial(routes.bind, route, variables, parse_qsl(query, keep_blank_values=True), body)
            call = Call(principal, self._services, route.rpc.full_name)
            message = await self._registry.answer(call, Version.V1, len(body), read)
            return await asyncio.to_thread(to_public, message)


@contextmanager
def _convert_errors() -> Generator[None]:
    """Convert any error to the error that a caller over HTTP receives."""
    try:
        yield
    except CallRejected:
        raise
    except Exception as error:
        public = public_error(error, "trainshed_v1", "a call from within")
        raise CallRejected(public.code, public.message, public.violations) from error

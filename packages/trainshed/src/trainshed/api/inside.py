"""Calls API methods from within the process, for callers who are known already, as the console does.

The permissions, checks, limits and refusals are the same as over HTTP.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from trainshed.access.principals import Principal
from trainshed.api.calls.errors import internal_refusal, refusal
from trainshed.api.calls.services import Services
from trainshed.api.rest import RestSurface
from trainshed.api.trainshed_v1.transport import TrainshedSurface
from trainshed.core.errors import Unauthenticated
from trainshed.store.notices import Notices
from trainshed.wire.json import decode_text
from trainshed.wire.status import Refused
from trainshed.wire.trainshed_v1.record import Record

Query = Mapping[str, Sequence[str]]


class InsideCaller:
    """Calls API methods as a given principal. All methods raise Refused."""

    def __init__(self, services: Services) -> None:
        self._ours = TrainshedSurface(services, _nobody)
        self._public = RestSurface(services, _nobody)
        self._services = services

    @property
    def notices(self) -> Notices:
        return self._services.notices

    async def ask(
        self,
        principal: Principal,
        verb: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Record:
        """Call a method of `/trainshed/v1`, and return its answer. `path`: encoded, below
        `/trainshed/v1/`."""
        try:
            return await self._ours.ask(principal, verb, path, query or {}, body or {})
        except Exception as error:
            raise _refused(error) from error

    async def lines(
        self, principal: Principal, path: str, query: Query | None = None
    ) -> AsyncGenerator[bytes]:
        """Call a method of `/trainshed/v1` that answers with a stream, and return the stream's lines."""
        try:
            return await self._ours.lines(principal, path, query or {})
        except Exception as error:
            raise _refused(error) from error

    async def call(self, principal: Principal, verb: str, path: str, body: bytes = b"") -> Any:
        """Call a method of the public APIs, and return the answer's parsed JSON. `path`: encoded, with the
        query."""
        try:
            return decode_text(await self._public.ask(principal, verb, path, body))
        except Exception as error:
            raise _refused(error) from error


async def _nobody(header: str | None) -> Principal:
    raise Unauthenticated("Who calls from within is known already.")


def _refused(error: Exception) -> Exception:
    if isinstance(error, Refused):
        return error
    public = refusal(error, "trainshed_v1")
    if public is None:
        hidden = internal_refusal()
        return Refused(hidden.code, hidden.message)
    return Refused(public.code, public.message, public.violations)

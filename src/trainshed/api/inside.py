"""The API's methods, called from within the process by who is known already: what the console shows and does.

The same permissions, checks and limits as over HTTP, and the same refusals.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from trainshed.access.principals import Principal
from trainshed.api.calls.errors import internal_refusal, refusal
from trainshed.api.calls.services import Services
from trainshed.api.registry import CHECKS, handlers
from trainshed.api.rest import RestSurface
from trainshed.api.trainshed_v1.transport import TrainshedSurface
from trainshed.core.errors import Unauthenticated
from trainshed.store.notices import Notices
from trainshed.wire.json import decode_text
from trainshed.wire.status import Refused
from trainshed.wire.trainshed_v1.record import Record

Query = Mapping[str, Sequence[str]]


class InsideCaller:
    """All methods raise Refused."""

    def __init__(self, services: Services) -> None:
        self._ours = TrainshedSurface(services, _nobody)
        self._public = RestSurface(handlers(), CHECKS, services, _nobody)
        self._services = services

    @property
    def notices(self) -> Notices:
        """Tells that there is news."""
        return self._services.notices

    async def ask(
        self,
        principal: Principal,
        verb: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Record:
        """A method of ours. `path`: encoded, below `/trainshed/v1/`."""
        try:
            return await self._ours.ask(principal, verb, path, query or {}, body or {})
        except Exception as error:
            raise _refused(error, "trainshed_v1") from error

    async def lines(
        self, principal: Principal, path: str, query: Query | None = None
    ) -> AsyncGenerator[bytes]:
        """A method of ours that answers with a stream."""
        try:
            return await self._ours.lines(principal, path, query or {})
        except Exception as error:
            raise _refused(error, "trainshed_v1") from error

    async def call(self, principal: Principal, verb: str, path: str, body: bytes = b"") -> Any:
        """A method of the public APIs, by its encoded path with the query; the answer's JSON."""
        try:
            return decode_text(await self._public.ask(principal, verb, path, body))
        except Exception as error:
            raise _refused(error, "trainshed_v1") from error


def _nobody(header: str | None) -> Principal:
    raise Unauthenticated("Who calls from within is known already.")


def _refused(error: Exception, api: str) -> Exception:
    if isinstance(error, Refused):
        return error
    found = refusal(error, api)
    if found is None:
        hidden = internal_refusal()
        return Refused(hidden.code, hidden.message)
    return Refused(found.code, found.message, found.violations)

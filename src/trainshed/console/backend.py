"""What pages ask: the API's own methods, called within the process as the visitor; the composition root hands
it in."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from trainshed.access.principals import Principal
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Response
from trainshed.wire.trainshed_v1.record import Record

Query = Mapping[str, Sequence[str]]


class News(Protocol):
    """Tells that there is something to look at again (`store.notices`)."""

    @property
    def latest(self) -> int: ...

    def count(self, uid: JobUid) -> int: ...

    async def wait_beyond(self, uid: JobUid, count: int, patience: float) -> bool: ...

    async def wait_for_any(self, after: int, patience: float) -> bool: ...


class Backend(Protocol):
    """All methods raise `wire.status.Refused`: what the API refuses, the console refuses."""

    @property
    def notices(self) -> News: ...

    async def ask(
        self,
        principal: Principal,
        verb: str,
        path: str,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Record:
        """A method of `/trainshed/v1`; `path`: encoded, below that."""
        ...

    async def lines(
        self, principal: Principal, path: str, query: Query | None = None
    ) -> AsyncGenerator[bytes]:
        """The same of a method that answers with a stream."""
        ...

    async def call(self, principal: Principal, verb: str, path: str, body: bytes = b"") -> Any:
        """A method of the public APIs, by its encoded path and query; the answer's JSON."""
        ...


class Buckets(Protocol):
    """Objects, as the visitor may read them. Paths are encoded ones of the storage API, with their query."""

    async def ask(self, principal: Principal, path: str) -> Any:
        """The JSON that answers `GET path`. Raises `wire.status.Refused`."""
        ...

    def download(self, principal: Principal, path: str, name: str) -> Response:
        """The answer to `GET path`, to be kept as a file of this name."""
        ...

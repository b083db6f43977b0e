"""The ports through which pages read and change anything: the API's own methods, called within the process
with the visitor's rights. The composition root passes the implementations in (ADR 70)."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from trainshed.access.issuers import SignedIn
from trainshed.access.principals import Principal
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Response
from trainshed.wire.trainshed_v1.record import Record

FIRST_SEGMENTS: Final = frozenset(
    {
        *("", "assets", "buckets", "compare", "datasets", "events", "experiments", "jobs", "login"),
        *("logout", "logs", "marked", "models", "nodes", "overview", "queue", "quotas", "settings"),
        *("signed-in", "studies", "submit", "team"),
    }
)
"""First segments of the paths that belong to the console."""


class Facts(Struct, frozen=True):
    """What pages say of the service: its version, defaults and address."""

    version: str
    #: The service's default project, region and bucket.
    project: str
    region: str
    bucket: str
    #: The URL at which browsers and clients reach it.
    address: str

    def login_link(self, code: str) -> str:
        """Return an address that signs a browser in once, by a code of `access.sessions`."""
        return f"{self.address}/login?code={code}"


Query = Mapping[str, Sequence[str]]


class SigningIn(Protocol):
    """Signs in by issuers of OpenID Connect."""

    @property
    def names(self) -> tuple[str, ...]: ...

    async def begin(self, name: str, following: str, mark: str) -> str:
        """Return the address at an issuer at which a browser signs in. Raises Unauthenticated,
        Unavailable."""
        ...

    async def finish(self, state: str, code: str) -> SignedIn:
        """Sign in somebody whom an issuer sends back. Raises Unauthenticated, Unavailable."""
        ...


class News(Protocol):
    """Wake-ups when something of a job has changed (`store.notices`)."""

    @property
    def latest(self) -> int: ...

    def count(self, uid: JobUid) -> int: ...

    async def wait_beyond(self, uid: JobUid, count: int, patience: float) -> bool: ...

    async def wait_for_any(self, after: int, patience: float) -> bool: ...


class Backend(Protocol):
    """The API's methods. All raise `wire.status.Refused`: what the API refuses, the console refuses."""

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
        """Call a method of `/trainshed/v1` and return its answer. `path`: encoded, below that prefix."""
        ...

    async def lines(
        self, principal: Principal, path: str, query: Query | None = None
    ) -> AsyncGenerator[bytes]:
        """Call a GET method of `/trainshed/v1` that answers with a stream, and return the stream."""
        ...

    async def call(self, principal: Principal, verb: str, path: str, body: bytes = b"") -> Any:
        """Call a method of the public APIs by its encoded path and query, and return the answer's JSON."""
        ...


class Buckets(Protocol):
    """Buckets and their objects, as far as the visitor may read them. Paths are those of the storage API,
    encoded, with their query."""

    async def ask(self, principal: Principal, path: str) -> Any:
        """Return the JSON that answers `GET path`. Raises `wire.status.Refused`."""
        ...

    def download(self, principal: Principal, path: str, name: str) -> Response:
        """Return the answer to `GET path` as a download, which browsers save under `name`."""
        ...

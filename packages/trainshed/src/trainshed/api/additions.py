"""Additions: what other distributions bring to a service, found by entry points of one group. The service
imports nothing of them. Each names an `AdditionFactory`:

    [project.entry-points."trainshed.additions"]
    mine = "mypackage.addition:new_addition"
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from msgspec import Struct, field

from trainshed.access.issuers import Issuer
from trainshed.access.principals import Credential
from trainshed.access.tokens import TokenAuthority
from trainshed.api.calls.call import Handler, Handlers
from trainshed.api.calls.links import Links
from trainshed.api.calls.registry import Check, Checks, Registry
from trainshed.api.calls.services import ApiSettings, Authenticate, Services, Tracking
from trainshed.api.calls.streams import StreamHandler, StreamHandlers
from trainshed.api.registry import BUILT_IN
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Application
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.service import LocalRuntimes
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.points import PointFiles
from trainshed.store.sqlite.database import Store
from trainshed.summaries.directories import LogDirectory, ShownDirectory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ADDITIONS: Final = "trainshed.additions"


class Issuers(Protocol):
    """The issuers of OpenID Connect by which browsers sign in, and what is asked of them for that."""

    @property
    def by_name(self) -> Mapping[str, Issuer]:
        """Those that a browser may choose."""
        ...

    async def published(self, issuer: Issuer) -> Mapping[str, Any]:
        """Return what an issuer publishes of itself (OpenID Connect Discovery). Raises Unavailable."""
        ...

    async def fetched(
        self,
        issuer: Issuer,
        address: str,
        refusal: str = "",
        form: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Return the JSON object at an address of an issuer. Raises Unavailable; Unauthenticated with the
        text `refusal` if it refuses what it is sent."""
        ...

    async def verified(self, issuer: Issuer, token: str, nonce: str) -> Mapping[str, Any]:
        """Return what an ID token says that answers a sign-in with this nonce. Raises Unauthenticated,
        Unavailable."""
        ...


class AdditionContext(Struct, frozen=True):
    """What an addition may use. It is built before the API is, and before the event loop has work."""

    settings: ApiSettings
    #: The service's data directory, in which an addition may keep files of its own.
    data: Path
    #: Nanoseconds since the epoch.
    now: Callable[[], int]
    #: Set when the service stops; streams end then.
    closing: asyncio.Event
    tokens: TokenAuthority
    authenticate: Authenticate
    issuers: Issuers
    #: 32 bytes for what is signed while a browser signs in; they stay the same from start to start.
    sign_in_key: bytes
    #: The Unix socket at which the bucket process takes requests that the service has authenticated.
    gateway: Path
    #: Who may do what now, by what they have shown.
    access: AccessKeeper
    #: Makes and reads the keys of links.
    links: Links
    #: The database; an addition makes parts of its own of the writer and the snapshots.
    store: Store
    #: Points of curves.
    points: PointFiles
    #: Returns a fresh identity; they ascend with time.
    new_uid: Callable[[], JobUid]
    runtimes: LocalRuntimes
    #: Returns the terms on which processes are confined that show what programs wrote. To be called in a
    #: thread after the start. Raises BuildFailed.
    terms: Callable[[], InstallationTerms]
    #: Returns a directory's place on this disk; None: it has no event files, or its project may not read it.
    #: Blocks. Raises FailedPrecondition: it is elsewhere.
    event_files: Callable[[LogDirectory], ShownDirectory | None]


Mounts = Mapping[str, Application]
"""HTTP applications by the first segment of the paths that they answer."""


class Addition(Struct, frozen=True):
    """What one addition brings."""

    handlers: Handlers = field(default_factory=dict[str, Handler])
    #: Methods that return a stream.
    streams: StreamHandlers = field(default_factory=dict[str, StreamHandler])
    #: For those of its methods whose requests can be checked in part.
    checks: Checks = field(default_factory=dict[str, Check])
    #: Makes its applications, which may call methods of the API. Called once, when all handlers are known.
    mounts: Callable[[Services, Registry], Mounts] = lambda services, registry: {}
    #: Returns an address that signs a browser in once, with the rights of who has shown this, and opens its
    #: pages; None = it has none.
    link: Callable[[Credential], str] | None = None
    #: What jobs have to do with what it keeps; None = nothing.
    tracking: Tracking | None = None


AdditionFactory = Callable[[AdditionContext], Addition]
"""Builds an addition. It must not block, because the service starts meanwhile."""


class AdditionUnusable(Exception):
    """An addition cannot be loaded, or serves what is served already. The message says which and what to
    do."""


def load_additions(context: AdditionContext) -> dict[str, Addition]:
    """Return the additions that are installed, by name. Raises AdditionUnusable."""
    return {point.name: _built(point, context) for point in _installed()}


def import_additions() -> None:
    """Import all that can be loaded, so that the records which they keep in the database are known."""
    for point in _installed():
        # Of any kind, as below; the start says what is wrong with it.
        with contextlib.suppress(Exception):
            point.load()


def _installed() -> "list[EntryPoint]":
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ADDITIONS), key=lambda point: point.name)


def _built(point: "EntryPoint", context: AdditionContext) -> Addition:
    try:
        return cast("AdditionFactory", point.load())(context)
    except Exception as failure:
        # Of any kind: it is code of others, and nobody else would say whose.
        whose = point.dist.name if point.dist is not None else point.value
        raise AdditionUnusable(
            f"The addition {point.name!r} of {whose} cannot be loaded ({type(failure).__name__}: "
            f"{failure}). Install the version of {whose} for trainshed {context.settings.version}, or "
            f"remove it: pip uninstall {whose}"
        ) from failure


def registry_with(additions: Mapping[str, Addition]) -> Registry:
    """Return the registry of what is built in and of the additions' methods. Raises AdditionUnusable."""
    handlers, checks = dict(BUILT_IN.handlers), dict(BUILT_IN.checks)
    streams = dict(BUILT_IN.streams)
    for name, addition in additions.items():
        served = handlers.keys() | streams.keys()
        if twice := sorted(served & (addition.handlers.keys() | addition.streams.keys())):
            raise AdditionUnusable(
                f"The addition {name!r} serves {twice[0]}, which another addition already serves. "
                "Uninstall one of the two."
            )
        handlers |= addition.handlers
        checks |= addition.checks
        streams |= addition.streams
    return Registry(handlers, checks, streams)


def mounts_with(
    additions: Mapping[str, Addition], services: Services, registry: Registry, own: Mounts
) -> Mounts:
    """Return the service's `own` mounts and those of the additions. Raises AdditionUnusable."""
    mounts = dict(own)
    for name, addition in additions.items():
        brought = addition.mounts(services, registry)
        if twice := sorted(mounts.keys() & brought.keys()):
            raise AdditionUnusable(
                f"The addition {name!r} serves /{twice[0]}, which another addition already serves. "
                "Uninstall one of the two."
            )
        mounts |= brought
    return mounts

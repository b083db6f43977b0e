"""Additions: extensions of the service from other distributions. The service finds them by the entry points
of one group and imports nothing else of them. Each entry point refers to an `AdditionFactory`:

    [project.entry-points."trainshed.additions"]
    mine = "mypackage.addition:new_addition"
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
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
from trainshed.core.works import Work
from trainshed.httpd.messages import Application
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.service import LocalRuntimes
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.points import PointFiles
from trainshed.store.sqlite.database import Store
from trainshed.store.steps import Reconciler
from trainshed.summaries.directories import LogDirectory, ShownDirectory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ADDITIONS: Final = "trainshed.additions"


class Issuers(Protocol):
    """The OpenID Connect issuers with which users can sign in by browser. The methods send requests to these
    issuers."""

    @property
    def by_name(self) -> Mapping[str, Issuer]:
        """The issuers that users may choose in the browser, by name."""
        ...

    async def read_metadata(self, issuer: Issuer) -> Mapping[str, Any]:
        """Return an issuer's metadata (OpenID Connect Discovery). Raises Unavailable."""
        ...

    async def fetch_json(
        self,
        issuer: Issuer,
        address: str,
        refusal: str = "",
        form: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Return the JSON object at an address of an issuer. `form`: the fields of a POST request; None =
        send a GET request. Raises Unavailable. If the issuer rejects the request, raises Unauthenticated with
        the text `refusal`."""
        ...

    async def verify_token(self, issuer: Issuer, token: str, nonce: str) -> Mapping[str, Any]:
        """Return the claims of an ID token for the sign-in with this nonce. Raises Unauthenticated and
        Unavailable."""
        ...


class AdditionContext(Struct, frozen=True):
    """The services that an addition may use. The service creates the context before the API, when no task
    runs on the event loop yet."""

    settings: ApiSettings
    #: The service's data directory. An addition may store its own files there.
    data: Path
    #: Returns the current time in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Set when the service stops. Streams must then end.
    closing: asyncio.Event
    tokens: TokenAuthority
    authenticate: Authenticate
    issuers: Issuers
    #: A key of 32 bytes for signing cookies during sign-in. Restarts do not change it.
    sign_in_key: bytes
    #: The Unix socket of the bucket process. It accepts requests that the service has already authenticated.
    gateway: Path
    #: Returns the current permissions of credentials.
    access: AccessKeeper
    #: Creates and reads the keys of links.
    links: Links
    #: The database. An addition creates its own writers and snapshots from it.
    store: Store
    #: The stored points of curves.
    points: PointFiles
    #: Returns a new unique ID. IDs increase with time.
    new_uid: Callable[[], JobUid]
    runtimes: LocalRuntimes
    #: Returns the conditions, such as hidden files, under which sandboxed processes read and show files of
    #: programs. Must be called in a thread, after the service has started. Raises BuildFailed.
    terms: Callable[[], InstallationTerms]
    #: Returns the path of a log directory on this disk. Returns None if the directory has no event files or
    #: its project may not read it. Blocks. Raises FailedPrecondition if the directory is on another machine.
    event_files: Callable[[LogDirectory], ShownDirectory | None]


Mounts = Mapping[str, Application]
"""HTTP applications, each by the first segment of its paths."""


class Addition(Struct, frozen=True):
    """The methods and pages of one addition."""

    handlers: Handlers = field(default_factory=dict[str, Handler])
    #: Methods that return a stream.
    streams: StreamHandlers = field(default_factory=dict[str, StreamHandler])
    #: Checks that find further errors in a request that could be parsed only in part (`calls.checks`).
    checks: Checks = field(default_factory=dict[str, Check])
    #: Creates the addition's HTTP applications, which may call methods of the API. Called once, after all
    #: handlers have been registered.
    mounts: Callable[[Services, Registry], Mounts] = lambda services, registry: {}
    #: Returns an address that opens the addition's pages for the owner of these credentials. The address
    #: works once, in one browser. None = the addition has no pages.
    link: Callable[[Credential], str] | None = None
    #: Connects jobs to experiments, TensorBoards and viewers. None = the addition provides none of these.
    tracking: Tracking | None = None
    #: Creates the reconcilers of works that run through other jobs. Called once, before the controller
    #: starts. None = the addition has no such works.
    reconcilers: Callable[[Services, Registry], Mapping[type[Work], Reconciler]] | None = None
    #: A task that runs until the service stops. None = the addition has no such task.
    background: Callable[[Services, Registry], Coroutine[Any, Any, None]] | None = None


AdditionFactory = Callable[[AdditionContext], Addition]
"""A function that creates an addition. It must not block, because the service is starting."""


class AdditionUnusable(Exception):
    """An addition cannot be loaded, or serves a method or path that is already served. The message contains
    the addition's name and the remedy."""


def load_additions(context: AdditionContext) -> dict[str, Addition]:
    """Load the installed additions. Return them by name. Raises AdditionUnusable."""
    return {point.name: _load(point, context) for point in _entry_points()}


def import_additions() -> None:
    """Import all additions that can be imported. This registers their database records."""
    for point in _entry_points():
        # Any exception is ignored here, because the start of the service reports it.
        with contextlib.suppress(Exception):
            point.load()


def _entry_points() -> "list[EntryPoint]":
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ADDITIONS), key=lambda point: point.name)


def _load(point: "EntryPoint", context: AdditionContext) -> Addition:
    try:
        return cast("AdditionFactory", point.load())(context)
    except Exception as failure:
        # Any exception is caught, because an addition is code from elsewhere. The error must contain the
        # addition's distribution.
        distribution = point.dist.name if point.dist is not None else point.value
        raise AdditionUnusable(
            f"The addition {point.name!r} of {distribution} cannot be loaded ({type(failure).__name__}: "
            f"{failure}). Install the version of {distribution} that fits trainshed "
            f"{context.settings.version}, or remove it: pip uninstall {distribution}"
        ) from failure


def registry_with(additions: Mapping[str, Addition]) -> Registry:
    """Return a registry with the built-in methods and the methods of the additions. Raises AdditionUnusable
    if two of them serve the same method."""
    handlers, checks = dict(BUILT_IN.handlers), dict(BUILT_IN.checks)
    streams = dict(BUILT_IN.streams)
    for name, addition in additions.items():
        served = handlers.keys() | streams.keys()
        if twice := sorted(served & (addition.handlers.keys() | addition.streams.keys())):
            raise AdditionUnusable(
                f"The addition {name!r} serves the method {twice[0]}, which the service or another addition "
                "already serves. Uninstall one of these additions."
            )
        handlers |= addition.handlers
        checks |= addition.checks
        streams |= addition.streams
    return Registry(handlers, checks, streams)


def mounts_with(
    additions: Mapping[str, Addition], services: Services, registry: Registry, own: Mounts
) -> Mounts:
    """Return the service's `own` mounts and the additions' mounts. Raises AdditionUnusable if two of them
    serve the same path."""
    mounts = dict(own)
    for name, addition in additions.items():
        added = addition.mounts(services, registry)
        if twice := sorted(mounts.keys() & added.keys()):
            raise AdditionUnusable(
                f"The addition {name!r} serves the path /{twice[0]}, which the service or another addition "
                "already serves. Uninstall one of these additions."
            )
        mounts |= added
    return mounts

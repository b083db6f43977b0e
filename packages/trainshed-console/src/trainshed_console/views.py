"""The types of the console's pages. A visit is an authenticated request. A view is a page. Pages call the
API's methods within the process with the visitor's permissions (ADR 70)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from trainshed.access.permissions import PERMISSIONS, SERVICE_PREFIXES, least_role
from trainshed.access.principals import Principal
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Request, Response
from trainshed.wire.status import CallRejected, StatusCode
from trainshed.wire.trainshed_v1.record import Record
from trainshed_console.in_process import InProcessCaller
from trainshed_console.rendering import clean

FIRST_SEGMENTS: Final = frozenset(
    {
        *("", "assets", "buckets", "compare", "datasets", "events", "experiments", "jobs", "login"),
        *("logout", "logs", "marked", "models", "nodes", "overview", "queue", "quotas", "settings"),
        *("signed-in", "studies", "submit", "team"),
    }
)
"""First segments of the paths that belong to the console."""


class Facts(Struct, frozen=True):
    """Facts about the service on pages: its version, defaults and address."""

    version: str
    #: The service's default project, region and bucket.
    project: str
    region: str
    bucket: str
    #: The URL at which browsers and clients reach it.
    address: str

    def login_link(self, code: str) -> str:
        """Return a single-use sign-in address with a code of `sessions`."""
        return f"{self.address}/login?code={code}"


R = TypeVar("R", bound=Record)
_ANY_PROJECT: Final = "-"


class Visit(Struct, frozen=True):
    """A request of an authenticated visitor, with the services of its page."""

    request: Request
    principal: Principal
    backend: InProcessCaller
    #: The socket of the bucket process.
    buckets: Path
    facts: Facts
    #: Set when the service stops. It ends the streams.
    closing: asyncio.Event
    #: The clock: nanoseconds since the epoch.
    clock: Callable[[], int]
    #: Whether the session is still valid with the same permissions. Event streams poll it.
    is_valid: Callable[[], bool]
    #: Variables of the page's path, by name.
    variables: Mapping[str, str]
    #: Fields of the submitted form, by name.
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return self.clock()

    @property
    def project(self) -> str:
        """The project whose jobs are shown; `-` = all projects."""
        return self.query("project") or self._own_project or _ANY_PROJECT

    @property
    def place(self) -> tuple[str, str]:
        """The project and region of the page's address or form. Default: the visitor's project and the
        service's defaults."""
        project = self.query("project") or self.form.get("project") or self._own_project
        region = self.query("region") or self.form.get("region")
        return project or self.facts.project, region or self.facts.region

    @property
    def _own_project(self) -> str | None:
        """The first project of a visitor without access to all projects, or else None."""
        rights = self.principal.rights
        return next(iter(rights.projects), None) if not rights.everywhere else None

    def query(self, name: str) -> str:
        return self.request.query.get(name, "")

    def quoted(self, name: str) -> str:
        """Return a variable of the path, encoded for the path of an API method."""
        return quote(self.variables[name], safe="")

    async def get(self, record: type[R], path: str, **query: str | Sequence[str]) -> R:
        """Call a GET method of `/trainshed/v1` without empty parameters, and return its answer. Raises
        CallRejected."""
        parameters = {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in query.items()
            if value
        }
        answer = await self.backend.ask(self.principal, "GET", path, parameters)
        assert isinstance(answer, record), f"{path} answers {type(answer).__name__}"
        return answer

    async def get_if_allowed(self, record: type[R], path: str, **query: str) -> R | None:
        """Like `get`, but return None without permission or without the resource. Raises CallRejected."""
        try:
            return await self.get(record, path, **query)
        except CallRejected as refused:
            if refused.code not in (StatusCode.PERMISSION_DENIED, StatusCode.NOT_FOUND):
                raise
            return None

    def may(self, method: str, project: str = "") -> bool:
        """Whether the visitor may call a method in a project. Default: the page's project, or any project on
        a page of all projects."""
        permission = PERMISSIONS[method]
        project = project or self.project
        if project == _ANY_PROJECT:
            return self.principal.rights.anywhere(permission)
        return self.principal.may(permission, project)

    def may_everywhere(self, method: str) -> bool:
        """Whether the visitor may call a method on resources outside projects."""
        return PERMISSIONS[method] in self.principal.rights.everywhere

    def needs(self, method: str, project: str = "") -> str:
        """Return the role that a hidden action requires, and who can grant it."""
        permission = PERMISSIONS[method]
        role = least_role(permission)
        if permission.startswith(SERVICE_PREFIXES):
            return f"{role} in all projects, which an owner of the service can grant"
        project = project or self.project
        where = "a project" if project == _ANY_PROJECT else clean(project)
        return f"{role} in {where}, which a project owner can grant"

    async def do(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Record:
        """Call a method of `/trainshed/v1` that changes something. Raises CallRejected."""
        return await self.backend.ask(self.principal, verb, path, {}, body or {})

    def on(self, path: str) -> str:
        """Return a page's address with the project and region of this page's address."""
        query = {name: self.query(name) for name in ("project", "region") if self.query(name)}
        return f"{path}?{urlencode(query)}" if query else path

    def with_query(self, **changes: str) -> str:
        """Return this page's address with these query parameters changed; "" removes one."""
        merged = {**self.request.query, **changes}
        query = {name: value for name, value in merged.items() if value}
        path = quote(self.request.path)
        return f"{path}?{urlencode(query)}" if query else path

    def next_page(self, token: str | None) -> str:
        """Return the address of a list's next page; "" if there is no token, because this is the last."""
        return self.with_query(page=token) if token else ""


class Part(Struct, frozen=True):
    """A part of a page that event streams update. Its template renders one element with the part's ID."""

    template: str
    values: Mapping[str, Any]


class View(Struct, frozen=True):
    """A page to render: its template and values, and its updatable parts."""

    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Parts by the ID of their element.
    parts: Mapping[str, Part] = field(default_factory=dict[str, Part])
    #: IDs of the parts in each list, in order, by the ID of the list's element.
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    #: IDs of complete `lists`. The page removes other rows from a complete list.
    whole: frozenset[str] = frozenset()
    #: The job whose notices update the page, or None for all jobs. Requires `lives`.
    subject: JobUid | None = None
    #: Whether an event stream updates the page.
    lives: bool = False
    #: The page's entry in the navigation, or None.
    place: str | None = None
    #: The HTTP status.
    status: int = 200


Page = Callable[[Visit], Awaitable[View]]
Action = Callable[[Visit], Awaitable[Response | View]]


def redirect(address: str) -> Response:
    return Response(b"", 303, [(b"location", address.encode()), (b"content-length", b"0")])


def job_path(uid: str, *rest: str) -> str:
    return "/".join((f"/jobs/{uid}", *rest))


def of_job(target: str, suffix: str = "") -> str:
    """Return the path of an API method of a job, below `/trainshed/v1/`. `suffix`: its unencoded end."""
    return f"jobs/{quote(target, safe='')}{suffix}"

"""The types of the console's pages. A visit is an authenticated request. A view is a page to render. Pages
call the API's methods in the same process with the visitor's permissions (ADR 70)."""

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
        *("logout", "logs", "marked", "models", "nodes", "overview", "queue", "quotas"),
        *("schedules", "settings", "signed-in", "studies", "submit", "team"),
    }
)
"""First segments of all paths of the console."""


class Facts(Struct, frozen=True):
    """Facts about the service that pages show: its version, defaults and address."""

    version: str
    #: The service's default project, region and bucket.
    project: str
    region: str
    bucket: str
    #: The URL of the service for browsers and clients.
    address: str

    def login_link(self, code: str) -> str:
        """Return a single-use sign-in address. `code`: a sign-in code from `Sessions.link_code`."""
        return f"{self.address}/login?code={code}"


R = TypeVar("R", bound=Record)
_ANY_PROJECT: Final = "-"


class Visit(Struct, frozen=True):
    """A request of an authenticated visitor, with the services that its page uses."""

    request: Request
    principal: Principal
    backend: InProcessCaller
    #: The Unix socket of the bucket process.
    buckets: Path
    facts: Facts
    #: An event that is set when the service stops. The event streams then end.
    closing: asyncio.Event
    #: Returns the current time in nanoseconds since the epoch.
    clock: Callable[[], int]
    #: Returns whether the session is still valid with the same permissions. Event streams poll it.
    is_valid: Callable[[], bool]
    #: Values of the variables in the page's path, by name.
    variables: Mapping[str, str]
    #: Fields of the submitted form, by name.
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def now(self) -> int:
        """The current time in nanoseconds since the epoch."""
        return self.clock()

    @property
    def project(self) -> str:
        """The project whose jobs are shown; `-` = all projects."""
        return self.query("project") or self._own_project or _ANY_PROJECT

    @property
    def place(self) -> tuple[str, str]:
        """The project and region in the page's address or form. Default: the visitor's project, and otherwise
        the service's defaults."""
        project = self.query("project") or self.form.get("project") or self._own_project
        region = self.query("region") or self.form.get("region")
        return project or self.facts.project, region or self.facts.region

    @property
    def _own_project(self) -> str | None:
        """The first project of a visitor who does not have access to all projects, otherwise None."""
        rights = self.principal.rights
        return next(iter(rights.projects), None) if not rights.everywhere else None

    def query(self, name: str) -> str:
        return self.request.query.get(name, "")

    def encode_variable(self, name: str) -> str:
        """Return a variable of the page's path, URL-encoded for the path of an API method."""
        return quote(self.variables[name], safe="")

    async def get(self, record: type[R], path: str, **query: str | Sequence[str]) -> R:
        """Call a GET method of `/trainshed/v1`, and return its response. Empty parameters are omitted. Raises
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
        """Call a method as `get` does. Return None if the visitor lacks permission or the resource does not
        exist. Raises CallRejected."""
        try:
            return await self.get(record, path, **query)
        except CallRejected as refused:
            if refused.code not in (StatusCode.PERMISSION_DENIED, StatusCode.NOT_FOUND):
                raise
            return None

    async def resource(self, name: str) -> Any:
        """Return a resource of the Vertex API by its full name, as JSON. Raises CallRejected."""
        return await self.backend.call(self.principal, "GET", f"/v1/{quote(name)}")

    def may(self, method: str, project: str = "") -> bool:
        """Return whether the visitor may call a method in a project. Default: the page's project. On a page
        of all projects, any project is sufficient."""
        permission = PERMISSIONS[method]
        project = project or self.project
        if project == _ANY_PROJECT:
            return self.principal.rights.anywhere(permission)
        return self.principal.may(permission, project)

    def may_everywhere(self, method: str) -> bool:
        """Return whether the visitor may call a method on resources outside projects."""
        return PERMISSIONS[method] in self.principal.rights.everywhere

    def needs(self, method: str, project: str = "") -> str:
        """Return the role that a hidden action requires, and the users who can grant it."""
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

    def page_address(self, path: str) -> str:
        """Return the address of a page, with the project and region of this page's address."""
        query = {name: self.query(name) for name in ("project", "region") if self.query(name)}
        return f"{path}?{urlencode(query)}" if query else path

    def with_query(self, **changes: str) -> str:
        """Return this page's address with changed query parameters; "" removes a parameter."""
        merged = {**self.request.query, **changes}
        query = {name: value for name, value in merged.items() if value}
        path = quote(self.request.path)
        return f"{path}?{urlencode(query)}" if query else path

    def next_page(self, token: str | None) -> str:
        """Return the address of a list's next page, or "" if `token` is empty because this is the last
        page."""
        return self.with_query(page=token) if token else ""


class Part(Struct, frozen=True):
    """A part of a page that event streams update. Its template renders one HTML element that has the part's
    ID."""

    template: str
    values: Mapping[str, Any]


class View(Struct, frozen=True):
    """A page to render: its template and values, and the parts that event streams update."""

    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Parts by the ID of their HTML element.
    parts: Mapping[str, Part] = field(default_factory=dict[str, Part])
    #: For each list, by the ID of its HTML element: the IDs of its parts, in order.
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    #: IDs of `lists` that are complete. The page removes all other rows from a complete list.
    whole: frozenset[str] = frozenset()
    #: The job whose notifications update the page, or None for all jobs. Requires `lives`.
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
    """Return the path of an API method for a job, relative to `/trainshed/v1/`. `suffix`: the end of the
    path, not encoded."""
    return f"jobs/{quote(target, safe='')}{suffix}"

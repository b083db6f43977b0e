"""The types of the console's pages: a visit is a request of a person who is signed in; a view is a page.
Pages read and change anything by the API's own methods, called within the process with the visitor's rights
(ADR 70)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from trainshed.access.permissions import OF_THE_SERVICE, PERMISSIONS, least_role
from trainshed.access.principals import Principal
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Request, Response
from trainshed.wire.status import Refused, StatusCode
from trainshed.wire.trainshed_v1.record import Record
from trainshed_console.inside import InsideCaller
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
    """What pages say of the service: its version, defaults and address."""

    version: str
    #: The service's default project, region and bucket.
    project: str
    region: str
    bucket: str
    #: The URL at which browsers and clients reach it.
    address: str

    def login_link(self, code: str) -> str:
        """Return an address that signs a browser in once, by a code of `sessions`."""
        return f"{self.address}/login?code={code}"


R = TypeVar("R", bound=Record)
_ANY_PROJECT: Final = "-"


class Visit(Struct, frozen=True):
    """A request of a person who is signed in, with what pages need to answer it."""

    request: Request
    principal: Principal
    backend: InsideCaller
    #: Where the bucket process listens for what the visitor asks of it.
    buckets: Path
    facts: Facts
    #: Set when the service stops; streams end then.
    closing: asyncio.Event
    #: The clock: nanoseconds since the epoch.
    clock: Callable[[], int]
    #: Whether the session is still valid, with the same rights. Event streams ask repeatedly.
    is_valid: Callable[[], bool]
    #: Variables of the page's path, by name.
    variables: Mapping[str, str]
    #: Fields of the form that was sent, by name.
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
        """The project and region of a page: those of its address or its form, else the visitor's project and
        the service's defaults."""
        project = self.query("project") or self.form.get("project") or self._own_project
        region = self.query("region") or self.form.get("region")
        return project or self.facts.project, region or self.facts.region

    @property
    def _own_project(self) -> str | None:
        """The project of somebody who may not look at all; None for others."""
        rights = self.principal.rights
        return next(iter(rights.projects), None) if not rights.everywhere else None

    def query(self, name: str) -> str:
        return self.request.query.get(name, "")

    def quoted(self, name: str) -> str:
        """Return a variable of the path, encoded for the path of an API method."""
        return quote(self.variables[name], safe="")

    async def get(self, record: type[R], path: str, **query: str | Sequence[str]) -> R:
        """Call a GET method of `/trainshed/v1` and return its answer. Parameters that are empty are left
        out. Raises Refused."""
        parameters = {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in query.items()
            if value
        }
        answer = await self.backend.ask(self.principal, "GET", path, parameters)
        assert isinstance(answer, record), f"{path} answers {type(answer).__name__}"
        return answer

    async def get_if_allowed(self, record: type[R], path: str, **query: str) -> R | None:
        """As `get`; None if the visitor may not see it, or it is not there. Raises Refused."""
        try:
            return await self.get(record, path, **query)
        except Refused as refused:
            if refused.code not in (StatusCode.PERMISSION_DENIED, StatusCode.NOT_FOUND):
                raise
            return None

    def may(self, method: str, project: str = "") -> bool:
        """Whether the visitor may call a method in a project; without one, in the page's, or in some if that
        shows all."""
        permission = PERMISSIONS[method]
        project = project or self.project
        if project == _ANY_PROJECT:
            return self.principal.rights.anywhere(permission)
        return self.principal.may(permission, project)

    def may_everywhere(self, method: str) -> bool:
        """Whether the visitor may call a method on what belongs to no project."""
        return PERMISSIONS[method] in self.principal.rights.everywhere

    def needs(self, method: str, project: str = "") -> str:
        """Return which role the visitor lacks for an action that is not shown therefore, and who gives it."""
        permission = PERMISSIONS[method]
        role = least_role(permission)
        if permission.startswith(OF_THE_SERVICE):
            return f"{role} in all projects, which an owner of the service can grant"
        project = project or self.project
        where = "a project" if project == _ANY_PROJECT else clean(project)
        return f"{role} in {where}, which a project owner can grant"

    async def do(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Record:
        """Call a method of `/trainshed/v1` that changes something. Raises Refused."""
        return await self.backend.ask(self.principal, verb, path, {}, body or {})

    def on(self, path: str) -> str:
        """Return a page's address with the project and region of this page's address."""
        kept = {name: self.query(name) for name in ("project", "region") if self.query(name)}
        return f"{path}?{urlencode(kept)}" if kept else path

    def with_query(self, **changes: str) -> str:
        """Return this page's address with these query parameters changed; "" removes one."""
        merged = {**self.request.query, **changes}
        kept = {name: value for name, value in merged.items() if value}
        path = quote(self.request.path)
        return f"{path}?{urlencode(kept)}" if kept else path

    def next_page(self, token: str | None) -> str:
        """Return the address of a list's next page; "" if there is no token, because this is the last."""
        return self.with_query(page=token) if token else ""


class Part(Struct, frozen=True):
    """A piece of a page that is sent again when it changes. Its template makes one element, whose id is the
    part's."""

    template: str
    values: Mapping[str, Any]


class View(Struct, frozen=True):
    """A page to be rendered: its template and values, and the parts that are kept up to date."""

    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Parts by the id of their element.
    parts: Mapping[str, Part] = field(default_factory=dict[str, Part])
    #: Ids of the parts in each list, in order, by the id of the list's element. New ones are inserted there.
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    #: Ids of the `lists` that are complete: rows of the page that are not in such a list have left it.
    whole: frozenset[str] = frozenset()
    #: The job whose news may change the page; None = any job's. Only of interest if it `lives`.
    subject: JobUid | None = None
    #: True if the page is kept up to date while a browser shows it.
    lives: bool = False
    #: The entry of the navigation that it belongs to; None = none.
    place: str | None = None
    #: The HTTP status.
    status: int = 200


Page = Callable[[Visit], Awaitable[View]]
Action = Callable[[Visit], Awaitable[Response | View]]


def redirect(address: str) -> Response:
    return Response(b"", 303, [(b"location", address.encode()), (b"content-length", b"0")])


def job_path(uid: str, *rest: str) -> str:
    return "/".join((f"/jobs/{uid}", *rest))


def of_job(target: str, rest: str = "") -> str:
    """Return the path of an API method of a job, below `/trainshed/v1/`. `rest` is appended as it is."""
    return f"jobs/{quote(target, safe='')}{rest}"

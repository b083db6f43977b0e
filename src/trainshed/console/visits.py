"""A visit: who asks for which page, and what pages answer with."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct, field

from trainshed.access.principals import Principal
from trainshed.access.sessions import Session
from trainshed.console.backend import Backend, Buckets
from trainshed.console.facts import Facts
from trainshed.console.feeds import Feeds
from trainshed.core.names import JobUid
from trainshed.httpd.messages import Request, Response
from trainshed.wire.trainshed_v1.record import Record

R = TypeVar("R", bound=Record)
_ANY_PROJECT: Final = "-"


class Visit(Struct, frozen=True):
    """A request of somebody who is signed in."""

    request: Request
    session: Session
    backend: Backend
    buckets: Buckets
    facts: Facts
    #: Set when the service stops: streams end then.
    closing: asyncio.Event
    #: Nanoseconds since the epoch.
    clock: Callable[[], int]
    #: Whether the session still is one: asked again and again by what goes on for long.
    is_valid: Callable[[], bool]
    #: Of the path.
    variables: Mapping[str, str]
    #: Logs that somebody looks at.
    feeds: Feeds
    #: Fields of the form that was sent.
    form: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def now(self) -> int:
        """Nanoseconds since the epoch."""
        return self.clock()

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def project(self) -> str:
        """Whose jobs are shown; `-`: everybody's."""
        return self.query("project") or self.principal.project or _ANY_PROJECT

    def query(self, name: str) -> str:
        """A parameter of the address, "" if it is not there."""
        return self.request.query.get(name, "")

    def quoted(self, name: str) -> str:
        """A variable of the path, as a method's path takes it."""
        return quote(self.variables[name], safe="")

    async def get(self, record: type[R], path: str, **query: str | Sequence[str]) -> R:
        """What a method of ours answers. Raises Refused."""
        asked = {
            name: (value,) if isinstance(value, str) else tuple(value)
            for name, value in query.items()
            if value
        }
        answer = await self.backend.ask(self.principal, "GET", path, asked)
        assert isinstance(answer, record), f"{path} answers {type(answer).__name__}"
        return answer

    async def do(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Record:
        """Have a method of ours do something. Raises Refused."""
        return await self.backend.ask(self.principal, verb, path, {}, body or {})

    def on(self, path: str) -> str:
        """A page's address, of the same project and region as this one."""
        kept = {name: self.query(name) for name in ("project", "region") if self.query(name)}
        return f"{path}?{urlencode(kept)}" if kept else path

    def with_query(self, **changes: str) -> str:
        """This page's address with other parameters; "" takes one away."""
        merged = {**self.request.query, **changes}
        kept = {name: value for name, value in merged.items() if value}
        path = quote(self.request.path)
        return f"{path}?{urlencode(kept)}" if kept else path

    def next_page(self, token: str | None) -> str:
        """Where this list goes on; "" on its last page, which has no token for another."""
        return self.with_query(page=token) if token else ""


class Part(Struct, frozen=True):
    """A piece of a page that is sent anew when it changes. Its template makes one element with the part's
    id."""

    template: str
    values: Mapping[str, Any]


class View(Struct, frozen=True):
    """A page."""

    title: str
    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: By the id of their element.
    parts: Mapping[str, Part] = field(default_factory=dict[str, Part])
    #: Ids of the parts that are the children of an element, by its id, in their order: new ones are put in.
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    #: Those of them that have nothing beyond: what is on the page and not in them is gone.
    whole: frozenset[str] = frozenset()
    #: Whose news may change it; None: of any job. Ignored if nothing `lives`.
    subject: JobUid | None = None
    #: The page is kept up to date.
    lives: bool = False
    #: Which entry of the navigation it belongs to.
    place: str = ""
    status: int = 200


Page = Callable[[Visit], Awaitable[View]]
Action = Callable[[Visit], Awaitable[Response | View]]


def redirect(address: str) -> Response:
    """Go on there, by GET."""
    return Response(b"", 303, [(b"location", address.encode()), (b"content-length", b"0")])


def job_path(uid: str, *rest: str) -> str:
    """The page of a job."""
    return "/".join((f"/jobs/{uid}", *rest))


def of_job(target: str, rest: str = "") -> str:
    """The path of a method on a job."""
    return f"jobs/{quote(target, safe='')}{rest}"

"""Pages of jobs: each has a host name of its own, at which all requests go to what listens in the job.

GET /.trainshed?ticket=T  changes a ticket for a cookie of this browser at that host, and shows the page
ANY /...                  what listens there, for browsers that have the cookie (docs/notebooks.md)

The cookie stands for somebody who may open shells in that job now. What listens there is sent everything but
that cookie, and no page of the service is at this host.
"""

from functools import partial
from typing import Final

from trainshed.api.calls.errors import public_error
from trainshed.api.calls.links import Ticket, guesses, holder, page_of
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import OPEN as OPEN_SHELL
from trainshed.api.shell.opening import open_port, tell_of_port
from trainshed.core.errors import NotFound, PermissionDenied, RequestError, Unavailable
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import is_port, pages_of
from trainshed.httpd.forwarding import NoAnswer, Rules, forward, relay
from trainshed.httpd.messages import Headers, Receive, Request, Response, Scope, Send, serve, sized
from trainshed.wire.status import StatusCode

OPEN: Final = "/.trainshed"
_COOKIE: Final = "trainshed-page="
_HTML: Final = b"text/html; charset=utf-8"
_PAGE: Final = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>Trainshed</title>
  </head>
  <body>
    <p role="status">{text}</p>
    <p><a href="{again}">Open it from the job</a></p>
  </body>
</html>
"""
_GUARDS: Final = ((b"referrer-policy", b"same-origin"), (b"x-content-type-options", b"nosniff"))
"""Headers of answers that do not have them already. The name of the host is a secret, which other sites are
not told."""


class PortSurface:
    """Answers requests and WebSockets of the hosts of pages."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        if scope["type"] == "http":
            await serve(Request(scope, receive), self._answer, self._refuse, receive, send)
            return
        await receive()  # The client's wish to connect.
        services = self._services
        try:
            ticket = await self._admitted(Request(scope, receive))
            line = await open_port(services, ticket)
            over = (services.closing.wait, partial(services.access.lapse, ticket.principal))
            await relay(line, scope, receive, send, rules=_RULES, over=over)
        except (RequestError, NoAnswer):
            await send({"type": "websocket.close", "code": 1008})  # Before it is accepted: 403.

    async def _answer(self, call: Request) -> Response:
        """Answer a request. Raises whatever is wrong with it."""
        if call.path == OPEN:
            return await self._open(call)
        ticket = await self._admitted(call)
        line = await open_port(self._services, ticket)
        services = self._services
        lapse = partial(services.access.lapse, ticket.principal)
        return await forward(line, call, _RULES, services.closing, lapse)

    def _refuse(self, call: Request, error: Exception) -> Response:
        """Return a page that says what is wrong and leads back."""
        from html import escape  # Its tables of entities are large, and most services never refuse.

        if isinstance(error, NoAnswer):
            error = Unavailable(f"What listens there gives no answer: {error}.")
        refused = public_error(error, "trainshed_v1", f"{call.method} {call.raw_path}")
        uid, name = self._page(call)
        page = _PAGE.format(
            text=escape(refused.message), again=escape(self._services.links.to_page(uid, name))
        )
        more = [(b"cache-control", b"no-store"), *_GUARDS]
        if refused.code is StatusCode.UNAVAILABLE and call.method == "GET":
            # A notebook takes some seconds until it listens.
            more.append((b"refresh", b"3"))
        return sized(page.encode(), _HTML, refused.code.http, more)

    async def _open(self, call: Request) -> Response:
        """Change a ticket for a cookie. Raises PermissionDenied."""
        links = self._services.links
        ticket = self._services.tickets.redeem(call.query.get("ticket", ""))
        uid, name = self._page(call)
        with guesses(call.scope):
            if ticket is None or (ticket.job_uid, ticket.name) != (uid, name):
                raise PermissionDenied("This link was already used, or is older than a minute.")
        shown = ticket.principal.credential
        if shown is None or call.headers.get("sec-fetch-mode", "navigate") != "navigate":
            raise PermissionDenied("Only a user can open a page, with a link.")
        await tell_of_port(self._services, ticket)
        mark = links.mark(page_of(uid, name), shown)
        cookie = f"{_COOKIE}{mark}; Path=/; HttpOnly; SameSite=Lax; Max-Age=86400"
        if links.address.startswith("https:"):
            cookie += "; Secure"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        return Response(b"", 303, [*headers, (b"cache-control", b"no-store"), *_GUARDS])

    async def _admitted(self, call: Request) -> Ticket:
        """Return what a browser's cookie leads to. Raises PermissionDenied, FailedPrecondition, NotFound."""
        is_of_others = call.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_of_others and call.headers.get("sec-fetch-dest") != "document":
            raise PermissionDenied("Pages of others may load and frame nothing from here.")
        uid, name = self._page(call)
        marks = [part.removeprefix(_COOKIE) for part in _cookies(call.scope) if _is_ours(part)]
        held = (self._services.links.lets(page_of(uid, name), mark) for mark in marks)
        shown = next(filter(None, held), None)
        with guesses(call.scope):
            holder(self._services.access.current_principal, shown, OPEN_SHELL, ())
        job, _ = await self._services.reader.job_by_uid(uid)
        assert isinstance(job, Job), "only jobs with replicas have pages"
        projects = (job.name.project_id,)
        principal = holder(self._services.access.current_principal, shown, OPEN_SHELL, projects)
        port = name if is_port(name) else pages_of(job.labels).get(name)
        if port is None:
            raise NotFound("The job no longer offers this page: its labels have changed.")
        return Ticket(uid, ReplicaId(0, 0), principal.email, principal, None, port, name)

    def _page(self, call: Request) -> tuple[JobUid, str]:
        """Return the job and the name of the page that a request or WebSocket is for, by its host."""
        page = self._services.links.page_at(call.headers.get("host", ""))
        assert page is not None, "requests of other hosts do not come here"
        return page


def _cookies(scope: Scope) -> list[str]:
    """Return the cookies of a request."""
    sent = b";".join(value for name, value in scope["headers"] if name == b"cookie")
    return [part.strip() for part in sent.decode("latin-1").split(";") if part.strip()]


def _is_ours(cookie: str) -> bool:
    return cookie.startswith(_COOKIE)


def _sent(headers: Headers) -> Headers:
    """Return the headers of a request without our cookie."""
    theirs = [part for part in _cookies({"headers": headers}) if not _is_ours(part)]
    cookies = [(b"cookie", "; ".join(theirs).encode("latin-1"))] if theirs else []
    return [*(pair for pair in headers if pair[0] != b"cookie"), *cookies]


def _passed(headers: Headers) -> Headers:
    """Return the headers of an answer, which changes no cookie of ours."""
    names = {name for name, _ in headers}
    kept = [
        (name, value)
        for name, value in headers
        if name != b"set-cookie" or not _is_ours(value.decode("latin-1").lstrip())
    ]
    return [*kept, *(guard for guard in _GUARDS if guard[0] not in names)]


_RULES: Final = Rules(_sent, _passed)

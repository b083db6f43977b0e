"""Pages of jobs. Each page has its own host name, whose requests are forwarded to a port of the job.

- `GET /.trainshed?ticket=T` exchanges a ticket for a cookie of this browser and host, and shows the page.
- `ANY /...` forwards a request to the job if the browser sends the cookie (docs/notebooks.md).

The cookie represents a user who may currently open shells in that job. The job's program receives all headers
except this cookie. The host serves no page of the service itself.
"""

from functools import partial
from typing import Final

from trainshed.api.calls.errors import public_error
from trainshed.api.calls.links import Ticket, count_guesses, link_owner, page_of
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import OPEN_SHELL
from trainshed.api.shell.opening import open_port, record_port_use
from trainshed.core.errors import NotFound, PermissionDenied, RequestError, Unavailable
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import is_port, pages_of
from trainshed.httpd.forwarding import NoResponse, Rules, forward, relay
from trainshed.httpd.messages import Headers, Receive, Request, Response, Scope, Send, serve, sized_response
from trainshed.wire.status import StatusCode

OPEN_PATH: Final = "/.trainshed"
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
    <p><a href="{again}">Open the page from the job</a></p>
  </body>
</html>
"""
_SECURITY_HEADERS: Final = ((b"referrer-policy", b"same-origin"), (b"x-content-type-options", b"nosniff"))
"""Headers that responses have by default. The host name is secret, so other sites must not receive it as a
referrer."""


class PortSurface:
    """Handles requests and WebSockets of the host names of pages."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or a WebSocket."""
        if scope["type"] == "http":
            await serve(Request(scope, receive), self._answer, self._error_page, receive, send)
            return
        await receive()  # Receive the client's connect event.
        services = self._services
        try:
            ticket = await self._ticket_of(Request(scope, receive))
            connection = await open_port(services, ticket)
            over = (services.closing.wait, partial(services.access.lapse, ticket.principal))
            await relay(connection, scope, receive, send, rules=_RULES, end_conditions=over)
        except (RequestError, NoResponse):
            # A close before the accept causes a response with status 403.
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, call: Request) -> Response:
        """Handle a request. Raises request errors."""
        if call.path == OPEN_PATH:
            return await self._open(call)
        ticket = await self._ticket_of(call)
        connection = await open_port(self._services, ticket)
        services = self._services
        lapse = partial(services.access.lapse, ticket.principal)
        return await forward(connection, call, _RULES, services.closing, lapse)

    def _error_page(self, call: Request, error: Exception) -> Response:
        """Return a page that shows the error and a link to the job."""
        # Imported here, because html's entity tables are large, and most services never need them.
        from html import escape

        if isinstance(error, NoResponse):
            error = Unavailable(f"The job's program does not respond: {error}. Try again.")
        refused = public_error(error, "trainshed_v1", f"{call.method} {call.raw_path}")
        uid, name = self._page_of_host(call)
        page = _PAGE.format(
            text=escape(refused.message), again=escape(self._services.links.console_page(uid, name))
        )
        headers = [(b"cache-control", b"no-store"), *_SECURITY_HEADERS]
        if refused.code is StatusCode.UNAVAILABLE and call.method == "GET":
            # Let the browser try again after 3 s, because a notebook server needs some seconds before it
            # listens.
            headers.append((b"refresh", b"3"))
        return sized_response(page.encode(), _HTML, refused.code.http, headers)

    async def _open(self, call: Request) -> Response:
        """Exchange a ticket for a cookie. Raises PermissionDenied."""
        links = self._services.links
        ticket = self._services.tickets.redeem(call.query.get("ticket", ""))
        uid, name = self._page_of_host(call)
        with count_guesses(call.scope):
            if ticket is None or (ticket.job_uid, ticket.name) != (uid, name):
                raise PermissionDenied(
                    "This link was already used, or is older than a minute. Open the page again through the "
                    "link on the job's page."
                )
        shown = ticket.principal.credential
        if shown is None or call.headers.get("sec-fetch-mode", "navigate") != "navigate":
            raise PermissionDenied("Only users can open a page. Open its link in a browser.")
        await record_port_use(self._services, ticket)
        mark = links.issue_mark(page_of(uid, name), shown)
        cookie = f"{_COOKIE}{mark}; Path=/; HttpOnly; SameSite=Lax; Max-Age=86400"
        if links.address.startswith("https:"):
            cookie += "; Secure"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        return Response(b"", 303, [*headers, (b"cache-control", b"no-store"), *_SECURITY_HEADERS])

    async def _ticket_of(self, call: Request) -> Ticket:
        """Return the ticket for a browser's cookie. Requests that other sites cause are rejected (CSRF).
        Raises PermissionDenied, FailedPrecondition and NotFound."""
        is_cross_site = call.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if is_cross_site and call.headers.get("sec-fetch-dest") != "document":
            raise PermissionDenied(
                "Other sites may not load or embed pages of jobs. Open the page through the link on "
                "the job's page."
            )
        uid, name = self._page_of_host(call)
        marks = [part.removeprefix(_COOKIE) for part in _cookies(call.scope) if _is_page_cookie(part)]
        credentials = (self._services.links.read_mark(page_of(uid, name), mark) for mark in marks)
        shown = next(filter(None, credentials), None)
        with count_guesses(call.scope):
            link_owner(self._services.access.current_principal, shown, OPEN_SHELL, ())
        job, _ = await self._services.reader.job_by_uid(uid)
        assert isinstance(job, Job), "only jobs with replicas have pages"
        projects = (job.name.project_id,)
        principal = link_owner(self._services.access.current_principal, shown, OPEN_SHELL, projects)
        port = name if is_port(name) else pages_of(job.labels).get(name)
        if port is None:
            raise NotFound(
                "The job no longer offers this page, because its labels have changed. List "
                "its pages with `trainshed jobs describe`."
            )
        return Ticket(uid, ReplicaId(0, 0), principal.email, principal, None, port, name)

    def _page_of_host(self, call: Request) -> tuple[JobUid, str]:
        """Return the job and the page name for the host of a request or WebSocket."""
        page = self._services.links.page_of_host(call.headers.get("host", ""))
        assert page is not None, "requests of other hosts do not come here"
        return page


def _cookies(scope: Scope) -> list[str]:
    """Return the cookies of a request."""
    sent = b";".join(value for name, value in scope["headers"] if name == b"cookie")
    return [part.strip() for part in sent.decode("latin-1").split(";") if part.strip()]


def _is_page_cookie(cookie: str) -> bool:
    return cookie.startswith(_COOKIE)


def _request_headers(headers: Headers) -> Headers:
    """Return the headers of a request without the service's cookie."""
    other_cookies = [part for part in _cookies({"headers": headers}) if not _is_page_cookie(part)]
    cookies = [(b"cookie", "; ".join(other_cookies).encode("latin-1"))] if other_cookies else []
    return [*(pair for pair in headers if pair[0] != b"cookie"), *cookies]


def _response_headers(headers: Headers) -> Headers:
    """Return the headers of a response, except for headers that would change the service's cookie."""
    names = {name for name, _ in headers}
    allowed = [
        (name, value)
        for name, value in headers
        if name != b"set-cookie" or not _is_page_cookie(value.decode("latin-1").lstrip())
    ]
    return [*allowed, *(header for header in _SECURITY_HEADERS if header[0] not in names)]


_RULES: Final = Rules(_request_headers, _response_headers)

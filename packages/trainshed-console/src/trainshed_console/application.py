"""The console as an ASGI application. It authenticates visitors, routes requests to pages, actions and
streams, and adds the security headers to each response. The API decides on permissions.

A session is the password of HTTP credentials (docs/adr/0070). Unlike cookies, credentials are sent only to
this host and port, and are hidden from scripts. Against CSRF, a request that changes something must come from
a page of this address (Origin). `httpd.hosts` also checks the Host header of each request.
"""

import asyncio
import logging
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from trainshed.access.authentication_limits import GUESS
from trainshed.access.principals import Principal
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.httpd.connections import SET_HOLDER
from trainshed.httpd.hosts import is_loopback, name_of
from trainshed.httpd.messages import (
    BodyTooLarge,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    StreamedResponse,
    serve,
    sized_response,
)
from trainshed.httpd.routing import Router, Template
from trainshed.wire.json import encode_text
from trainshed.wire.status import CallRejected, StatusCode
from trainshed.wire.trainshed_v1.access import IssuedToken
from trainshed_console import live
from trainshed_console.in_process import InProcessCaller
from trainshed_console.rendering import ASSETS, asset_response, is_prepared, prepare, render
from trainshed_console.routes import ACTIONS, PAGES, STREAMS
from trainshed_console.sessions import Sessions
from trainshed_console.signing_in import SigningIn
from trainshed_console.views import Facts, Page, View, Visit

_MAX_FORM_BYTES: Final = 4 << 20
"""Maximum bytes of a form."""
_MAX_FORM_FIELDS: Final = 500
"""Maximum fields of a form."""
_MAX_SIGN_IN_BYTES: Final = 16 << 10
"""Maximum bytes of the form for signing in."""
_HTML: Final = b"text/html; charset=utf-8"
_EVENTS: Final = b"text/event-stream"
_SECURITY_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FRESH: Final = (b"cache-control", b"no-store")
_SIGN_IN_HEADER: Final = "x-trainshed-sign-in"
"""A header that only the sign-in page sends. It prevents session fixation by pages of other sites."""
_CHALLENGE: Final = (b"www-authenticate", b'Basic realm="Trainshed"')
_BACK: Final = "/login/back"
_CHALLENGES: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_PORTS: Final = re.compile(r"|[1-9][0-9]{0,4}")
_log = logging.getLogger(__name__)
T = TypeVar("T")


class ConsoleApplication:
    """Responds to all requests of the console, whose paths start with one of `views.FIRST_SEGMENTS`."""

    def __init__(
        self,
        sessions: Sessions,
        backend: InProcessCaller,
        buckets: Path,
        *,
        facts: Facts,
        signing_in: SigningIn,
        now: Callable[[], int],
        closing: asyncio.Event,
    ) -> None:
        self._sessions = sessions
        self._signing_in = signing_in
        self._backend = backend
        self._buckets = buckets
        self._facts = facts
        self._now = now
        self._closing = closing
        #: Routes that need no session.
        self._public_routes: Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]] = {
            ("GET", "/login"): self._show_login,
            ("HEAD", "/login"): self._show_login,
            ("POST", "/login"): self._log_in,
            ("GET", "/login/with"): self._to_issuer,
            ("GET", _BACK): self._from_issuer,
            ("POST", "/login/link"): self._link,
            ("POST", "/login/token"): self._redeem,
            ("GET", "/signed-in"): self._signed_in,
        }
        self._pages, self._actions = _router(PAGES), _router(ACTIONS)
        self._streams = _router(STREAMS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request. The first request loads the templates and assets, in a thread."""
        if not is_prepared():
            await asyncio.to_thread(prepare)
        await serve(Request(scope, receive), self._respond, self.refuse, receive, send)

    async def _respond(self, call: Request) -> Response:
        """Return the response to a request. Raises CallRejected, BodyTooLarge and errors of the page."""
        if call.path.startswith(ASSETS):
            return asset_response(call) or self._trouble(
                call, None, StatusCode.NOT_FOUND, "This file does not exist."
            )
        changes = call.method not in ("GET", "HEAD")
        if not changes and (address := self._safer_address(call)) is not None:
            return self._add_security_headers(_redirect(address))
        if changes and not self._is_of_this_page(call):
            raise CallRejected(
                StatusCode.PERMISSION_DENIED,
                "This request did not come from a page of this console (CSRF protection). Open the console "
                "and repeat the action there.",
            )
        path = _BACK if call.path.startswith(f"{_BACK}/") else call.path
        public_route = self._public_routes.get((call.method, path))
        if public_route is not None:
            return await public_route(call)
        principal = self._visitor(call)
        if principal is None:
            # If the request contains a wrong session password, redirect to the sign-in page instead of
            # returning status 401.
            call.scope[GUESS] = "authorization" in call.headers
            if call.path.startswith("/events/"):
                # Scripts cannot read the response to a rejected event stream, so the cause is reported as an
                # event.
                return self._add_security_headers(sized_response(live.SIGNED_OUT, _EVENTS, more=[_FRESH]))
            if call.method == "GET" and "text/html" in call.headers.get("accept", ""):
                target = call.path + (f"?{call.raw_query}" if call.raw_query else "")
                return self._add_security_headers(_redirect(f"/login?next={quote(target, safe='')}"))
            raise CallRejected(StatusCode.UNAUTHENTICATED, "Sign in first.")
        if call.method == "POST" and call.path == "/logout":
            return await self._log_out(call, principal)
        if call.path == "/login/command-line":
            return await self._to_command_line(call, principal)
        return await self._answer(call, principal)

    async def _answer(self, call: Request, principal: Principal) -> Response:
        SET_HOLDER.get()(principal.email)
        if call.path.startswith("/events/"):
            return self._events(call, principal)
        if call.method not in ("GET", "HEAD"):
            return await self._act(call, principal)
        if matched := self._streams.match("GET", call.raw_path):
            made, variables = matched
            answer = await made(self._visit(call, principal, variables))
            return self._add_security_headers(answer)
        matched = self._pages.match("GET", call.raw_path)
        if matched is None:
            raise CallRejected(
                StatusCode.NOT_FOUND, f"The page {call.path[:200]} does not exist. Check the address."
            )
        page, variables = matched
        visit = self._visit(call, principal, variables)
        return await self._render(visit, await page(visit))

    async def _act(self, call: Request, principal: Principal) -> Response:
        matched = self._actions.match(call.method, call.raw_path)
        if matched is None:
            raise CallRejected(
                StatusCode.NOT_FOUND,
                f"The action {call.path[:200]} does not exist. Reload the page, and repeat the action.",
            )
        action, variables = matched
        visit = self._visit(call, principal, variables, await _form(call, _MAX_FORM_BYTES))
        answer = await action(visit)
        if isinstance(answer, View):
            return await self._render(visit, answer)
        return self._add_security_headers(answer)

    def _events(self, call: Request, principal: Principal) -> Response:
        """Return the event stream of a page. The path of the stream is `/events` followed by the path of the
        page."""
        path = call.raw_path.removeprefix("/events")
        matched: tuple[Page, dict[str, str]] | None = self._pages.match("GET", path)
        if matched is None:
            raise CallRejected(
                StatusCode.NOT_FOUND, f"The page {path[:200]} does not exist. Check the address."
            )
        page, variables = matched
        inner = call.with_path(path.encode("latin-1"))
        visit = self._visit(inner, principal, variables)
        return self._add_security_headers(StreamedResponse(live.stream(page, visit), self._closing, _EVENTS))

    def _visit(
        self,
        call: Request,
        principal: Principal,
        variables: Mapping[str, str],
        form: Mapping[str, str] | None = None,
    ) -> Visit:
        return Visit(
            call,
            principal,
            self._backend,
            self._buckets,
            self._facts,
            self._closing,
            self._now,
            lambda: self._visitor(call) == principal,
            variables,
            form or {},
        )

    async def _render(self, visit: Visit, view: View) -> Response:
        common: dict[str, Any] = {
            "visit": visit,
            "facts": self._facts,
            "view": view,
            "projects": await self._backend.projects(visit.principal),
        }
        parts = live.rendered_parts(visit, view)
        html = render(view.template, {**common, **view.values, "parts": parts})
        return self._html(html, view.status)

    def _html(self, html: str, status: int = 200) -> Response:
        return self._add_security_headers(
            sized_response(html.encode("utf-8", "replace"), _HTML, status, [_FRESH])
        )

    def _add_security_headers(self, response: Response) -> Response:
        names = {name for name, _ in response.headers}
        response.headers += [guard for guard in _SECURITY_HEADERS if guard[0] not in names]
        return response

    def refuse(self, call: Request, error: Exception) -> Response:
        """Return an error page, or JSON if the request accepts JSON. Log unexpected errors."""
        principal = self._visitor(call)
        if isinstance(error, CallRejected):
            return self._trouble(call, principal, error.code, str(error))
        if isinstance(error, Unauthenticated | Unavailable):
            is_away = isinstance(error, Unavailable)
            code = StatusCode.UNAVAILABLE if is_away else StatusCode.UNAUTHENTICATED
            return self._trouble(call, principal, code, f"{str(error).rstrip('.')}.")
        if isinstance(error, BodyTooLarge):
            return self._trouble(call, principal, StatusCode.INVALID_ARGUMENT, str(error))
        _log.error("%s %s failed", call.method, call.raw_path, exc_info=error)
        text = "The service failed to answer this request. The log of the service contains the cause."
        return self._trouble(call, principal, StatusCode.INTERNAL, text)

    def _trouble(self, call: Request, principal: Principal | None, code: StatusCode, text: str) -> Response:
        if "application/json" in call.headers.get("accept", ""):
            body = encode_text({"error": {"status": code.name, "message": text}})
            return self._add_security_headers(sized_response(body, b"application/json", code.http, [_FRESH]))
        values: dict[str, Any] = {
            "facts": self._facts,
            # The page has the navigation only if the visitor has a session.
            "visit": principal and self._visit(call, principal, {}),
            "view": View("", "trouble.html", {}),
            "code": code,
            "message": text,
            "back": self._previous_page(call),
        }
        return self._html(render("trouble.html", values), code.http)

    def _previous_page(self, call: Request) -> str | None:
        """Return the path of the console page from which the visitor sent a rejected form, or None if the
        page is unknown."""
        referer = call.headers.get("referer", "")
        if call.method != "POST" or not self._is_ours(referer, call):
            return None
        came = urlsplit(referer)
        return _local_path(came.path + (f"?{came.query}" if came.query else ""))

    async def _show_login(self, call: Request) -> Response:
        """Return the sign-in page.

        A sign-in link that the user opened directly signs in immediately. A sign-in link on another site
        requires a confirmation (login CSRF). After a sign-in at an issuer, the page's script requires a
        confirmation unless this browser started that sign-in (session fixation).
        """
        values: dict[str, Any] = {
            "facts": self._facts,
            "code": call.query.get("code", ""),
            "at_once": call.headers.get("sec-fetch-site", "") == "none" and "mark" not in call.query,
            "following": call.query.get("next", ""),
            "mark": call.query.get("mark", ""),
            "out": call.query.get("out", ""),
            "issuers": self._signing_in.names,
        }
        return self._html(render("login.html", values))

    async def _to_issuer(self, call: Request) -> Response:
        """`GET /login/with?issuer=NAME&next=N&mark=M`: redirect the browser to an issuer."""
        name, following, mark = (call.query.get(key, "") for key in ("issuer", "next", "mark"))
        return self._add_security_headers(
            _redirect(await self._signing_in.start(name, _local_path(following), mark))
        )

    async def _from_issuer(self, call: Request) -> Response:
        """`GET /login/back?state=S&code=C`: finish a sign-in at an issuer, and redirect to a sign-in link.
        The page behind the link requires a confirmation if another browser started the sign-in."""
        if "code" not in call.query:
            cause = call.query.get("error_description") or call.query.get("error") or "nothing"
            raise Unauthenticated(
                f"The issuer did not sign you in. It reports: {cause[:300]}. Sign in again, or ask the "
                "operator of this service."
            )
        state, sender = call.query.get("state", ""), call.query.get("iss", "")
        sign_in = await self._signing_in.finish(state, call.query["code"], sender, call.path)
        code = self._sessions.link_code(sign_in.shown)
        query = urlencode({"code": code, "next": sign_in.following, "mark": sign_in.mark})
        return self._add_security_headers(_redirect(f"/login?{query}"))

    async def _log_in(self, call: Request) -> Response:
        """Return the session for a token or the code of a link, as JSON for the script of the sign-in page.
        End the browser's previous session. The form field `next` is the path of the next page."""
        if "application/json" not in call.headers.get("accept", ""):
            raise CallRejected(
                StatusCode.FAILED_PRECONDITION,
                "Signing in requires JavaScript. Enable JavaScript for this page, and reload it.",
            )
        form = await _form(call, _MAX_SIGN_IN_BYTES)
        before, following = self._visitor(call), _local_path(form.get("next", ""))
        code = form.get("code", "")
        try:
            if code:
                value = await self._sessions.by_code(code)
            else:
                value = await self._sessions.by_token(form.get("token", "").strip())
        except Unauthenticated as wrong:
            # A link works only once. If a signed-in browser opens the link again, redirect it as after a
            # sign-in.
            if code and before is not None:
                return self._json({"next": following})
            text = str(wrong) if code or form.get("token") else "Enter a token."
            text = text.partition(": send")[0].rstrip(".") + "."
            return self._trouble(call, None, StatusCode.UNAUTHENTICATED, text)
        if before is not None:
            await self._sessions.end(before)
        return self._json({"session": value, "next": following})

    async def _log_out(self, call: Request, principal: Principal) -> Response:
        """`POST /logout`: sign the browser out. `out=everywhere` also ends the user's other sessions and
        tokens."""
        everywhere = (await _form(call, _MAX_SIGN_IN_BYTES)).get("out") == "everywhere"
        if everywhere:
            email = quote(principal.email, safe="")
            try:
                await self._visit(call, principal, {}).do("DELETE", f"tokens/{email}")
            except CallRejected as refused:
                if refused.code is not StatusCode.NOT_FOUND:
                    raise
        await self._sessions.end(principal, everywhere=everywhere)
        return self._add_security_headers(_redirect(f"/login?out={'everywhere' if everywhere else 'here'}"))

    async def _signed_in(self, call: Request) -> Response:
        """`GET /signed-in`: return status 204 for the credentials of a session.

        Without credentials, challenge the sign-in page to send some, and reject other callers. After this
        response, the browser sends the credentials with requests for all paths.
        """
        if self._visitor(call) is not None:
            return self._add_security_headers(Response(b"", 204, [_FRESH]))
        if _SIGN_IN_HEADER not in call.headers:
            raise CallRejected(StatusCode.UNAUTHENTICATED, "Sign in first.")
        nothing = [_CHALLENGE, _FRESH, (b"content-length", b"0")]
        return self._add_security_headers(Response(b"", 401, nothing))

    async def _link(self, call: Request) -> Response:
        """`POST /login/link` with a token in the header: return a sign-in link. `trainshed console` calls
        it."""
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise CallRejected(
                StatusCode.UNAUTHENTICATED,
                "The request contains no token. Send the header `Authorization: Bearer TOKEN`.",
            )
        code = self._sessions.link_code(await self._sessions.credential_of(token.strip()))
        return self._json({"uri": self._facts.login_link(code)})

    async def _to_command_line(self, call: Request, principal: Principal) -> Response:
        """`GET|POST /login/command-line?challenge=C[&port=P]`: let the visitor confirm the sign-in of a
        command line. Then send the code of a token to the port of the command line, or show the code to the
        visitor."""
        challenge, port = call.query.get("challenge", ""), call.query.get("port", "")
        if not _CHALLENGES.fullmatch(challenge) or not _PORTS.fullmatch(port):
            raise CallRejected(
                StatusCode.INVALID_ARGUMENT, "This link is incomplete. Run trainshed login to open this page."
            )
        code = ""
        if call.method == "POST":
            token = await self._visit(call, principal, {}).do("POST", "tokens:own")
            assert isinstance(token, IssuedToken), "the answer is a token"
            code = self._sessions.offer(token.token, challenge)
        values = {"email": principal.email, "code": code, "port": port}
        return self._html(render("command_line.html", values))

    async def _redeem(self, call: Request) -> Response:
        """`POST /login/token` with `code` and `verifier`: return the token that was offered to a command
        line."""
        form = await _form(call, _MAX_SIGN_IN_BYTES)
        token = self._sessions.redeem(form.get("code", ""), form.get("verifier", ""))
        return self._json({"token": token})

    def _json(self, value: Mapping[str, str]) -> Response:
        return self._add_security_headers(
            sized_response(encode_text(value), b"application/json", more=[_FRESH])
        )

    def _visitor(self, call: Request) -> Principal | None:
        scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic" or self._safer_address(call) is not None:
            return None
        try:
            _, _, value = b64decode(credentials, validate=True).decode().partition(":")
        except ValueError:
            return None
        return self._sessions.find(value)

    def _safer_address(self, call: Request) -> str | None:
        """Return the loopback address to which a request for `localhost` is redirected, or None if no
        redirect is needed.

        `localhost` has two addresses. Another program can listen on the address that the service does not
        use, and receive the browser's credentials.
        """
        ours, name = urlsplit(self._facts.address), name_of(call.headers.get("host", ""))
        if name != "localhost" and not name.endswith(".localhost"):
            return None
        is_number = ours.hostname != "localhost" and is_loopback(ours.hostname or "")
        if call.scope.get("scheme") != "http" or not is_number:
            return None
        host = f"[{ours.hostname}]" if ":" in (ours.hostname or "") else ours.hostname
        _, colon, port = call.headers["host"].partition(":")
        query = f"?{call.raw_query}" if call.raw_query else ""
        return f"http://{host}{colon}{port}{call.raw_path}{query}"

    def _is_of_this_page(self, call: Request) -> bool:
        """Return whether a request that changes something comes from a page of this console (CSRF check).
        Requests of a command line need no check, because no browser sends their token or code automatically.
        """
        bearer = call.headers.get("authorization", "")[:7].lower() == "bearer "
        if call.path == "/login/token" or (call.path == "/login/link" and bearer):
            return True
        origin = call.headers.get("origin", "")
        if not origin:
            return call.headers.get("sec-fetch-site", "") == "same-origin"
        return self._is_ours(origin, call)

    def _is_ours(self, address: str, call: Request) -> bool:
        """Return whether a page at this address belongs to this console.

        If the service uses TLS, a page over plain HTTP does not belong to it, because an attacker on the
        network can forge the page. A page over https belongs to it even if the service does not use TLS,
        because a proxy may terminate TLS.
        """
        ours = urlsplit(self._facts.address)
        try:
            theirs = urlsplit(address)
        except ValueError:
            return False
        host, own = call.headers.get("host", "").lower(), ours.netloc.lower()
        spoken = ours.scheme if host == own else call.scope.get("scheme", "http")
        known = ((ours.scheme, own), (spoken, host), ("https", host))
        return bool(theirs.netloc) and (theirs.scheme, theirs.netloc.lower()) in known


async def _form(call: Request, most: int) -> dict[str, str]:
    """Return the fields of a form of at most `most` bytes. The values of a repeated field are joined with
    spaces. Raises CallRejected, BodyTooLarge."""
    text = (await call.body(most)).decode("utf-8", "replace")
    form: dict[str, str] = {}
    try:
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS):
            form[name] = f"{form[name]} {value}" if name in form else value
        return form
    except ValueError:
        raise CallRejected(
            StatusCode.INVALID_ARGUMENT,
            f"The form has too many fields. The limit is {_MAX_FORM_FIELDS}. Send fewer fields.",
        ) from None


def _local_path(following: str) -> str:
    """Return `following` encoded for a Location header. If it is not a path of this host, return the path of
    the overview. Browsers treat `//elsewhere.example` as another host (open redirect)."""
    is_here = following.startswith("/") and following[1:2] not in ("/", "\\")
    return quote(following if is_here else "/overview", safe="/?&=%:+-._~")


def _redirect(address: str) -> Response:
    return Response(b"", 303, [(b"location", address.encode()), (b"content-length", b"0"), _FRESH])


def _router(table: Mapping[tuple[str, str], T]) -> Router[T]:
    return Router((verb, Template.parse(path), target) for (verb, path), target in table.items())

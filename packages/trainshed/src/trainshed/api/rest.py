"""The API's port: dispatches each request by its path, and serves the public APIs over REST.

Pages of jobs have host names of their own, at which nothing else is served. All else goes by the first
segment of a path: `/trainshed` is our own API; `/metrics` are the service's metrics; `/shell` checks tickets
of its own; other applications (buckets, those of additions) are mounted and check credentials themselves.
Discovery documents and health need no token. All other paths belong to the public APIs, through
the registry of handlers: match, authenticate, authorise, bind, call, render.

Routes come from the http annotations of the public APIs. This module knows no method by name, only the
aliases that clients use: `v1beta1` for `v1` (gcloud beta), `/ui/` before the names of operations and
locations (spec/clients#operations).

Paths that `ml` v1 and Vertex share below `/v1/projects/P/locations/L/` are Vertex's.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from google.protobuf.message import Message

from trainshed.access.authentication_limits import (
    GUESS,
    SOURCE,
    SOURCE_HEADER,
    AuthenticationLimiter,
)
from trainshed.api import projects, service_accounts
from trainshed.api.calls.audit import audited, record_failed_authentication
from trainshed.api.calls.call import Call, HandCall, HandHandler
from trainshed.api.calls.errors import NotServed, installing, not_served
from trainshed.api.calls.http import (
    METHOD,
    SMALL_BODY,
    error_answer,
    json_answer,
    logged,
    most_of,
    no_such_method,
    refusal_answer,
    sent_object,
)
from trainshed.api.calls.project_names import id_of
from trainshed.api.calls.registry import Registry
from trainshed.api.calls.services import Authenticate, Services
from trainshed.api.calls.versions import Version
from trainshed.api.metrics import MetricsSurface
from trainshed.api.shell.ports import PortSurface
from trainshed.api.shell.surface import ShellSurface
from trainshed.api.trainshed_v1.transport import TrainshedSurface
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.httpd.hosts import Hosts, keeping_credentials, refuse
from trainshed.httpd.messages import (
    JSON,
    Application,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    Streamed,
    serve,
    sized,
)
from trainshed.httpd.messages import Message as HttpMessage
from trainshed.httpd.routing import ANY, Router, Template
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.pool import discovery_document
from trainshed.wire.routes import Route

Endpoint = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Takes a request and the variables of its path."""

_OF_ALL_APIS: Final = "//www.googleapis.com"
_DISCOVERY: Final = {("ml", "v1"): "ml_v1", ("logging", "v2"): "logging_v2"}
_PAGE_OF_LOG: Final = "google.logging.v2.ListLogEntriesResponse"
_LARGE: Final = 1 << 18
"""Bytes of an answer, as protobuf counts them, above which it is rendered in a thread: some 0.1 s."""
_NO_CONSOLE: Final = (
    "This service has no web pages and no tools for agents, because its console is not installed. On the "
    f"service's machine, run {installing('console')} and restart the service."
)


class ApiApplication:
    """Everything that is served on the API's port, as an ASGI application and as its `httpd.messages`
    surface."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        mounts: Mapping[str, Application],
        *,
        hosts: Hosts,
        registry: Registry,
    ) -> None:
        """`mounts`: applications by first path segment (`storage`). `hosts`: the names under which it may be
        called."""
        self._services = services
        self._registry = registry
        self._authenticate = authenticate
        self._mounts = mounts
        self._hosts = hosts
        self._authentication_limiter = AuthenticationLimiter(
            partial(record_failed_authentication, services)
        )
        self._shell = ShellSurface(services)
        self._ports = PortSurface(services)
        trainshed = TrainshedSurface(services, authenticate)
        self._surfaces: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "trainshed": trainshed.answer,
            "shell": self._shell.answer,
            "metrics": MetricsSurface(services, authenticate).answer,
        }
        by_hand = {**projects.METHODS, **service_accounts.METHODS}
        endpoints: Iterable[tuple[str, str, Endpoint]] = (
            *((*place, partial(self._by_hand, method)) for place, method in by_hand.items()),
            ("POST", "/token", self._token),
            (ANY, "/$discovery/rest", self._discovery),
            (ANY, "/discovery/v1/apis/{api}/{version}/rest", self._discovery),
            *((verb, "/", self._health) for verb in ("GET", "HEAD")),
            *((verb, "/healthz", self._health) for verb in ("GET", "HEAD")),
        )
        self._router = Router(
            (verb, Template.parse(path), endpoint) for verb, path, endpoint in endpoints
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        SOURCE.set(source := (scope.get("client") or ("",))[0])
        if not source and scope["path"] == "/trainshed/v1/whoami":
            # Programs may send the header here, too, but have a host of Google's first.
            headers = dict(reversed(scope["headers"]))
            if headers.get(b"host") == b"localhost":
                SOURCE.set(headers.get(SOURCE_HEADER.encode(), b"").decode("latin-1"))
        if scope["type"] == "http":
            await logged(self._http, scope, receive, send, self._services.meters)
        elif scope["type"] == "websocket":
            if fault := self._hosts.fault(scope):
                await refuse(scope, send, fault)
                return
            if self._is_of_page(scope):
                await self._ports(scope, receive, send)
                return
            await self._shell.connect(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        source = (scope.get("client") or ("",))[0]

        async def answered(message: HttpMessage) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401 or scope.get(GUESS):
                    await self._authentication_limiter.delay_failure(source)
                if message["status"] == 401:
                    message = keeping_credentials(scope, message)
            await send(message)

        if fault := self._hosts.fault(scope):
            await refuse(scope, answered, fault)
        elif self._is_of_page(scope):
            await self._ports(scope, receive, send)
        else:
            await self._mounted(scope)(scope, receive, answered)

    def _is_of_page(self, scope: Scope) -> bool:
        """Whether the host of a request or WebSocket is that of a job's page."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return self._services.links.page_at(host.decode("latin-1")) is not None

    def _mounted(self, scope: Scope) -> Application:
        first = _first(scope["path"])
        # Browsers ask for a page; at `/` other clients get the service's health.
        is_browser = any(n == b"accept" and b"text/html" in v for n, v in scope["headers"])
        if is_browser and first not in self._mounts and not self._is_served(scope):
            first = ""  # The console's page of what is not there leads on.
        if (is_browser and not first) or first == "mcp":
            return self._mounts.get(first, _without_console)
        return self._mounts.get(first, self._own) if first else self._own

    async def _own(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(Request(scope, receive), self._answer, error_answer, receive, send)

    def _is_served(self, scope: Scope) -> bool:
        verb, path = scope["method"], scope["raw_path"].decode("latin-1")
        is_ours = _first(path) in self._surfaces or self._router.match(verb, path) is not None
        is_public = routes.match(verb, _plain(path)) is not None or _known(verb, path) is not None
        return is_ours or is_public

    async def _answer(self, request: Request) -> Response:
        """Answer a request by its path. Raises whatever is wrong with it; `request.api` then says in which
        API's form."""
        if (surface := self._surfaces.get(_first(request.path))) is not None:
            return await surface(request)
        is_form = request.override()
        verb, path = request.method, request.raw_path
        if (public := _match(verb, path)) is not None:
            return await self._public(request, *public, is_form=is_form)
        if (ours := self._router.match(verb, path)) is not None:
            endpoint, variables = ours
            return await endpoint(request, variables)
        if (known := _known(verb, path)) is None:
            if _first(path) == "login" and "login" not in self._mounts:  # Commands sign in there.
                raise NotServed(_NO_CONSOLE)
            return refusal_answer(no_such_method(request, " in the APIs that are served here"))
        await self._authenticate(request.headers.get("authorization"))
        raise not_served(known, self._registry.methods)

    async def _public(
        self, request: Request, route: Route, variables: dict[str, str], *, is_form: bool
    ) -> Response:
        """Answer a request of a public API."""
        request.api = route.api
        request.scope[METHOD] = route.rpc.full_name
        principal = await self._authenticate(request.headers.get("authorization"))
        body = await request.decoded_body(most_of(route.rpc.method))
        query = request.parameters
        if is_form:
            query = [*query, *parse_qsl(body.decode("latin-1"), keep_blank_values=True)]
        read = partial(routes.bind, route, variables, query, body)
        version = _version(request.raw_path)
        call = Call(principal, self._services, route.rpc.full_name)
        if route.rpc.streams:
            responses = await self._registry.opened(call, len(body), read)
            parts = _array(responses)
            # A stream that fails at once is refused with a status of its own.
            first = await anext(parts)
            return Streamed(_led(first, parts), self._services.closing, JSON)
        answer = await self._registry.answered(call, version, len(body), read)
        render = partial(_rendered, answer, routes.has_numeric_enums(query))
        # Takes a second for a tuning job of a thousand trials; other requests go on meanwhile.
        large = answer.ByteSize() > _LARGE
        return json_answer(await asyncio.to_thread(render) if large else render())

    async def _by_hand(
        self, method: tuple[str, HandHandler], request: Request, names: Mapping[str, str]
    ) -> Response:
        request.api = "resourcemanager_v3"
        request.scope[METHOD], handler = method
        principal = await self._authenticate(request.headers.get("authorization"))
        if (number := names.get("project", "")).isdecimal():
            names = {**names, "project": id_of(number, principal, self._services)}
        body, root = await sent_object(request, SMALL_BODY), _root_url(request)
        call = HandCall(principal, self._services, method[0], names, body, root)
        project = names.get("project", "").removeprefix("-")
        who = self._services, principal, method[0]
        answer = await audited(partial(handler, call), *who, project=project, resource=request.path)
        return json_answer(wire_json.encode_text(answer))

    async def _token(self, request: Request, variables: Mapping[str, str]) -> Response:
        form = await request.decoded_body(SMALL_BODY)
        status, answer = await service_accounts.exchanged(self._services, self._authenticate, form)
        if status == 400:  # OAuth's word for credentials that are not known.
            await self._authentication_limiter.delay_failure(SOURCE.get())
        return sized(
            wire_json.encode_text(answer), JSON, status, more=[(b"cache-control", b"no-store")]
        )

    async def _discovery(self, request: Request, variables: Mapping[str, str]) -> Response:
        """Answer `/$discovery/rest?version=v1` (v1: ml, v2: logging, unless `api` names another) and
        `/discovery/v1/apis/API/VERSION/rest`."""
        version = variables.get("version") or request.query.get("version") or "v1"
        # Each public API has a host of its own and needs no name; here they share one.
        unnamed = "logging" if version == "v2" else "ml"
        name = variables.get("api") or request.query.get("api") or unnamed
        api = _DISCOVERY.get((name, version))
        if api is None:
            return refusal_answer(no_such_method(request, " in the APIs that are served here"))
        root = _root_url(request)
        # `www` is where clients ask for the documents of all APIs; it serves none of the APIs.
        root = root.replace("//www.", f"//{name}.") if root.endswith(_OF_ALL_APIS) else root
        return json_answer(discovery_document(api, root))

    async def _health(self, request: Request, variables: Mapping[str, str]) -> Response:
        """Answer `/healthz`, and `/` unless a mount serves it: that the service is up; to a caller with a
        token also its version."""
        health = {"service": "trainshed", "status": "ok"}
        if authorization := request.headers.get("authorization"):
            try:
                await self._authenticate(authorization)
                health["version"] = self._services.settings.version
            except Unauthenticated:
                await self._authentication_limiter.delay_failure(SOURCE.get())
            except Unavailable:
                pass
        body = wire_json.encode_text(health)
        return json_answer(b"" if request.method == "HEAD" else body)


async def _without_console(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer who asks for a page, or for the tools of agents, where no console is installed."""
    await serve(Request(scope, receive), _no_page, error_answer, receive, send)


async def _no_page(request: Request) -> Response:
    text = f"{_NO_CONSOLE}\n" if request.method != "HEAD" else ""
    return sized(text.encode(), b"text/plain; charset=utf-8", 404)


def _match(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of the public APIs at this path, and its variables."""
    if not path.startswith("/ui/"):
        return routes.match(verb, _plain(path))
    matched = routes.match(verb, "/v1/" + path[4:])
    return (
        matched if matched is not None and matched[0].rpc.service in routes.MIXIN_SERVICES else None
    )


def _known(verb: str, path: str) -> routes.KnownMethod | None:
    """Return the method of the public APIs at this path."""
    if path.startswith("/compute/"):
        # gcloud takes "not found" for a region that does not exist.
        return routes.KnownMethod("Compute Engine", path)
    return routes.find_by_request(verb, _plain(path)) or routes.find_by_request(verb, path)


async def _array(responses: AsyncGenerator[Message]) -> AsyncGenerator[bytes]:
    """Yield the text of a JSON array of the responses of a stream, as clients of the public services read
    it."""
    before = b"["
    async for response in responses:
        yield before + await asyncio.to_thread(_rendered, response, enums_as_ints=False)
        before = b","
    yield b"[]" if before == b"[" else b"]"


async def _led(first: bytes, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


def _rendered(response: Message, enums_as_ints: bool) -> bytes:
    public = wire_json.to_public(response, enums_as_ints=enums_as_ints)
    if response.DESCRIPTOR.full_name == _PAGE_OF_LOG:
        # All of one width, because gcloud compares them as text (spec/clients#log-pages).
        for entry in public.get("entries", ()):
            for name in ("timestamp", "receiveTimestamp"):
                whole, _, fraction = entry[name].removesuffix("Z").partition(".")
                entry[name] = f"{whole}.{fraction:0<9}Z"
    return wire_json.render(public)


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _root_url(request: Request) -> str:
    """Return the scheme and authority by which the caller reached the service."""
    # Replicas' endpoints, which terminate their programs' TLS, call by the Unix socket.
    _, port = request.scope.get("server") or ("", 0)
    scheme = "https" if port is None else request.scope.get("scheme", "http")
    return f"{scheme}://{request.headers.get('host') or 'localhost'}"


def _plain(path: str) -> str:
    """Return a path with `v1` in place of `v1beta1`."""
    return "/v1/" + path[9:] if path.startswith("/v1beta1/") else path


def _version(path: str) -> Version:
    if path.startswith("/ui/"):
        return Version.UNSAID
    return Version.V1BETA1 if path.startswith("/v1beta1/") else Version.V1

"""The HTTP surface of the API's port: dispatches requests by path, and serves the public APIs over REST.

- Pages of jobs have their own host names, which serve nothing else. All other requests are dispatched by the
  first segment of their path.
- `/trainshed` is our own API, and `/metrics` returns the service's metrics. `/shell` checks its own tickets.
- Other applications (buckets, additions) are mounted, and check credentials themselves.
- Discovery documents and health checks need no token.
- All other paths belong to the public APIs, through the registry of handlers. Each request is matched,
  authenticated, authorized, bound to a message, executed and rendered.

The routes come from the http annotations of the public APIs. This module contains no method names. It
contains only aliases that clients use: `v1beta1` for `v1` (gcloud beta), and `/ui/` before the names of
operations and locations (spec/clients#operations). Paths below `/v1/projects/P/locations/L/` that `ml` v1 and
Vertex share belong to Vertex.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from google.protobuf.message import Message

from trainshed.access.authentication_limits import GUESS, SOURCE, SOURCE_HEADER, AuthenticationLimiter
from trainshed.api import projects, service_accounts
from trainshed.api.calls.audit import audit_call, record_failed_authentication
from trainshed.api.calls.call import Call, JsonCall, JsonHandler
from trainshed.api.calls.errors import NotServed, install_command, not_served
from trainshed.api.calls.http import (
    METHOD,
    SMALL_BODY,
    error_response,
    json_response,
    max_body_size,
    public_error_response,
    read_json_object,
    serve_logged,
    unknown_method,
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
from trainshed.httpd.hosts import Hosts, keep_credentials, refuse
from trainshed.httpd.messages import (
    JSON,
    Application,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    StreamedResponse,
    serve,
    sized_response,
)
from trainshed.httpd.messages import Message as HttpMessage
from trainshed.httpd.routing import ANY, Router, Template
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.pool import discovery_document
from trainshed.wire.routes import Route

Endpoint = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""A function that handles a request with the variables of its path."""

_SHARED_DISCOVERY_HOST: Final = "//www.googleapis.com"
_DISCOVERY: Final = {("ml", "v1"): "ml_v1", ("logging", "v2"): "logging_v2"}
_LOG_PAGE: Final = "google.logging.v2.ListLogEntriesResponse"
_MAX_RENDERED_ON_LOOP: Final = 1 << 18
"""Maximum size in bytes (as protobuf) of a response that is rendered on the event loop. Rendering a response
of this size takes about 0.1 s."""
_NO_CONSOLE: Final = (
    "This service has no web pages and no tools for agents, because its console is not installed. On the "
    f"service's machine, run {install_command('console')} and restart the service."
)


class ApiApplication:
    """The ASGI application of the API's port, with all surfaces."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        mounts: Mapping[str, Application],
        *,
        hosts: Hosts,
        registry: Registry,
    ) -> None:
        """`mounts`: applications by the first segment of their paths (`storage`). `hosts`: the host names
        that clients may use."""
        self._services = services
        self._registry = registry
        self._authenticate = authenticate
        self._mounts = mounts
        self._hosts = hosts
        self._authentication_limiter = AuthenticationLimiter(partial(record_failed_authentication, services))
        self._shell = ShellSurface(services)
        self._ports = PortSurface(services)
        trainshed = TrainshedSurface(services, authenticate)
        self._surfaces: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "trainshed": trainshed.answer,
            "shell": self._shell.answer,
            "metrics": MetricsSurface(services, authenticate).answer,
        }
        json_methods = {**projects.METHODS, **service_accounts.METHODS}
        endpoints: Iterable[tuple[str, str, Endpoint]] = (
            *((*route, partial(self._json_method, method)) for route, method in json_methods.items()),
            ("POST", "/token", self._token),
            (ANY, "/$discovery/rest", self._discovery),
            (ANY, "/discovery/v1/apis/{api}/{version}/rest", self._discovery),
            *((verb, "/", self._health) for verb in ("GET", "HEAD")),
            *((verb, "/healthz", self._health) for verb in ("GET", "HEAD")),
        )
        self._router = Router((verb, Template.parse(path), endpoint) for verb, path, endpoint in endpoints)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or a WebSocket."""
        SOURCE.set(source := (scope.get("client") or ("",))[0])
        if not source and scope["path"] == "/trainshed/v1/whoami":
            # Use the source in this header only if the bucket process has sent it. Programs can send the
            # header too, but their requests have a host name of Google instead of `localhost`.
            headers = dict(reversed(scope["headers"]))
            if headers.get(b"host") == b"localhost":
                SOURCE.set(headers.get(SOURCE_HEADER.encode(), b"").decode("latin-1"))
        if scope["type"] == "http":
            await serve_logged(self._http, scope, receive, send, self._services.meters)
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

        async def send_checked(message: HttpMessage) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == 401 or scope.get(GUESS):
                    await self._authentication_limiter.delay_failure(source)
                if message["status"] == 401:
                    message = keep_credentials(scope, message)
            await send(message)

        if fault := self._hosts.fault(scope):
            await refuse(scope, send_checked, fault)
        elif self._is_of_page(scope):
            await self._ports(scope, receive, send)
        else:
            await self._application_for(scope)(scope, receive, send_checked)

    def _is_of_page(self, scope: Scope) -> bool:
        """Whether the host of a request or WebSocket belongs to a job's page."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return self._services.links.page_of_host(host.decode("latin-1")) is not None

    def _application_for(self, scope: Scope) -> Application:
        first = _first(scope["path"])
        # Serve pages to browsers. For other clients, `/` returns the service's health.
        is_browser = any(n == b"accept" and b"text/html" in v for n, v in scope["headers"])
        if is_browser and first not in self._mounts and not self._is_served(scope):
            first = ""  # The console shows a page with links for an unknown path.
        if (is_browser and not first) or first == "mcp":
            return self._mounts.get(first, _serve_without_console)
        return self._mounts.get(first, self._own) if first else self._own

    async def _own(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(Request(scope, receive), self._answer, error_response, receive, send)

    def _is_served(self, scope: Scope) -> bool:
        verb, path = scope["method"], scope["raw_path"].decode("latin-1")
        is_ours = _first(path) in self._surfaces or self._router.match(verb, path) is not None
        is_public = routes.match(verb, _plain(path)) is not None or _find_known_method(verb, path) is not None
        return is_ours or is_public

    async def _answer(self, request: Request) -> Response:
        """Handle a request by its path. Raises request errors. `request.api` determines the form of an
        error."""
        if (surface := self._surfaces.get(_first(request.path))) is not None:
            return await surface(request)
        is_form = request.override()
        verb, path = request.method, request.raw_path
        if (public := _match(verb, path)) is not None:
            return await self._public(request, *public, is_form=is_form)
        if (own := self._router.match(verb, path)) is not None:
            endpoint, variables = own
            return await endpoint(request, variables)
        if (known := _find_known_method(verb, path)) is None:
            # Commands that sign in request `/login`, which only the console serves. Explain that the console
            # is not installed.
            if _first(path) == "login" and "login" not in self._mounts:
                raise NotServed(_NO_CONSOLE)
            return public_error_response(unknown_method(request))
        await self._authenticate(request.headers.get("authorization"))
        raise not_served(known, self._registry.methods)

    async def _public(
        self, request: Request, route: Route, variables: dict[str, str], *, is_form: bool
    ) -> Response:
        """Handle a request for a public API."""
        request.api = route.api
        request.scope[METHOD] = route.rpc.full_name
        principal = await self._authenticate(request.headers.get("authorization"))
        body = await request.decoded_body(max_body_size(route.rpc.method))
        query = request.parameters
        if is_form:
            query = [*query, *parse_qsl(body.decode("latin-1"), keep_blank_values=True)]
        read = partial(routes.bind, route, variables, query, body)
        version = _version(request.raw_path)
        call = Call(principal, self._services, route.rpc.full_name)
        if route.rpc.streams:
            responses = await self._registry.open_stream(call, len(body), read)
            parts = _json_array(responses)
            # Wait for the first response. An error before it is returned with its own HTTP status.
            first = await anext(parts)
            return StreamedResponse(_prepend(first, parts), self._services.closing, JSON)
        answer = await self._registry.answer(call, version, len(body), read)
        render = partial(_render, answer, routes.has_numeric_enums(query))
        # Rendering a tuning job with a thousand trials takes a second. Therefore a large response is rendered
        # in a thread.
        large = answer.ByteSize() > _MAX_RENDERED_ON_LOOP
        return json_response(await asyncio.to_thread(render) if large else render())

    async def _json_method(
        self, method: tuple[str, JsonHandler], request: Request, names: Mapping[str, str]
    ) -> Response:
        request.api = "resourcemanager_v3"
        request.scope[METHOD], handler = method
        principal = await self._authenticate(request.headers.get("authorization"))
        if (number := names.get("project", "")).isdecimal():
            names = {**names, "project": id_of(number, principal, self._services)}
        body, root = await read_json_object(request, SMALL_BODY), _root_url(request)
        call = JsonCall(principal, self._services, method[0], names, body, root)
        project = names.get("project", "").removeprefix("-")
        caller = self._services, principal, method[0]
        answer = await audit_call(partial(handler, call), *caller, project=project, resource=request.path)
        return json_response(wire_json.encode_text(answer))

    async def _token(self, request: Request, variables: Mapping[str, str]) -> Response:
        form = await request.decoded_body(SMALL_BODY)
        status, answer = await service_accounts.exchange_token(self._services, self._authenticate, form)
        if status == 400:  # OAuth specifies 400 for unknown credentials.
            await self._authentication_limiter.delay_failure(SOURCE.get())
        return sized_response(
            wire_json.encode_text(answer), JSON, status, more=[(b"cache-control", b"no-store")]
        )

    async def _discovery(self, request: Request, variables: Mapping[str, str]) -> Response:
        """Return a discovery document. The path is `/discovery/v1/apis/API/VERSION/rest`, or
        `/$discovery/rest?version=v1`. With the latter, v1 selects `ml` and v2 selects `logging`, unless the
        parameter `api` specifies another API."""
        version = variables.get("version") or request.query.get("version") or "v1"
        # Each public API has its own host, so its clients omit the API. Here, all APIs share one host.
        default_name = "logging" if version == "v2" else "ml"
        name = variables.get("api") or request.query.get("api") or default_name
        api = _DISCOVERY.get((name, version))
        if api is None:
            return public_error_response(unknown_method(request))
        root = _root_url(request)
        # Clients request the documents of all APIs from `www.googleapis.com`, which serves none of the APIs.
        # The document must contain an address of this service.
        root = root.replace("//www.", f"//{name}.") if root.endswith(_SHARED_DISCOVERY_HOST) else root
        return json_response(discovery_document(api, root))

    async def _health(self, request: Request, variables: Mapping[str, str]) -> Response:
        """Handle `/healthz`, and `/` unless a mount serves it. The response contains the service's status.
        For authenticated callers, it also contains the version."""
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
        return json_response(b"" if request.method == "HEAD" else body)


async def _serve_without_console(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle requests for pages and for agent tools on a service without the console."""
    await serve(Request(scope, receive), _console_missing, error_response, receive, send)


async def _console_missing(request: Request) -> Response:
    text = f"{_NO_CONSOLE}\n" if request.method != "HEAD" else ""
    return sized_response(text.encode(), b"text/plain; charset=utf-8", 404)


def _match(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of the public APIs at this path, and the path's variables, or None."""
    if not path.startswith("/ui/"):
        return routes.match(verb, _plain(path))
    matched = routes.match(verb, "/v1/" + path[4:])
    return matched if matched is not None and matched[0].rpc.service in routes.MIXIN_SERVICES else None


def _find_known_method(verb: str, path: str) -> routes.KnownMethod | None:
    """Return the method of the public APIs at this path, whether it is served or not, or None."""
    if path.startswith("/compute/"):
        # Report an API that is not served. From "not found", gcloud would conclude that the region does not
        # exist.
        return routes.KnownMethod("Compute Engine", path)
    return routes.find_by_request(verb, _plain(path)) or routes.find_by_request(verb, path)


async def _json_array(responses: AsyncGenerator[Message]) -> AsyncGenerator[bytes]:
    """Yield the text of a JSON array with the responses of a stream, as the public services do."""
    before = b"["
    async for response in responses:
        yield before + await asyncio.to_thread(_render, response, enums_as_ints=False)
        before = b","
    yield b"[]" if before == b"[" else b"]"


async def _prepend(first: bytes, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


def _render(response: Message, enums_as_ints: bool) -> bytes:
    public = wire_json.to_public(response, enums_as_ints=enums_as_ints)
    if response.DESCRIPTOR.full_name == _LOG_PAGE:
        # Give all timestamps the same width, because gcloud compares them as text (spec/clients#log-pages).
        for entry in public.get("entries", ()):
            for name in ("timestamp", "receiveTimestamp"):
                seconds, _, fraction = entry[name].removesuffix("Z").partition(".")
                entry[name] = f"{seconds}.{fraction:0<9}Z"
    return wire_json.render(public)


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _root_url(request: Request) -> str:
    """Return the scheme and authority of the address that the caller used for the service."""
    # A connection by the Unix socket comes from the endpoint of a replica. The program used TLS, which ends
    # at the endpoint.
    _, port = request.scope.get("server") or ("", 0)
    scheme = "https" if port is None else request.scope.get("scheme", "http")
    return f"{scheme}://{request.headers.get('host') or 'localhost'}"


def _plain(path: str) -> str:
    """Return a path with `v1` in place of `v1beta1`."""
    return "/v1/" + path[9:] if path.startswith("/v1beta1/") else path


def _version(path: str) -> Version:
    if path.startswith("/ui/"):
        return Version.UNSPECIFIED
    return Version.V1BETA1 if path.startswith("/v1beta1/") else Version.V1

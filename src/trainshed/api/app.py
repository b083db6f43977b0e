"""The ASGI application: which surface a request belongs to. Decides nothing else.

`/trainshed` is ours; `/shell` has tickets of its own; discovery documents and health need no token; other
applications (buckets, console) are mounted by their first path segment and decide about credentials
themselves. All else is for the public APIs.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from trainshed.access.principals import Principal
from trainshed.api import projects
from trainshed.api.calls.http import error_answer, json_answer, no_such_method, refusal_answer
from trainshed.api.calls.services import Services
from trainshed.api.registry import CHECKS, handlers
from trainshed.api.rest import RestSurface
from trainshed.api.shell.surface import ShellSurface
from trainshed.api.trainshed_v1.transport import TrainshedSurface
from trainshed.httpd.front import Front
from trainshed.httpd.messages import Application, Receive, Request, Response, Scope, Send
from trainshed.httpd.routing import ANY, Router, Template
from trainshed.wire.json import encode_text
from trainshed.wire.pool import discovery_document

Authenticate = Callable[[str | None], Principal]
"""Takes the value of the `Authorization` header."""
Endpoint = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Takes a request and the variables of its path."""

_OF_ALL_APIS: Final = "//www.googleapis.com"
_DISCOVERY: Final = {("ml", "v1"): "ml_v1", ("logging", "v2"): "logging_v2"}


class ApiApplication:
    """Everything that is served on the API's port, and the surface of `httpd.front` that all of it is."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        mounts: Mapping[str, Application] | None = None,
    ) -> None:
        """`mounts`: applications by first path segment (`storage`)."""
        self._services = services
        self._authenticate = authenticate
        self._mounts = mounts or {}
        self._front = Front(self)
        self._shell = ShellSurface(services)
        self._rest = RestSurface(handlers(), CHECKS, services, authenticate)
        trainshed = TrainshedSurface(services, authenticate)
        self._surfaces: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "trainshed": trainshed.answer,
            "shell": self._shell.answer,
        }
        routes: tuple[tuple[str, str, Endpoint], ...] = (
            ("GET", "/v1/projects/{project}", self._project),
            (ANY, "/$discovery/rest", self._discovery),
            (ANY, "/discovery/v1/apis/{api}/{version}/rest", self._discovery),
            *(
                (method, path, self._health)
                for method in ("GET", "HEAD")
                for path in ("/", "/healthz")
            ),
        )
        self._router = Router(
            ((method, Template.parse(path), endpoint) for method, path, endpoint in routes),
            colon_is_verb=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one WebSocket."""
        if scope["type"] == "websocket":
            await self._shell.connect(scope, receive, send)
        elif scope["type"] == "http":
            mounted = self._mounts.get(_first(scope["path"]), self._front)
            await mounted(scope, receive, send)

    def begin(self, request: Request) -> Request:
        """A request is what its handlers see."""
        return request

    async def answer(self, call: Request) -> Response:
        """Raises whatever is wrong with it, in `call.api`'s words."""
        surface = self._surfaces.get(_first(call.path))
        if surface is not None:
            return await surface(call)
        matched = self._router.match(call.method, call.raw_path)
        if matched is None:
            return await self._rest.answer(call)
        endpoint, variables = matched
        return await endpoint(call, variables)

    def refuse(self, call: Request, error: Exception) -> Response:
        """The public error."""
        return error_answer(call, error)

    def ended(self, call: Request, status: int) -> None:
        """Nothing is kept of it here."""

    async def _project(self, request: Request, variables: Mapping[str, str]) -> Response:
        request.api = "resourcemanager_v3"
        principal = self._authenticate(request.headers.get("authorization"))
        view = projects.get(principal, self._services, variables["project"])
        return json_answer(encode_text(view))

    async def _discovery(self, request: Request, variables: Mapping[str, str]) -> Response:
        """`/$discovery/rest?version=v1` (ml v1; v2: logging; `api` names another) and
        `/discovery/v1/apis/API/VERSION/rest`."""
        version = variables.get("version") or request.query.get("version") or "v1"
        # Each public API has a host of its own and needs no name; here they share one.
        unnamed = "logging" if version == "v2" else "ml"
        name = variables.get("api") or request.query.get("api") or unnamed
        api = _DISCOVERY.get((name, version))
        if api is None:
            return refusal_answer(no_such_method(request, " in the APIs that are served here"))
        root = _root_url(request)
        # Asked at the host that knows all APIs, which serves none of them.
        root = root.replace("//www.", f"//{name}.") if root.endswith(_OF_ALL_APIS) else root
        return json_answer(discovery_document(api, root))

    async def _health(self, request: Request, variables: Mapping[str, str]) -> Response:
        """`/healthz`, and `/` where nothing else is mounted: up, and which version."""
        body = encode_text(
            {"service": "trainshed", "status": "ok", "version": self._services.settings.version}
        )
        return json_answer(b"" if request.method == "HEAD" else body)


def _first(path: str) -> str:
    return path[1:].partition("/")[0]


def _root_url(request: Request) -> str:
    """Scheme and authority by which the caller reached the service."""
    # By the Unix socket come replicas' endpoints, which end their programs' TLS.
    _, port = request.scope.get("server") or ("", 0)
    scheme = "https" if port is None else request.scope.get("scheme", "http")
    return f"{scheme}://{request.headers.get('host') or 'localhost'}"

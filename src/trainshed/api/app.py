"""The ASGI application: which surface a request belongs to. Decides nothing else.

`/trainshed` is ours; `/shell` has tickets of its own; discovery documents and health need no token; other
surfaces (buckets, console) are mounted by their first path segment and decide about credentials themselves.
All else is for the public APIs.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import parse_qs, unquote

from trainshed.access.principals import Principal
from trainshed.api import projects
from trainshed.api.calls.errors import Refusal
from trainshed.api.calls.http import (
    Application,
    Receive,
    Scope,
    Send,
    header,
    raw_path,
    root_url,
    send_error,
    send_json,
    send_refusal,
)
from trainshed.api.calls.services import Services
from trainshed.api.registry import CHECKS, handlers
from trainshed.api.rest import RestTransport
from trainshed.api.shell.door import ShellDoor
from trainshed.api.trainshed_v1.transport import TrainshedTransport
from trainshed.wire.json import encode_text
from trainshed.wire.pool import discovery_document
from trainshed.wire.status import StatusCode

Authenticate = Callable[[str | None], Principal]
"""Takes the value of the `Authorization` header."""

_PROJECT: Final = re.compile(r"/v1/projects/([^/:]+)")
_OF_ALL_APIS: Final = "//www.googleapis.com"
_DISCOVERY: Final = {("ml", "v1"): "ml_v1", ("logging", "v2"): "logging_v2"}


class ApiApplication:
    """Everything that is served on the API's port. `mounts`: applications by first path segment
    (`storage`)."""

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        mounts: Mapping[str, Application] | None = None,
    ) -> None:
        self._services = services
        self._authenticate = authenticate
        self._shell = ShellDoor(services)
        rest = RestTransport(handlers(), CHECKS, services, authenticate)
        self._surfaces: dict[str, Application] = {
            **(mounts or {}),
            "trainshed": TrainshedTransport(services, authenticate),
            "shell": self._shell,
            "$discovery": self._discovery,
            "discovery": self._discovery,
            "healthz": self._health,
        }
        self._surfaces.setdefault("", self._health)
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        path: str = scope["path"]
        if scope["type"] != "http":
            await self._shell(scope, receive, send)
            return
        if path.startswith("/v1/projects/") and scope["method"] == "GET":
            match = _PROJECT.fullmatch(raw_path(scope))
            if match is not None:
                await self._project(scope, send, unquote(match[1]))
                return
        surface = self._surfaces.get(path[1:].partition("/")[0], self._rest)
        await surface(scope, receive, send)

    async def _project(self, scope: Scope, send: Send, project_id: str) -> None:
        try:
            principal = self._authenticate(header(scope, b"authorization"))
            view = projects.get(principal, self._services, project_id)
        except Exception as error:
            await send_error(send, error, "resourcemanager_v3", projects.METHOD)
            return
        await send_json(send, encode_text(view))

    async def _discovery(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/$discovery/rest?version=v1` (ml v1; v2: logging; `api` names another) and
        `/discovery/v1/apis/API/VERSION/rest`."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        version = query.get("version", ["v1"])[-1]
        match scope["path"].strip("/").split("/"):
            case ["$discovery", "rest"]:
                # Each public API has a host of its own and needs no name; here they share one.
                name = query.get("api", ["logging" if version == "v2" else "ml"])[-1]
            case ["discovery", "v1", "apis", name, version, "rest"]:
                pass
            case _:
                name = ""
        api = _DISCOVERY.get((name, version))
        if api is None:
            await _not_found(scope, send)
        else:
            root = root_url(scope)
            # Asked at the host that knows all APIs, which serves none of them.
            root = root.replace("//www.", f"//{name}.") if root.endswith(_OF_ALL_APIS) else root
            await send_json(send, discovery_document(api, root))

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/healthz`, and `/` where nothing else is mounted: up, and which version."""
        if scope["path"] not in ("/", "/healthz") or scope["method"] not in ("GET", "HEAD"):
            await _not_found(scope, send)
            return
        body = encode_text(
            {"service": "trainshed", "status": "ok", "version": self._services.settings.version}
        )
        await send_json(send, b"" if scope["method"] == "HEAD" else body)


async def _not_found(scope: Scope, send: Send) -> None:
    text = f"There is no method {scope['method']} {scope['path']} in the APIs that are served here."
    await send_refusal(send, Refusal(StatusCode.NOT_FOUND, text))


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing to start or stop here: the composition root does that."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

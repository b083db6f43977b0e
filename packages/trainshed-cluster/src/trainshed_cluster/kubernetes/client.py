"""A client of one cluster's API: lists, watches, and the few writes that the engine makes.

lightkube reads kubeconfigs and credentials (tokens that rotate, commands that print them, certificates) and
sets up TLS; httpx2 speaks HTTP. Only the needed fields of objects are decoded (docs/adr/0099).
"""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, TypeVar

import httpx2
import msgspec
from httpx2.websockets import (
    AsyncWebSocketSession,
    HTTPXWSException,
    WebSocketDisconnect,
    WebSocketNetworkError,
    WebSocketUpgradeError,
)
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from trainshed_cluster.kubernetes.objects import Page, Status, WatchEvent
from trainshed_cluster.kubernetes.settings import KubernetesSettings
from trainshed_cluster.remote.cluster import ClusterRefused, ClusterUnavailable

T = TypeVar("T", bound=msgspec.Struct)

_PAGE = 500
"""Objects of one page of a list."""
_PATIENCE = httpx2.Timeout(20.0, connect=5.0)
"""Seconds for any one call; `attach` and watches have their own."""
WATCH_SECONDS: Final = 240
"""After which the server ends a watch, to be resumed."""
_SILENT_SECONDS = WATCH_SECONDS + 30.0
"""After which a watch that says nothing has no other end any more."""
_STDIN, _STDOUT, _ERROR = b"\0", b"\1", b"\3"
"""How messages to and from a container begin."""
_TAKING_SECONDS = 30.0
"""In which a process has to take its input."""
_PIECE = 1 << 17
"""Bytes of one message to a container."""


class ApiFailure(Exception):
    """The API refused a request. `status`: of HTTP. `reason`: Kubernetes' own word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        words = message or reason or "no reason is given"
        super().__init__(f"{words} ({f'{status} {reason}'.strip()})")
        self.status = status
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Whether the same call would fail again, because the request is wrong or forbidden."""
        return self.status in (400, 401, 403, 404, 405, 413, 415, 422)


class Expired(Exception):
    """The server no longer remembers the version that a watch was to continue from."""


class ApiClient:
    """A client of one cluster. `transport`: used instead of the network. Raises ClusterRefused if there is no
    usable kubeconfig."""

    def __init__(
        self, settings: KubernetesSettings, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        path = settings.kubeconfig_path
        try:
            kubeconfig = KubeConfig.from_file(path) if path else KubeConfig.from_service_account()
            config = kubeconfig.get()
            assert config is not None, "a context was named, or there is a current one"
            params = ConnectionParams(timeout=_PATIENCE, trust_env=False)
            # The class declares the transports of synchronous and asynchronous clients in one field.
            params.transport = transport  # pyright: ignore[reportAttributeAccessIssue]
            self._http = AsyncClient(config, params)
        except (ConfigError, KeyError, OSError, ValueError) as failure:
            raise ClusterRefused(
                f"how the cluster is reached cannot be read from {path or 'this Pod'} ({failure!r}); name a "
                "kubeconfig and a context of it in [engines.kubernetes]"
            ) from failure
        #: URL of the API server, for messages.
        self.server: str = config.cluster.server
        #: Namespace of the context; "" = it names none.
        self.namespace: str = config.namespace or ""

    async def close(self) -> None:
        await self._http.aclose()

    async def list(
        self, path: str, kind: type[T], params: Mapping[str, str] | None = None
    ) -> tuple[list[T], str]:
        """Return all objects of a collection, and the version from which a watch of it continues. Raises
        ApiFailure, ClusterUnavailable."""
        objects: list[T] = []
        query = {"limit": str(_PAGE), **(params or {})}
        while True:
            answer = await self._call("GET", path, params=query)
            page = _decoded(answer, Page[kind])
            objects += page.items
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            query["continue"] = page.metadata.continue_

    async def get(self, path: str, kind: type[T]) -> T:
        """Raises ApiFailure, ClusterUnavailable."""
        return _decoded(await self._call("GET", path), kind)

    async def create(
        self,
        path: str,
        manifest: Mapping[str, Any],
        kind: type[T],
        params: Mapping[str, str] | None = None,
    ) -> T:
        """Raises ApiFailure, ClusterUnavailable."""
        return _decoded(await self._call("POST", path, params=params, body=manifest), kind)

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None) -> None:
        """Delete an object if it exists. `uid`: of the very object; "" = any of that name. `grace`: seconds,
        None = the object's own. Raises ApiFailure, ClusterUnavailable."""
        body: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", path, body=body)
        except ApiFailure as failure:
            # 409: another object has that name by now.
            if failure.status not in (404, 409):
                raise

    async def watch(self, path: str, version: str) -> AsyncGenerator[WatchEvent]:
        """Yield the changes since `version` until the server ends the watch, which it does every few minutes.
        Raises Expired, ApiFailure, ClusterUnavailable."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx2.Timeout(5.0, read=_SILENT_SECONDS)
        try:
            async with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code == 410:
                    raise Expired
                if answer.is_error:
                    await answer.aread()
                    raise _failure(answer)
                async with contextlib.aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        event = msgspec.json.decode(line, type=WatchEvent)
                        if event.type == "ERROR":
                            status = msgspec.json.decode(event.object, type=Status)
                            if status.code == 410:
                                raise Expired
                            raise ApiFailure(status.code, status.reason, status.message)
                        yield event
        except (httpx2.HTTPError, OSError, msgspec.MsgspecError) as failure:
            raise ClusterUnavailable(_unreached(self.server, failure)) from failure

    async def attach(self, path: str, container: str, stdin: bytes, word: bytes) -> bool:
        """Send a container its standard input, and wait until it confirms by the word that it has read all.
        Returns False if it ended before. Raises ApiFailure, ClusterUnavailable."""
        params = {"container": container, "stdin": "true", "stdout": "true", "stderr": "false"}
        url = httpx2.URL(self._http.base_url).join(f"{path}/attach")
        try:
            async with self._http.websocket(
                url, params=params, subprotocols=["v4.channel.k8s.io"]
            ) as line:
                for start in range(0, len(stdin), _PIECE):
                    await line.send_bytes(_STDIN + stdin[start : start + _PIECE])
                return await _says(line, word)
        except Exception as failure:
            cause = _alone(failure)
            if isinstance(cause, WebSocketUpgradeError):
                raise _failure(cause.response) from None
            if isinstance(cause, (WebSocketDisconnect, WebSocketNetworkError)):
                return False
            if isinstance(cause, (httpx2.HTTPError, HTTPXWSException, OSError, TimeoutError)):
                raise ClusterUnavailable(_unreached(self.server, cause)) from failure
            raise cause from None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> bytes:
        headers = {"Content-Type": kind} if body is not None else None
        content = msgspec.json.encode(body) if body is not None else None
        try:
            answer = await self._http.request(
                method, path, params=params, content=content, headers=headers
            )
        except (httpx2.HTTPError, OSError, ConfigError) as failure:
            raise ClusterUnavailable(_unreached(self.server, failure)) from failure
        if answer.is_error:
            raise _failure(answer)
        return answer.content


def _alone(failure: Exception) -> Exception:
    """Return the single exception inside the exception groups of a task group."""
    inner: tuple[Exception, ...]
    while len(inner := getattr(failure, "exceptions", ())) == 1:
        failure = inner[0]
    return failure


async def _says(line: AsyncWebSocketSession, word: bytes) -> bool:
    """Wait until a container writes a word to its output. Returns False if the output ends before."""
    output = b""
    while word not in output:
        message = await line.receive_bytes(timeout=_TAKING_SECONDS)
        if message[:1] == _ERROR:
            return False
        output += message[1:] if message[:1] == _STDOUT else b""
    return True


async def _lines(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yield each line as soon as it is complete."""
    rest = b""
    async for part in answer.aiter_raw():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            if line:
                yield line


def _decoded(answer: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as failure:
        raise ClusterUnavailable(f"the API's answer is not understood: {failure}") from failure


def _failure(answer: httpx2.Response) -> ApiFailure | ClusterUnavailable:
    try:
        # That of a refused WebSocket was not read, and cannot be any more.
        content = answer.content
    except httpx2.ResponseNotRead:
        content = b""
    try:
        status = msgspec.json.decode(content, type=Status)
    except msgspec.MsgspecError:
        status = Status(content.decode(errors="replace").strip()[:200])
    if not status.message:
        request = answer.request
        status = Status(
            f"the API gives no reason for its answer to {request.method} {request.url.path}",
            status.reason or answer.reason_phrase,
        )
    failure = ApiFailure(answer.status_code, status.reason, status.message)
    return ClusterUnavailable(str(failure)) if answer.status_code >= 500 else failure


def _unreached(server: str, failure: BaseException) -> str:
    what = str(failure) or type(failure).__name__
    return f"the API of the cluster ({server}) is not reached: {what}"

"""A client of one cluster's API: lists, watches, and the few writes of the engine.

lightkube reads kubeconfigs and credentials (rotating tokens, commands, certificates) and configures TLS.
httpx2 implements HTTP. Only the required fields of objects are decoded (docs/adr/0099).
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

_PAGE_SIZE = 500
"""Objects per page of a list."""
_TIMEOUT = httpx2.Timeout(20.0, connect=5.0)
"""Timeout of a request. `attach` and watches have separate timeouts."""
WATCH_SECONDS: Final = 240
"""Seconds after which the server ends a watch. The client then starts a new watch from the last version."""
_WATCH_TIMEOUT = WATCH_SECONDS + 30.0
"""Seconds without data after which a watch has failed."""
_STDIN, _STDOUT, _ERROR = b"\0", b"\1", b"\3"
"""First byte of a message to or from a container, which identifies the stream: standard input, standard
output, or errors of the API."""
_INPUT_TIMEOUT = 30.0
"""Seconds that a process in a container has to read its input."""
_CHUNK_SIZE = 1 << 17
"""Maximum bytes of one message to a container."""
_TRANSPORT_ERRORS = (httpx2.HTTPError, OSError, ConfigError)
"""Exceptions that end a request without a response from the API. ConfigError occurs if credentials are
missing at the moment."""


class ApiFailure(Exception):
    """The API rejected a request. `status`: HTTP status. `reason`: Kubernetes' name of the error, such as
    "AlreadyExists"."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        words = message or reason or "no reason"
        super().__init__(f"{words} ({f'{status} {reason}'.strip()})")
        self.status = status
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Return whether the same request would fail again, because the request is invalid or forbidden."""
        return self.status in (400, 403, 404, 405, 413, 415, 422)

    @property
    def is_full(self) -> bool:
        """Return whether the request failed because a quota is exhausted now. If the object lacks a field
        that the quota requires, the error is permanent, and the result is False."""
        text = str(self)
        return self.status in (403, 429) and "quota" in text and "must specify" not in text


def start_error(failure: ApiFailure, what: str) -> ClusterRefused | ClusterUnavailable:
    """Return the exception to raise if `what` cannot be read at the service's start: ClusterRefused for a
    permanent failure, ClusterUnavailable for a temporary one."""
    kind = ClusterRefused if failure.is_final else ClusterUnavailable
    return kind(f"cannot read {what} of the cluster: {failure}")


class Expired(Exception):
    """The server no longer stores the version of the collection from which a watch would continue."""


class ApiClient:
    """A client of one cluster. `transport`: used instead of the network, for tests. Raises ClusterRefused if
    no usable kubeconfig exists."""

    def __init__(
        self, settings: KubernetesSettings, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        path = settings.kubeconfig_path
        try:
            kubeconfig = KubeConfig.from_file(path) if path else KubeConfig.from_service_account()
            config = kubeconfig.get()
            assert config is not None, "the kubeconfig has a context"
            params = ConnectionParams(timeout=_TIMEOUT, trust_env=False)
            # Ignore the error of pyright: the class declares one field for two types of transport,
            # synchronous and asynchronous.
            params.transport = transport  # pyright: ignore[reportAttributeAccessIssue]
            self._http = AsyncClient(config, params)
        except (ConfigError, KeyError, OSError, ValueError) as failure:
            raise ClusterRefused(
                f"cannot read the cluster's address from {path or 'this Pod'} ({failure!r}); set a "
                "kubeconfig with a current context in [engines.kubernetes]"
            ) from failure
        #: URL of the API server, for messages.
        self.server: str = config.cluster.server
        #: Namespace of the kubeconfig's current context, or of the service's own Pod; None = no namespace is
        #: set.
        self.namespace: str | None = config.namespace or None

    async def close(self) -> None:
        await self._http.aclose()

    async def list(
        self, path: str, kind: type[T], params: Mapping[str, str] | None = None
    ) -> tuple[list[T], str]:
        """Return all objects of a collection, and the version from which a watch continues. Raises ApiFailure
        if the API rejects the request, and ClusterUnavailable if the API does not respond."""
        objects: list[T] = []
        query = {"limit": str(_PAGE_SIZE), **(params or {})}
        while True:
            page = _decode(await self._call("GET", path, params=query), Page[kind])
            objects += page.items
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            query["continue"] = page.metadata.continue_

    async def get(self, path: str, kind: type[T]) -> T:
        """Return an object. Raises ApiFailure if the API rejects the request, and ClusterUnavailable if the
        API does not respond."""
        return _decode(await self._call("GET", path), kind)

    async def create(
        self, path: str, manifest: Mapping[str, Any], kind: type[T], params: Mapping[str, str] | None = None
    ) -> T:
        """Create an object. Raises ApiFailure if the API rejects the request, and ClusterUnavailable if the
        API does not respond."""
        return _decode(await self._call("POST", path, params=params, body=manifest), kind)

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> None:
        """Delete an object if it exists. Raises ApiFailure if the API rejects the request, and
        ClusterUnavailable if the API does not respond.

        Args:
            uid: Uid of the object; None = any object of that name.
            grace: Grace period in seconds; None = the object's default.
        """
        body: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", path, body=body)
        except ApiFailure as failure:
            # Ignore the status 404, and also 409: another object has this name now, so the object with `uid`
            # no longer exists.
            if failure.status not in (404, 409):
                raise

    async def watch(self, path: str, version: str) -> AsyncGenerator[WatchEvent]:
        """Yield the changes since `version` until the server ends the watch, every few minutes. Raises
        Expired if `version` is too old, ApiFailure if the API rejects the request, and ClusterUnavailable if
        the API does not respond."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx2.Timeout(5.0, read=_WATCH_TIMEOUT)
        try:
            async with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if answer.status_code == 410:
                    raise Expired
                if answer.is_error:
                    await answer.aread()
                    raise _error_of(answer)
                async with contextlib.aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        event = msgspec.json.decode(line, type=WatchEvent)
                        if event.type == "ERROR":
                            status = msgspec.json.decode(event.object, type=Status)
                            if status.code == 410:
                                raise Expired
                            raise ApiFailure(status.code, status.reason, status.message)
                        yield event
        except (*_TRANSPORT_ERRORS, ValueError) as failure:
            raise ClusterUnavailable(_connection_error(self.server, failure)) from failure

    async def attach(self, path: str, container: str, stdin: bytes, word: bytes) -> bool:
        """Send a container its standard input, and wait until the container prints `word`. Returns False if
        the container ends first. Raises ApiFailure if the API rejects the request, and ClusterUnavailable if
        the API does not respond."""
        params = {"container": container, "stdin": "true", "stdout": "true", "stderr": "false"}
        try:
            async with self._http.websocket(
                f"{path}/attach", params=params, subprotocols=["v4.channel.k8s.io"]
            ) as line:
                for start in range(0, len(stdin), _CHUNK_SIZE):
                    await line.send_bytes(_STDIN + stdin[start : start + _CHUNK_SIZE])
                return await _wait_for_word(line, word)
        except Exception as failure:
            cause = _single_cause(failure)
            if isinstance(cause, WebSocketUpgradeError):
                raise _error_of(cause.response) from None
            if isinstance(cause, (WebSocketDisconnect, WebSocketNetworkError)):
                return False
            if isinstance(cause, (*_TRANSPORT_ERRORS, HTTPXWSException)):
                raise ClusterUnavailable(_connection_error(self.server, cause)) from failure
            raise cause from None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        headers = {"Content-Type": "application/json"} if body is not None else None
        content = msgspec.json.encode(body) if body is not None else None
        try:
            answer = await self._http.request(method, path, params=params, content=content, headers=headers)
        except _TRANSPORT_ERRORS as failure:
            raise ClusterUnavailable(_connection_error(self.server, failure)) from failure
        if answer.is_error:
            raise _error_of(answer)
        return answer.content


def _single_cause(failure: Exception) -> Exception:
    """Return the only exception inside the nested exception groups that a task group raised."""
    inner: tuple[Exception, ...]
    while len(inner := getattr(failure, "exceptions", ())) == 1:
        failure = inner[0]
    return failure


async def _wait_for_word(line: AsyncWebSocketSession, word: bytes) -> bool:
    """Wait until a container writes a word to its output. Returns False if the output ends first."""
    output = b""
    while word not in output:
        message = await line.receive_bytes(timeout=_INPUT_TIMEOUT)
        if message[:1] == _ERROR:
            return False
        output += message[1:] if message[:1] == _STDOUT else b""
    return True


async def _lines(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yield each line of a streamed response as soon as the line is complete."""
    rest = b""
    async for part in answer.aiter_raw():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            if line:
                yield line


def _decode(answer: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (ValueError, RecursionError) as failure:
        raise ClusterUnavailable(f"cannot parse the response of the Kubernetes API: {failure}") from failure


def _error_of(answer: httpx2.Response) -> ApiFailure | ClusterUnavailable:
    try:
        # The content of a rejected WebSocket request was not read, and is no longer available. Continue
        # without the content.
        content = answer.content
    except httpx2.ResponseNotRead:
        content = b""
    try:
        status = msgspec.json.decode(content, type=Status)
    except (ValueError, RecursionError):
        status = Status(content.decode(errors="replace").strip()[:200])
    if not status.message:
        request = answer.request
        status = Status(
            f"the API returned no reason for its answer to {request.method} {request.url.path}",
            status.reason or answer.reason_phrase,
        )
    failure = ApiFailure(answer.status_code, status.reason, status.message)
    return ClusterUnavailable(str(failure)) if answer.status_code >= 500 else failure


def _connection_error(server: str, failure: BaseException) -> str:
    what = str(failure) or type(failure).__name__
    return f"cannot connect to the API of the cluster ({server}): {what}"

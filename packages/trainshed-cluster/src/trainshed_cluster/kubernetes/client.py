"""A client of one cluster's API: lists, watches, local copies that follow them, and the few writes that the
engine makes.

lightkube reads kubeconfigs and credentials (tokens that rotate, commands that print them, certificates) and
sets up TLS; httpx2 speaks HTTP. Only the needed fields of objects are decoded (docs/adr/0099).
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

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

from trainshed_cluster.kubernetes.objects import (
    ClusterNode,
    Page,
    Pod,
    Status,
    WatchEvent,
    Workload,
)
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
_UNANSWERED = (httpx2.HTTPError, OSError, ConfigError)
"""What is raised of a call that gets no answer: ConfigError if there are no credentials just now."""


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
        return self.status in (400, 403, 404, 405, 413, 415, 422)

    @property
    def is_full(self) -> bool:
        """Whether a quota has no room now; one that wants more to be said never will have."""
        text = str(self)
        return self.status in (403, 429) and "quota" in text and "must specify" not in text


def unstarted(failure: ApiFailure, what: str) -> ClusterRefused | ClusterUnavailable:
    """Return what a start fails with that did not see `what`. One that may succeed later is tried again."""
    kind = ClusterRefused if failure.is_final else ClusterUnavailable
    return kind(f"the cluster does not let us see {what}: {failure}")


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
        #: Namespace of the context; None = it names none.
        self.namespace: str | None = config.namespace or None

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
            page = _decoded(await self._call("GET", path, params=query), Page[kind])
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

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> None:
        """Delete an object if it exists. `uid`: of the very object; None = any of that name. `grace`:
        seconds, None = the object's own. Raises ApiFailure, ClusterUnavailable."""
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
        except (*_UNANSWERED, ValueError) as failure:
            raise ClusterUnavailable(_unreached(self.server, failure)) from failure

    async def attach(self, path: str, container: str, stdin: bytes, word: bytes) -> bool:
        """Send a container its standard input, and wait until it confirms by the word that it has read all.
        Returns False if it ended before. Raises ApiFailure, ClusterUnavailable."""
        params = {"container": container, "stdin": "true", "stdout": "true", "stderr": "false"}
        try:
            async with self._http.websocket(
                f"{path}/attach", params=params, subprotocols=["v4.channel.k8s.io"]
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
            if isinstance(cause, (*_UNANSWERED, HTTPXWSException)):
                raise ClusterUnavailable(_unreached(self.server, cause)) from failure
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
            answer = await self._http.request(
                method, path, params=params, content=content, headers=headers
            )
        except _UNANSWERED as failure:
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
    except (ValueError, RecursionError) as failure:
        raise ClusterUnavailable(f"the API's answer is not understood: {failure}") from failure


def _failure(answer: httpx2.Response) -> ApiFailure | ClusterUnavailable:
    try:
        # That of a refused WebSocket was not read, and cannot be any more.
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
            f"the API gives no reason for its answer to {request.method} {request.url.path}",
            status.reason or answer.reason_phrase,
        )
    failure = ApiFailure(answer.status_code, status.reason, status.message)
    return ClusterUnavailable(str(failure)) if answer.status_code >= 500 else failure


def _unreached(server: str, failure: BaseException) -> str:
    what = str(failure) or type(failure).__name__
    return f"the API of the cluster ({server}) is not reached: {what}"


log = logging.getLogger(__name__)
Item = TypeVar("Item", Pod, ClusterNode, Workload)
Item_contra = TypeVar("Item_contra", Pod, ClusterNode, Workload, contravariant=True)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
"""Seconds between two tries to watch."""


class Listener(Protocol[Item_contra]):
    """Callback for each change, with the object after it. `gone`: the object was deleted, and this is its
    last state."""

    def __call__(self, changed: Item_contra, /, *, gone: bool) -> None: ...


class Followed(Generic[Item]):
    """The local copy. `path`: of the collection. `tell`: called for each change, after `objects` has it."""

    def __init__(
        self, client: ApiClient, path: str, kind: type[Item], tell: Listener[Item]
    ) -> None:
        self.path = path
        #: The objects, by `key`.
        self.objects: dict[str, Item] = {}
        self._client = client
        self._kind = kind
        self._tell = tell
        self._version = ""
        self._is_cut = False

    async def list(self) -> None:
        """List all objects; known ones that are not listed are gone. Raises ApiFailure,
        ClusterUnavailable."""
        objects, self._version = await self._client.list(self.path, self._kind)
        listed = {item.key: item for item in objects}
        for key in self.objects.keys() - listed.keys():
            self._drop(key, None)
        for item in objects:
            self._put(item)

    async def follow(self) -> None:
        """Follow all changes from the last list on. Never returns."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if not self._version:
                    await self.list()
                watching = self._client.watch(self.path, self._version)
                async with contextlib.aclosing(watching) as events:
                    async for event in events:
                        pause = _FIRST_PAUSE
                        if self._is_cut:
                            log.info("kubernetes: %s: watched again", self.path)
                            self._is_cut = False
                        changed = msgspec.json.decode(event.object, type=self._kind)
                        self._version = changed.metadata.resource_version
                        if event.type == "DELETED":
                            self._drop(changed.key, changed)
                        elif event.type != "BOOKMARK":
                            self._put(changed)
                # The server ends a watch every few minutes; the next one continues.
            except Expired:
                log.info("kubernetes: %s: too much has changed meanwhile; listed again", self.path)
                self._version = ""
            except (ApiFailure, ClusterUnavailable) as failure:
                if not self._is_cut:
                    log.warning("kubernetes: %s: not watched: %s", self.path, failure)
                self._is_cut = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _put(self, changed: Item) -> None:
        before = self.objects.get(changed.key)
        if before is not None and before.metadata.uid != changed.metadata.uid:
            self._drop(changed.key, None)
        if before != changed:
            self.objects[changed.key] = changed
            self._tell(changed, gone=False)

    def _drop(self, key: str, last: Item | None) -> None:
        known = self.objects.pop(key, None)
        if (dropped := last or known) is not None:
            self._tell(dropped, gone=True)

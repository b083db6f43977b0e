"""Keeps a local copy of one kind of a cluster's objects: it lists them once and watches them from then on."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, Expired
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod, Workload
from trainshed_cluster.remote.cluster import ClusterUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T", Pod, ClusterNode, Workload)
T_contra = TypeVar("T_contra", Pod, ClusterNode, Workload, contravariant=True)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
"""Seconds between two tries to watch."""


class Listener(Protocol[T_contra]):
    """Callback for each change, with the object after it. `gone`: the object was deleted, and this is its
    last state."""

    def __call__(self, changed: T_contra, /, *, gone: bool) -> None: ...


class Followed(Generic[T]):
    """The local copy. `path`: of the collection. `told`: called for each change, after `objects` has it."""

    def __init__(self, client: ApiClient, path: str, kind: type[T], tell: Listener[T]) -> None:
        self.path = path
        #: The objects, by `key`.
        self.objects: dict[str, T] = {}
        #: When the last list was begun, in seconds of the monotonic clock.
        self.listed = 0.0
        self._client = client
        self._kind = kind
        self._tell = tell
        self._version = ""
        self._is_cut = False

    async def list(self) -> None:
        """List all objects; known ones that are not listed are gone. Raises ApiFailure,
        ClusterUnavailable."""
        begun = time.monotonic()
        objects, version = await self._client.list(self.path, self._kind)
        self._version, self.listed = version, begun
        self._replace({item.key: item for item in objects}, lambda item: True)

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
                        self._reached()
                        self._learn(event.type, event.object)
                # The server ends a watch every few minutes; the next one continues.
                continue
            except Expired:
                log.info("kubernetes: %s: too much has changed meanwhile; listed again", self.path)
                self._version = ""
                continue
            except (ApiFailure, ClusterUnavailable) as failure:
                if not self._is_cut:
                    log.warning("kubernetes: %s: not watched: %s", self.path, failure)
                self._is_cut = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def ask(self, name: str) -> None:
        """Refresh one object. Raises ApiFailure, ClusterUnavailable."""
        try:
            self._put(await self._client.get(f"{self.path}/{name}", self._kind))
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            self._drop(name, None)

    async def ask_some(self, params: Mapping[str, str], mine: Callable[[T], bool]) -> None:
        """Refresh the objects that `params` select, which are those for which `mine` holds. Raises
        ApiFailure, ClusterUnavailable."""
        objects, _ = await self._client.list(self.path, self._kind, params)
        self._replace({item.key: item for item in objects}, mine)

    def _reached(self) -> None:
        if self._is_cut:
            log.info("kubernetes: %s: watched again", self.path)
            self._is_cut = False

    def _learn(self, kind: str, raw: msgspec.Raw) -> None:
        changed = msgspec.json.decode(raw, type=self._kind)
        self._version = changed.metadata.resource_version
        if kind == "DELETED":
            self._drop(changed.key, changed)
        elif kind != "BOOKMARK":
            self._put(changed)

    def _replace(self, listed: Mapping[str, T], mine: Callable[[T], bool]) -> None:
        gone = [key for key, item in self.objects.items() if key not in listed and mine(item)]
        for key in gone:
            self._drop(key, None)
        for item in listed.values():
            self._put(item)

    def _put(self, changed: T) -> None:
        before = self.objects.get(changed.key)
        if before is not None and before.metadata.uid != changed.metadata.uid:
            self._drop(changed.key, None)
        if before != changed:
            self.objects[changed.key] = changed
            self._tell(changed, gone=False)

    def _drop(self, key: str, last: T | None) -> None:
        known = self.objects.pop(key, None)
        if (dropped := last or known) is not None:
            self._tell(dropped, gone=True)

"""Local copies of the API's collections, such as all Pods. Watches of the API keep the copies current."""

import asyncio
import contextlib
import logging
from typing import Generic, Protocol, TypeVar

import msgspec

from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, Expired
from trainshed_cluster.kubernetes.objects import ClusterNode, Pod, Workload
from trainshed_cluster.remote.cluster import ClusterUnavailable

log = logging.getLogger(__name__)
Item = TypeVar("Item", Pod, ClusterNode, Workload)
Item_contra = TypeVar("Item_contra", Pod, ClusterNode, Workload, contravariant=True)

_MIN_RETRY_INTERVAL, _MAX_RETRY_INTERVAL = 0.2, 10.0
"""Minimum and maximum seconds between two attempts to start a watch."""


class Listener(Protocol[Item_contra]):
    """Callback for each change, with the new object. `gone`: the object was deleted, and the callback
    receives its last state."""

    def __call__(self, changed: Item_contra, /, *, gone: bool) -> None: ...


class WatchedCollection(Generic[Item]):
    """A local copy of a collection. `path`: the collection's path in the API. `listener`: the object that is
    called after each change."""

    def __init__(self, client: ApiClient, path: str, kind: type[Item], listener: Listener[Item]) -> None:
        self.path = path
        #: The objects, by `key`.
        self.objects: dict[str, Item] = {}
        self._client = client
        self._kind = kind
        self._listener = listener
        self._version = ""
        self._is_interrupted = False

    async def list(self) -> None:
        """List all objects, and update the copy. Objects that are in the copy but not in the list count as
        deleted. Raises ApiFailure if the API rejects the request, and ClusterUnavailable if the API does not
        respond."""
        objects, self._version = await self._client.list(self.path, self._kind)
        listed = {item.key: item for item in objects}
        for key in self.objects.keys() - listed.keys():
            self._drop(key, None)
        for item in objects:
            self._put(item)

    async def follow(self) -> None:
        """Follow all changes since the last call of `list`. Never returns."""
        pause = _MIN_RETRY_INTERVAL
        while True:
            try:
                if not self._version:
                    await self.list()
                watching = self._client.watch(self.path, self._version)
                async with contextlib.aclosing(watching) as events:
                    async for event in events:
                        pause = _MIN_RETRY_INTERVAL
                        if self._is_interrupted:
                            log.info("kubernetes: %s: watched again", self.path)
                            self._is_interrupted = False
                        changed = msgspec.json.decode(event.object, type=self._kind)
                        self._version = changed.metadata.resource_version
                        if event.type == "DELETED":
                            self._drop(changed.key, changed)
                        elif event.type != "BOOKMARK":
                            self._put(changed)
                # The server ends each watch after a few minutes. The next iteration starts a new watch from
                # the last version.
            except Expired:
                log.info("kubernetes: %s: the watch expired; listing again", self.path)
                self._version = ""
            except (ApiFailure, ClusterUnavailable) as failure:
                if not self._is_interrupted:
                    log.warning("kubernetes: %s: cannot watch: %s", self.path, failure)
                self._is_interrupted = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_INTERVAL)

    def _put(self, changed: Item) -> None:
        before = self.objects.get(changed.key)
        if before is not None and before.metadata.uid != changed.metadata.uid:
            self._drop(changed.key, None)
        if before != changed:
            self.objects[changed.key] = changed
            self._listener(changed, gone=False)

    def _drop(self, key: str, last: Item | None) -> None:
        known = self.objects.pop(key, None)
        if (dropped := last or known) is not None:
            self._listener(dropped, gone=True)

"""Buckets in memory, in which exports copy (`controller.exports.OpenBuckets`)."""

import asyncio
import hashlib

from trainshed.controller.exports import StoredObject
from trainshed.core.errors import NotFound, RequestError
from trainshed.core.pipelines import ModelExport


class Copies:
    """`content`: bytes by URI. A copy waits for `gate`; one to an URI in `faults` fails with what is there
    first."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        #: Set when a copy waits for the gate.
        self.waits = asyncio.Event()
        self.faults: dict[str, list[RequestError]] = {}
        self.opened: list[ModelExport] = []
        #: Where each object was copied to.
        self.copied: list[str] = []

    def __call__(self, export: ModelExport) -> "Copies":
        self.opened.append(export)
        return self

    async def objects(self, directory: str) -> tuple[StoredObject, ...]:
        uris = sorted(uri for uri in self.content if uri.startswith(directory))
        return tuple(_stored(uri, self.content[uri]) for uri in uris)

    async def copy(self, source: StoredObject, target: str) -> None:
        self.waits.set()
        await self.gate.wait()
        if faults := self.faults.get(target):
            raise faults.pop(0)
        content = self.content.get(source.uri)
        if content is None or _stored(source.uri, content) != source:
            raise NotFound(f"{source.uri} has another generation")
        self.content[target] = content
        self.copied.append(target)


def _stored(uri: str, content: bytes) -> StoredObject:
    digest = hashlib.md5(content).hexdigest()
    return StoredObject(uri, digest)

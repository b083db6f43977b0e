"""Exports models by copying their artifacts, object by object. An export ends complete, or fails with what it
could not copy."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trainshed.controller.operation_worker import not_exported
from trainshed.core.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    RequestError,
    Unavailable,
)
from trainshed.core.failure.messages import INTERNAL
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.pipelines.records import ModelExport
from trainshed.core.units import Bytes
from trainshed.store.records import Operation

log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
"""Exports that copy at the same time; others wait."""
_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before each further try of a copy that is not possible at the moment."""
_CODES: Final[dict[type[Exception], int]] = {
    NotFound: 5,
    PermissionDenied: 7,
    FailedPrecondition: 9,
    Unavailable: 14,
}
"""google.rpc codes of the errors that a copy fails with."""


class StoredObject(Struct, frozen=True):
    """An object as a list shows it."""

    #: Its whole gs:// URI.
    uri: str
    generation: str
    size: Bytes
    #: "" = not known.
    checksum: str = ""

    def has_content_of(self, other: "StoredObject") -> bool:
        """Whether both are known to hold the same bytes."""
        return bool(self.checksum) and (self.size, self.checksum) == (other.size, other.checksum)


class CopyingBuckets(Protocol):
    """Buckets in which objects are copied. Methods raise NotFound, PermissionDenied, FailedPrecondition, and,
    for what may be tried again, Unavailable."""

    async def objects(self, directory: str) -> tuple[StoredObject, ...]:
        """Return all objects below a gs:// directory, whose URI ends with a slash."""
        ...

    async def copy(self, source: StoredObject, target: str) -> None:
        """Copy that generation of an object to a gs:// URI, whole or not at all. Raises NotFound if the
        object has another generation by now."""
        ...


OpenBuckets = Callable[[ModelExport], AbstractAsyncContextManager[CopyingBuckets]]
"""Opens the buckets with the rights of an export."""


class ModelExporter:
    """The `controller.operation_worker.OperationHandler` for exports of models."""

    def __init__(self, buckets: OpenBuckets) -> None:
        self._buckets = buckets
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, operation: Operation) -> Operation:
        assert operation.export is not None
        async with self._turns:
            try:
                await self._copy_all(operation.name, operation.export)
            except RequestError as failure:
                return not_exported(operation, _CODES.get(type(failure), INTERNAL), str(failure))
        return replace(operation, state=OperationState.SUCCEEDED)

    async def _copy_all(self, name: str, export: ModelExport) -> None:
        """Copy everything. Temporary failures are tried again, until the last of the pauses in a row has
        passed."""
        failed = 0
        async with self._buckets(export) as buckets:
            while True:
                try:
                    async for _ in _copied(buckets, export):
                        failed = 0
                except Unavailable as failure:
                    if failed == len(_PAUSES):
                        raise
                    log.warning("export %s interrupted: %s", name, failure)
                    await asyncio.sleep(_PAUSES[failed])
                    failed += 1
                else:
                    return


async def _copied(buckets: CopyingBuckets, export: ModelExport) -> AsyncIterator[StoredObject]:
    """Yield each object after it was copied; objects whose copy exists already are left out."""
    found = await buckets.objects(export.source)
    if not found:
        raise FailedPrecondition(
            f"there is nothing at {export.source} any more; the copy at {export.output} is not whole"
        )
    there = {each.uri: each for each in await buckets.objects(export.output)}
    for source in found:
        target = export.output + source.uri.removeprefix(export.source)
        known = there.get(target)
        if known is not None and known.has_content_of(source):
            continue
        try:
            await buckets.copy(source, target)
        except NotFound as failure:
            raise FailedPrecondition(
                f"{source.uri} was changed or deleted while it was copied, so that the copy at "
                f"{export.output} is not whole; export the model again ({failure})"
            ) from failure
        yield source

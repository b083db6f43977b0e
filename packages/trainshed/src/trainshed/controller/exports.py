"""Carries out exports of models, beside requests."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    RequestError,
    Unavailable,
)
from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.core.pipelines import ModelExport
from trainshed.eventloop.background import keep
from trainshed.store.notices import Notices
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.resources import Operations

log = logging.getLogger(__name__)


def not_exported(operation: Operation, code: int, message: str) -> Operation:
    """Return an export as failed. `code`: of google.rpc."""
    text = f"{operation.target} was not exported: {message}"
    return replace(operation, state=OperationState.FAILED, error=JobError(code, text))


_AT_ONCE: Final = 2
"""Exports that copy at the same time; others wait."""
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


class CopyingBuckets(Protocol):
    """Buckets in which objects are copied. Methods raise NotFound, PermissionDenied, FailedPrecondition,
    Unavailable."""

    async def objects(self, directory: str) -> tuple[StoredObject, ...]:
        """Return all objects below a gs:// directory, whose URI ends with a slash."""
        ...

    async def copy(self, source: StoredObject, target: str) -> None:
        """Copy that generation of an object to a gs:// URI, whole or not at all. Raises NotFound if the
        object has another generation by now."""
        ...


OpenBuckets = Callable[[ModelExport], CopyingBuckets]
"""Gives buckets with the rights of an export."""


class ModelExporter:
    """Carries out exports of models, each in a task of its own, a few at a time."""

    def __init__(
        self,
        operations: Operations,
        buckets: OpenBuckets,
        notices: Notices,
        now: Callable[[], int],
    ) -> None:
        self._operations = operations
        self._buckets = buckets
        self._notices = notices
        self._now = now
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Begin again what an earlier service left undone."""
        for operation in await self._operations.running(OperationKind.EXPORT):
            self.begin(operation)

    def begin(self, operation: Operation) -> None:
        """Begin to carry out an operation that is stored."""
        name = operation.name
        task = self._tasks[name] = keep(partial(self._carry_out, operation), f"operation {name}")
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def stop(self, name: str) -> None:
        """End the work on an operation that was cancelled. Does nothing if it is none of an export."""
        if task := self._tasks.get(name):
            task.cancel()

    async def close(self) -> None:
        """Stop working; what is not done stays stored."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, operation: Operation) -> None:
        try:
            async with self._turns:
                assert operation.export is not None
                await self._copy_all(operation.export)
            ended = replace(operation, state=OperationState.SUCCEEDED)
        except RequestError as failure:
            ended = not_exported(operation, _CODES.get(type(failure), INTERNAL), str(failure))
        except Exception:
            # Broad on purpose: if nobody ended the operation, clients would wait for it without end.
            log.exception("operation %s failed", operation.name)
            ended = not_exported(operation, INTERNAL, INTERNAL_ERROR_MESSAGE)
        await self._operations.finish(replace(ended, updated=self._now()))
        self._notices.publish(JobUid(operation.subject))
        log.info("operation %s %s", operation.name, ended.state)

    async def _copy_all(self, export: ModelExport) -> None:
        buckets = self._buckets(export)
        objects = await buckets.objects(export.source)
        if not objects:
            raise FailedPrecondition(
                f"there is nothing at {export.source} any more; the copy at {export.output} is not whole"
            )
        for source in objects:
            try:
                await buckets.copy(source, export.output + source.uri.removeprefix(export.source))
            except NotFound as failure:
                raise FailedPrecondition(
                    f"{source.uri} was changed or deleted while it was copied, so that the copy at "
                    f"{export.output} is not whole; export the model again ({failure})"
                ) from failure

"""Carries out, beside requests, the operations that do not belong to a study.

All that is to be done follows from the stored operation, and doing it twice changes nothing, so that after a
kill the next start of the service goes on with it. Every operation ends, whatever happens.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from msgspec.structs import replace

from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.eventloop.background import keep
from trainshed.store.notices import Notices
from trainshed.store.operations import Operations
from trainshed.store.records import Operation, OperationKind

log = logging.getLogger(__name__)

OperationHandler = Callable[[Operation], Awaitable[Operation]]
"""Does what an operation of its kind asks for, and returns the operation as it ended."""


class OperationWorker:
    """Carries out operations, each in a task of its own. The handlers limit how many work at a time."""

    def __init__(
        self,
        operations: Operations,
        handlers: Mapping[OperationKind, OperationHandler],
        notices: Notices,
        now: Callable[[], int],
    ) -> None:
        self._operations = operations
        self._handlers = handlers
        self._notices = notices
        self._now = now
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Go on with what an earlier service left undone."""
        for kind in self._handlers:
            for operation in await self._operations.running(kind):
                self.begin(operation)

    def begin(self, operation: Operation) -> None:
        """Begin to carry out an operation that is stored."""
        name = operation.name
        task = self._tasks[name] = keep(partial(self._carry_out, operation), f"operation {name}")
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def stop(self, name: str) -> None:
        """End the work on an operation that was cancelled. Does nothing if it is not one of this worker's."""
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
            ended = await self._handlers[operation.kind](operation)
        except Exception:
            # Broad on purpose: if nobody ended the operation, clients would wait for it without end.
            log.exception("operation %s failed", operation.name)
            ended = not_exported(operation, INTERNAL, INTERNAL_ERROR_MESSAGE)
        await self._operations.finish(replace(ended, updated=self._now()))
        self._notices.publish(JobUid(operation.subject))
        log.info("operation %s %s", operation.name, ended.state)


def not_exported(operation: Operation, code: int, message: str) -> Operation:
    """Return an export as failed. `code`: of google.rpc."""
    text = f"{operation.target} was not exported: {message}"
    return replace(operation, state=OperationState.FAILED, error=JobError(code, text))

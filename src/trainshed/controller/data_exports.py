"""Carries exports of datasets out, beside requests.

What is stored of an export says all that is to be written, and writing it twice gives the same files: a
service that is killed goes on with it at its next start.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE, INVALID_ARGUMENT
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.datasets.port import Account, DataRefused, SplitFiles, Written
from trainshed.eventloop.background import keep
from trainshed.store.notices import Notices
from trainshed.store.operations import Operations
from trainshed.store.records import Operation, OperationKind

log = logging.getLogger(__name__)

_ANSWER: Final = "google.cloud.aiplatform.v1.ExportDataResponse"


class DataExports:
    """Works off the operations of exports. How many are written at a time, the port decides."""

    def __init__(
        self,
        operations: Operations,
        files: SplitFiles,
        notices: Notices,
        now: Callable[[], int],
    ) -> None:
        self._operations = operations
        self._files = files
        self._notices = notices
        self._now = now
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Go on with what an earlier service left undone."""
        for operation in await self._operations.running(OperationKind.EXPORT_DATA):
            self.begin(operation)

    def begin(self, operation: Operation) -> None:
        """Carry out an operation that is stored."""
        name = operation.name
        task = self._tasks[name] = keep(partial(self._carry_out, operation), f"export {name}")
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def stop(self, name: str) -> None:
        """Write nothing more for an operation that was cancelled; nothing if it is none of ours."""
        if task := self._tasks.get(name):
            task.cancel()

    async def close(self) -> None:
        """Begin nothing more; what is not done stays stored."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, operation: Operation) -> None:
        export = operation.data
        assert export is not None
        account = Account(export.project, export.email)
        name = operation.name
        try:
            written = await self._files.write(
                export.plan, account, lambda text: log.info("export %s: %s", name, text)
            )
        except DataRefused as failure:
            ended = _failed(operation, INVALID_ARGUMENT, str(failure))
        except Exception:
            # Broad on purpose: an operation that nobody ends would be waited for without end.
            log.exception("export %s failed", name)
            ended = _failed(operation, INTERNAL, INTERNAL_ERROR_MESSAGE)
        else:
            ended = replace(
                operation,
                state=OperationState.SUCCEEDED,
                response=json.dumps(answer(written)),
                response_type=_ANSWER,
            )
        await self._operations.finish(replace(ended, updated=self._now()))
        self._notices.publish(JobUid(operation.subject))
        log.info("export %s %s", name, ended.state)


def answer(written: Written) -> dict[str, Any]:
    """What the operation answers, in public JSON."""
    splits = {"training": written.training, "validation": written.validation, "test": written.test}
    return {
        "exportedFiles": [uri for counts in splits.values() for uri in counts.shards],
        "dataStats": {f"{name}DataItemsCount": str(counts.rows) for name, counts in splits.items()},
    }


def _failed(operation: Operation, code: int, message: str) -> Operation:
    text = f"{operation.target} was not exported: {message}"
    return replace(operation, state=OperationState.FAILED, error=JobError(code, text))

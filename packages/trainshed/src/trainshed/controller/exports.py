"""Carries out exports of models and datasets in the background. An export that was interrupted by the end of
the service starts again and writes the same files."""

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from trainshed.core.datasets.plans import Export
from trainshed.core.environment import service_agent
from trainshed.core.failure.messages import INTERNAL, INTERNAL_ERROR_MESSAGE, INVALID_ARGUMENT
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.units import Nanos
from trainshed.datasets.port import Account, DataRefused, DataUnwritten, ExportFiles, Written
from trainshed.eventloop.background import cancel_all, keep
from trainshed.store.notices import Notices
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation
from trainshed.store.sqlite.studies import Studies

log = logging.getLogger(__name__)

_UNAVAILABLE: Final = 14
_V1: Final = "google.cloud.aiplatform.v1"


class ExportWorker:
    """Carries out exports, each in a task of its own (`api.calls.services.Exports`). `files` limits the
    number of concurrent writes."""

    def __init__(
        self, operations: Studies, files: ExportFiles, notices: Notices, now: Callable[[], int]
    ) -> None:
        self._operations = operations
        self._files = files
        self._notices = notices
        self._now = now
        self._last = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Restart unfinished exports of an earlier service."""
        for operation in await self._operations.running_operations():
            if operation.export is not None:
                self._start(operation)

    def moment(self) -> Nanos:
        self._last = max(self._now(), self._last + 10**6)
        return self._last

    async def start_export(self, operation: Operation) -> None:
        await self._operations.begin_operation(operation)
        self._start(operation)

    def stop(self, name: str) -> None:
        if task := self._tasks.get(name):
            task.cancel()

    async def close(self) -> None:
        """Stop writing. Unfinished exports remain stored."""
        await cancel_all(self._tasks.values())

    def _start(self, operation: Operation) -> None:
        name = operation.name
        task = self._tasks[name] = keep(partial(self._carry_out, operation), f"operation {name}")
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _carry_out(self, operation: Operation) -> None:
        assert operation.export is not None
        try:
            kind, response = await self._write(operation, operation.export)
            ended = replace(
                operation,
                state=OperationState.SUCCEEDED,
                response=json.dumps(response),
                response_type=f"{_V1}.{kind}",
            )
        except DataRefused as failure:
            ended = _fail(operation, INVALID_ARGUMENT, str(failure))
        except DataUnwritten as failure:
            ended = _fail(operation, _UNAVAILABLE, str(failure))
        except Exception:
            # Any failure ends the operation. Otherwise clients would wait for it forever.
            log.exception("operation %s failed", operation.name)
            ended = _fail(operation, INTERNAL, INTERNAL_ERROR_MESSAGE)
        try:
            await self._operations.finish_operation(replace(ended, updated=self._now()))
        except StaleCommit:
            return  # The operation was cancelled, so this end was not stored.
        self._notices.publish(operation.subject)

    async def _write(self, operation: Operation, export: Export) -> tuple[str, dict[str, Any]]:
        """Write the files. Return the type name of the response message, and the response in the JSON form of
        the public API."""
        number = operation.name.rpartition("/")[2]
        account = Account(export.project, service_agent(export.project), number)
        if export.copy is not None:
            await self._files.copy(export.copy, account)
            return "ExportModelResponse", {}
        assert export.plan is not None
        return "ExportDataResponse", _answer(await self._files.write(export.plan, account, lambda _: None))


def _answer(written: Written) -> dict[str, Any]:
    splits = {"training": written.training, "validation": written.validation, "test": written.test}
    return {
        "exportedFiles": [uri for counts in splits.values() for uri in counts.shards],
        "dataStats": {f"{name}DataItemsCount": str(counts.rows) for name, counts in splits.items()},
    }


def _fail(operation: Operation, code: int, message: str) -> Operation:
    text = f"{operation.target} was not exported: {message}"
    return replace(operation, state=OperationState.FAILED, error=JobError(code, text))

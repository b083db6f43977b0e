"""Exports datasets: writes files with the rows or items of each split. To write them twice gives the same
files."""

import json
import logging
from typing import Any, Final

from msgspec.structs import replace

from trainshed.controller.operation_worker import not_exported
from trainshed.core.failure.messages import INVALID_ARGUMENT
from trainshed.core.lifecycle.states import OperationState
from trainshed.datasets.port import Account, DataRefused, SplitFiles, Written
from trainshed.store.records import Operation

log = logging.getLogger(__name__)

_ANSWER: Final = "google.cloud.aiplatform.v1.ExportDataResponse"


class DataExporter:
    """The `controller.operation_worker.OperationHandler` for exports of datasets. The port limits how many
    are written at a time."""

    def __init__(self, files: SplitFiles) -> None:
        self._files = files

    async def __call__(self, operation: Operation) -> Operation:
        export = operation.data
        assert export is not None
        account = Account(export.project, export.email)
        name = operation.name
        try:
            written = await self._files.write(
                export.plan, account, lambda text: log.info("export %s: %s", name, text)
            )
        except DataRefused as failure:
            return not_exported(operation, INVALID_ARGUMENT, str(failure))
        return replace(
            operation,
            state=OperationState.SUCCEEDED,
            response=json.dumps(answer(written)),
            response_type=_ANSWER,
        )


def answer(written: Written) -> dict[str, Any]:
    """Return the operation's response in public JSON."""
    splits = {"training": written.training, "validation": written.validation, "test": written.test}
    return {
        "exportedFiles": [uri for counts in splits.values() for uri in counts.shards],
        "dataStats": {f"{name}DataItemsCount": str(counts.rows) for name, counts in splits.items()},
    }

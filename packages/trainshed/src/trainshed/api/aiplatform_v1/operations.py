"""Long-running operations: get, wait, list, cancel and delete. Creates their messages by kind."""

import contextlib
import json
import math
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.views import message, set_trial
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import SCAN_LIMIT, Scan, decode_token, encode_token, page_size
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.matching import record_filter
from trainshed.api.resources.operations import cancel_operation, wait_for_operation
from trainshed.core.datasets.plans import Export
from trainshed.core.datasets.records import DatasetName
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import ModelName, StudyName
from trainshed.core.reservations import PersistentResourceName
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.longrunning.Operations"
_RESOURCE_SEGMENT: Final = "/persistentResources/"
_MAX_WAIT: Final = 600.0
"""Maximum timeout in seconds of a WaitOperation."""
_DEFAULT_WAIT: Final = 30.0
"""Timeout in seconds of a WaitOperation that specifies none."""
_TEXTS: Final[Mapping[str, Callable[[Operation], str]]] = {
    "done": lambda operation: str(operation.state.is_final).lower()
}


async def get(call: Call, request: Any) -> Message:
    record = await call.services.reader.operation(request.name)
    return await operation_view(call.services, record)


async def wait(call: Call, request: Any) -> Message:
    """Return the operation after it has finished or the timeout has expired. In the public API, an expired
    timeout is not an error."""
    timeout = _DEFAULT_WAIT
    if request.HasField("timeout"):
        timeout = request.timeout.seconds + request.timeout.nanos / 10**9
    record = await wait_for_operation(call.services, request.name, min(timeout, _MAX_WAIT))
    call.services.access.revalidate(call.principal)
    return await operation_view(call.services, record)


async def list_(call: Call, request: Any) -> Message:
    size = page_size(request.page_size, default=100, maximum=1_000)
    passes = record_filter(request.filter, "operations", _TEXTS)
    question = (request.name, request.filter)
    after = decode_token(request.page_token, *question)
    max_rows = SCAN_LIMIT if request.filter else size
    # Read one row more than requested, to detect whether a next page exists.
    rows = await call.services.reader.operations(request.name, after, max_rows + 1)
    verdicts = await Scan(passes, seconds=math.inf).judge(rows[:max_rows])
    passing = list(compress(rows, verdicts))
    last = passing[size - 1] if len(passing) > size else rows[max_rows - 1] if len(rows) > max_rows else None
    return pool.message(
        "google.longrunning.ListOperationsResponse",
        operations=[await operation_view(call.services, row) for row in passing[:size]],
        next_page_token=encode_token(last.name, *question) if last else "",
    )


async def cancel(call: Call, request: Any) -> Message:
    await cancel_operation(call.services, request.name)
    return pool.message("google.protobuf.Empty")


async def delete(call: Call, request: Any) -> Message:
    await call.services.studies.delete_operation(request.name)
    return pool.message("google.protobuf.Empty")


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.GetOperation": get,
    f"{_SERVICE}.WaitOperation": wait,
    f"{_SERVICE}.ListOperations": list_,
    f"{_SERVICE}.CancelOperation": cancel,
    f"{_SERVICE}.DeleteOperation": delete,
}


def finished_view(record: Operation) -> Message:
    """Return the message of a successful operation without reading the store. Use `operation_view` for
    operations of studies."""
    view = _unfinished_view(record)
    answer = pool.message("google.protobuf.Empty")
    if record.kind is not OperationKind.DELETE:
        answer = wire_json.from_public(record.response_type, json.loads(record.response))
    view.response.Pack(answer)
    return view


async def operation_view(services: Services, record: Operation) -> Message:
    is_done = record.state is OperationState.SUCCEEDED
    match record.kind:
        case OperationKind.SUGGEST:
            answer = await _suggestion_response(services, record) if is_done else None
        case OperationKind.CHECK_STOPPING:
            name = "CheckTrialEarlyStoppingStateResponse"
            answer = message(name, should_stop=record.should_stop)
        case _ if not is_done:
            answer = None
        case _:
            return finished_view(record)
    view = _unfinished_view(record, services)
    if is_done:
        view.response.Pack(answer)
    return view


async def export(
    services: Services, parent: DatasetName | ModelName, target: str, export_plan: Export
) -> Message:
    """Start an export of the resource `target`, and return its operation."""
    now = services.now()
    location = LocationName(parent.project_id, parent.location)
    record = Operation(
        name=f"{location}/operations/{services.new_uid()}",
        kind=OperationKind.EXPORT,
        target=target,
        created=now,
        updated=now,
        state=OperationState.RUNNING,
        export=export_plan,
    )
    await services.exports.start_export(record)
    return _unfinished_view(record)


def _unfinished_view(record: Operation, services: Services | None = None) -> Any:
    """Return an operation's message without its response. If the operation waits for machines, the message
    contains the reason."""
    view: Any = pool.message("google.longrunning.Operation", name=record.name, done=record.state.is_final)
    metadata = _metadata(record)
    set_micros(metadata.generic_metadata.create_time, record.created)
    set_micros(metadata.generic_metadata.update_time, record.updated)
    if services is not None and _RESOURCE_SEGMENT in record.target and not record.state.is_final:
        resource = services.reservations.find(PersistentResourceName.parse(record.target))
        waiting = services.reservations.explain_wait(resource) if resource is not None else None
        if waiting is not None and record.kind is not OperationKind.DELETE:
            metadata.progress_message = waiting.message
    view.metadata.Pack(metadata)
    if record.error is not None:
        view.error.code = record.error.code
        view.error.message = record.error.message
    return view


def _metadata(record: Operation) -> Any:
    match record.kind:
        case OperationKind.DELETE:
            return message("DeleteOperationMetadata")
        case OperationKind.CREATE | OperationKind.UPDATE | OperationKind.REBOOT:
            # The metadata type contains the name of the method. Derive that name from the response type
            # (`UploadModelResponse`), or else from the verb and the resource.
            verb, answer = record.kind.value.title(), record.response_type.rpartition(".")[2]
            method = answer.removesuffix("Response")
            if method == answer:
                method = f"{verb}{answer}"
            if method.startswith("BatchDelete"):
                method = "Delete"
            return message(f"{method}OperationMetadata")
        case OperationKind.IMPORT:
            return message("ImportDataOperationMetadata")
        case OperationKind.EXPORT:
            output = record.export.output if record.export is not None else ""
            if record.export is not None and record.export.copy is None:
                return message("ExportDataOperationMetadata", gcs_output_directory=output)
            metadata = message("ExportModelOperationMetadata")
            metadata.output_info.artifact_output_uri = output
            return metadata
        case OperationKind.SUGGEST:
            return message("SuggestTrialsMetadata", client_id=record.client)
        case OperationKind.CHECK_STOPPING:
            study = record.target.partition("/trials/")[0]
            # The public API has this misspelling.
            name = "CheckTrialEarlyStoppingStateMetatdata"
            return message(name, study=study, trial=record.target)
        case _:
            assert_never(record.kind)


async def _suggestion_response(services: Services, record: Operation) -> Message:
    """Return the response of a suggestion. It contains those suggested trials that were not deleted in the
    meantime."""
    response = message("SuggestTrialsResponse")
    set_micros(response.start_time, record.created)
    set_micros(response.end_time, record.updated)
    try:
        study = await services.studies.get(StudyName.parse(record.target))
    except NotFound:
        return response
    response.study_state = study.state.value
    measured = await services.studies.measurements(study.uid, record.trials)
    for number in record.trials:
        with contextlib.suppress(NotFound):
            trial = await services.studies.trial(study.uid, number)
            set_trial(response.trials.add(), study.name, trial, measured.get(number, ()))
    return response

"""Records of long-running operations as google.longrunning messages, by what each is about."""

import json
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.study_views import set_trial
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.ml_v1 import study_views
from trainshed.api.resources.studies import is_of_ml
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import StudyName
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_V1: Final = "google.cloud.aiplatform.v1"
SUGGESTED: Final = f"{_V1}.SuggestTrialsResponse"
_CHECKED: Final = f"{_V1}.CheckTrialEarlyStoppingStateResponse"


def finished(record: Operation) -> Message:
    """The message of an operation that was done when it was stored: DELETE, CREATE, UPDATE. Asks nobody
    anything."""
    view = _begun(record)
    match record.kind:
        case OperationKind.DELETE:
            view.response.Pack(pool.message_class("google.protobuf.Empty")())
        case OperationKind.CREATE | OperationKind.UPDATE:
            answer = wire_json.from_public(record.response_type, json.loads(record.response))
            view.response.Pack(answer)
        case OperationKind.SUGGEST | OperationKind.CHECK_STOPPING:
            raise ValueError(f"{record.name}: a {record.kind} is not done at once")
        case _:
            assert_never(record.kind)
    return view


async def operation(services: Services, record: Operation) -> Message:
    """The message of any operation, done or not, with its trials as they are now.

    Both APIs poll at one path here, so those about studies of `ml` v1 are told in its words.
    """
    match record.kind:
        case OperationKind.DELETE | OperationKind.CREATE | OperationKind.UPDATE:
            return finished(record)
        case OperationKind.SUGGEST | OperationKind.CHECK_STOPPING:
            if is_of_ml(StudyName.parse(record.target.partition("/trials/")[0])):
                return await study_views.operation(services, record)
            view = _begun(record)
        case _:
            assert_never(record.kind)
    if record.state is OperationState.SUCCEEDED:
        if record.kind is OperationKind.SUGGEST:
            view.response.Pack(await _suggested(services, record))
        else:
            view.response.Pack(pool.message_class(_CHECKED)(should_stop=record.should_stop))
    return view


def _begun(record: Operation) -> Any:
    """All but the response of an operation that came to its end."""
    view: Any = pool.message_class("google.longrunning.Operation")(
        name=record.name, done=record.state.is_final
    )
    metadata = _metadata(record)
    set_micros(metadata.generic_metadata.create_time, record.created)
    set_micros(metadata.generic_metadata.update_time, record.updated)
    view.metadata.Pack(metadata)
    if record.error is not None:
        view.error.code = record.error.code
        view.error.message = record.error.message
    return view


def _metadata(record: Operation) -> Any:
    match record.kind:
        case OperationKind.DELETE:
            return pool.message_class(f"{_V1}.DeleteOperationMetadata")()
        case OperationKind.CREATE:
            resource = record.response_type.rpartition(".")[2]
            made = "UploadModel" if resource == "UploadModelResponse" else f"Create{resource}"
            return pool.message_class(f"{_V1}.{made}OperationMetadata")()
        case OperationKind.UPDATE:
            resource = record.response_type.rpartition(".")[2]
            return pool.message_class(f"{_V1}.Update{resource}OperationMetadata")()
        case OperationKind.SUGGEST:
            return pool.message_class(f"{_V1}.SuggestTrialsMetadata")(client_id=record.client)
        case OperationKind.CHECK_STOPPING:
            study = record.target.partition("/trials/")[0]
            # The message is spelled like this in the public API.
            return pool.message_class(f"{_V1}.CheckTrialEarlyStoppingStateMetatdata")(
                study=study, trial=record.target
            )
        case _:
            assert_never(record.kind)


async def _suggested(services: Services, record: Operation) -> Message:
    """The trials that were handed out; those that were deleted since are left out."""
    response: Any = pool.message_class(SUGGESTED)()
    set_micros(response.start_time, record.created)
    set_micros(response.end_time, record.updated)
    study_name = StudyName.parse(record.target)
    try:
        study = await services.studies.study(study_name)
        field = pool.message_descriptor(SUGGESTED).fields_by_name["study_state"]
        assert field.enum_type is not None
        response.study_state = field.enum_type.values_by_name[study.state.value].number
    except NotFound:
        return response
    for number in record.trials:
        try:
            stored = await services.studies.trial(study.uid, number)
        except NotFound:
            continue
        set_trial(response.trials.add(), study_name, stored.trial)
    return response

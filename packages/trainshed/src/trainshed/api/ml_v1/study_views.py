"""Converts studies, trials and their operations to `ml` v1 messages, and what clients send to neutral types
(facts/tuning#vizier).

The messages differ from Vertex's: a trial is COMPLETED, with or without `trialInfeasible`; a parameter's
value stands in a field of its type; a measurement has `elapsedTime`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources import studies
from trainshed.api.resources.studies import with_measurements
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import StudyName
from trainshed.core.study.reading import GivenParameter
from trainshed.core.study.records import Measurement, Study, StudyState, Trial, TrialState
from trainshed.core.study.spec import Value
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_V1: Final = "google.cloud.ml.v1"
_STUDY: Final = f"{_V1}.Study"
_TRIAL: Final = f"{_V1}.Trial"
_SUGGESTED: Final = f"{_V1}.SuggestTrialsResponse"
_TRIAL_STATES: Final[Mapping[TrialState, str]] = {
    TrialState.REQUESTED: "REQUESTED",
    TrialState.ACTIVE: "ACTIVE",
    TrialState.STOPPING: "STOPPING",
    TrialState.SUCCEEDED: "COMPLETED",
    TrialState.INFEASIBLE: "COMPLETED",
}


def study(record: Study) -> Message:
    """Return the Study message of a stored study."""
    view: Any = wire_json.from_public(_STUDY, json.loads(record.public_json))
    view.name = str(record.name)
    view.state = _study_states(_STUDY, "state")[record.state]
    view.inactive_reason = record.inactive_reason if record.state is StudyState.INACTIVE else ""
    set_micros(view.create_time, record.created)
    return view


def trial(of: StudyName, record: Trial, measurements: Sequence[Measurement] = ()) -> Message:
    """Return the Trial message of a stored trial. `measurements`: ascending by step and elapsed time."""
    view = pool.message_class(_TRIAL)()
    _set_trial(view, of, record, measurements)
    return view


async def operation(services: Services, record: Operation) -> Message:
    """Return the message of an operation, SUGGEST or CHECK_STOPPING, with its trials as they are now."""
    view: Any = pool.message_class("google.longrunning.Operation")(
        name=record.name, done=record.state.is_final
    )
    about = record.target.partition("/trials/")[0]
    if record.kind is OperationKind.SUGGEST:
        metadata: Any = pool.message_class(f"{_V1}.SuggestTrialsMetadata")(
            study=about, client_id=record.client, suggestion_count=record.count
        )
    else:
        # The message is spelled like this in the public API.
        metadata = pool.message_class(f"{_V1}.CheckTrialEarlyStoppingStateMetatdata")(
            study=about, trial=record.target
        )
    set_micros(metadata.create_time, record.created)
    view.metadata.Pack(metadata)
    if record.error is not None:
        view.error.code = record.error.code
        view.error.message = record.error.message
    elif record.state is OperationState.SUCCEEDED:
        view.response.Pack(await _response(services, StudyName.parse(about), record))
    return view


def given_parameters(message: Any, path: str) -> Iterator[GivenParameter]:
    """Yield the parameters of a Trial message that stands at `path` in the request."""
    for index, entry in enumerate(message.parameters):
        kind = entry.WhichOneof("value")
        value = getattr(entry, kind) if kind else None
        yield GivenParameter(f"{path}.parameters[{index}]", "parameter", entry.parameter, value)


given_measurement = partial(studies.given_measurement, elapsed="elapsed_time", metric="metric")
"""`api.resources.studies.given_measurement` for this API's messages."""


def _set_trial(
    view: Any, of: StudyName, record: Trial, measurements: Sequence[Measurement] = ()
) -> None:
    view.name = of.trial(record.number)
    view.state = _numbers(_TRIAL, "state")[_TRIAL_STATES[record.state]]
    for parameter, value in record.parameters:
        _set_value(view.parameters.add(parameter=parameter), value)
    if record.final is not None:
        _set_measurement(view.final_measurement, record.final)
    for measurement in measurements:
        _set_measurement(view.measurements.add(), measurement)
    set_micros(view.start_time, record.started or record.created)
    if record.ended:
        set_micros(view.end_time, record.ended)
    view.client_id = record.client
    view.trial_infeasible = record.state is TrialState.INFEASIBLE
    view.infeasible_reason = record.infeasible_reason


def _set_value(entry: Any, value: Value) -> None:
    match value:
        case str():
            entry.string_value = value
        case int():
            entry.int_value = value
        case float():
            entry.float_value = value


def _set_measurement(view: Any, measurement: Measurement) -> None:
    view.SetInParent()
    view.step_count = measurement.step
    if measurement.elapsed:
        seconds, nanos = divmod(measurement.elapsed, 10**9)
        view.elapsed_time.seconds, view.elapsed_time.nanos = seconds, nanos
    for metric, value in measurement.metrics:
        view.metrics.add(metric=metric, value=value)


async def _response(services: Services, name: StudyName, record: Operation) -> Message:
    """Return an operation's response, without trials, or a study, that were deleted since."""
    if record.kind is not OperationKind.SUGGEST:
        response: Any = pool.message_class(f"{_V1}.CheckTrialEarlyStoppingStateResponse")(
            should_stop=record.should_stop
        )
    else:
        response = pool.message_class(_SUGGESTED)()
        try:
            study = await services.studies.study(name)
        except NotFound:
            pass
        else:
            response.study_state = _study_states(_SUGGESTED, "study_state")[study.state]
            handed_out = [
                stored
                for number in record.trials
                for stored in await services.studies.trials(study.uid, number - 1, 1)
                if stored.number == number
            ]
            for stored, measured in await with_measurements(services, study.uid, handed_out):
                _set_trial(response.trials.add(), name, stored, measured)
    set_micros(response.start_time, record.created)
    set_micros(response.end_time, record.updated)
    return response


def _study_states(message: str, field: str) -> Mapping[StudyState, int]:
    return {state: _numbers(message, field)[state.value] for state in StudyState}


@cache
def _numbers(message: str, field: str) -> Mapping[str, int]:
    """Return the numbers of an enum field's values by their names."""
    enum = pool.message_descriptor(message).fields_by_name[field].enum_type
    assert enum is not None
    return {name: value.number for name, value in enum.values_by_name.items()}

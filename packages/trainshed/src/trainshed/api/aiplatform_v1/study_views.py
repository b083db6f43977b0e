"""Converts studies, trials and measurements to `aiplatform` v1 messages, and trials that clients send to
neutral types.

Trials of tuning jobs and of studies are shown alike (facts/resources#tuning-jobs, facts/tuning#metrics).
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.timestamps import set_micros
from trainshed.core.names import StudyName
from trainshed.core.study.reading import GivenMeasurement, GivenMetric, GivenParameter
from trainshed.core.study.records import Measurement, Study, StudyState, Trial, TrialState
from trainshed.core.study.spec import Value
from trainshed.wire import json as wire_json
from trainshed.wire import pool

STUDY: Final = "google.cloud.aiplatform.v1.Study"
TRIAL: Final = "google.cloud.aiplatform.v1.Trial"


def study_view(record: Study) -> Message:
    """Return the Study message of a stored study."""
    view: Any = wire_json.from_public(STUDY, json.loads(record.public_json))
    view.name = str(record.name)
    view.state = _state_numbers()[record.state]
    view.inactive_reason = record.inactive_reason if record.state is StudyState.INACTIVE else ""
    set_micros(view.create_time, record.created)
    return view


def given_parameters(trial: Any, path: str) -> Iterator[GivenParameter]:
    """Yield the parameters of a Trial message that stands at `path` in the request."""
    for index, entry in enumerate(trial.parameters):
        value: float | str | None = None
        match entry.value.WhichOneof("kind"):
            case "number_value":
                value = entry.value.number_value
            case "string_value":
                value = entry.value.string_value
            case _:
                pass
        yield GivenParameter(f"{path}.parameters[{index}]", entry.parameter_id, value)


def given_measurement(message: Any, path: str) -> GivenMeasurement:
    """Read a Measurement message that stands at `path` in the request."""
    span = message.elapsed_duration
    return GivenMeasurement(
        path,
        tuple(
            GivenMetric(f"{path}.metrics[{index}]", entry.metric_id, entry.value)
            for index, entry in enumerate(message.metrics)
        ),
        message.step_count,
        span.seconds * 10**9 + span.nanos,
    )


@cache
def _state_numbers() -> dict[StudyState, int]:
    field = pool.message_descriptor(STUDY).fields_by_name["state"]
    assert field.enum_type is not None
    return {state: field.enum_type.values_by_name[state.value].number for state in StudyState}


def trial_view(
    study: StudyName, record: Trial, measurements: Sequence[Measurement] = ()
) -> Message:
    """Return the Trial message of a stored trial. `measurements`: ascending by step and elapsed time."""
    view = pool.message_class(TRIAL)()
    set_trial(view, study, record, measurements)
    return view


def set_trial(
    view: Any,
    study: StudyName,
    record: Trial,
    measurements: Sequence[Measurement] = (),
    custom_job: str = "",
) -> None:
    """Set all fields of an empty Trial. `custom_job`: the name of the job that evaluates it ("" = none)."""
    view.name = study.trial(record.number)
    view.id = str(record.number)
    view.state = _trial_state_numbers()[record.state]
    for parameter, value in record.parameters:
        set_value(view.parameters.add(parameter_id=parameter).value, value)
    if record.final is not None:
        set_measurement(view.final_measurement, record.final)
    for measurement in measurements:
        set_measurement(view.measurements.add(), measurement)
    # A trial that runs as a job begins when its program runs; any other when it is handed out.
    if started := record.started or (0 if record.job else record.created):
        set_micros(view.start_time, started)
    if record.ended:
        set_micros(view.end_time, record.ended)
    view.client_id = record.client
    view.infeasible_reason = record.infeasible_reason
    view.custom_job = custom_job


def set_value(view: Any, value: Value) -> None:
    """Set a google.protobuf.Value to a parameter's value: numbers as numbers."""
    if isinstance(value, str):
        view.string_value = value
    else:
        view.number_value = value


def set_measurement(view: Any, measurement: Measurement) -> None:
    """Set all fields of an empty Measurement."""
    view.SetInParent()
    view.step_count = measurement.step
    if measurement.elapsed:
        view.elapsed_duration.seconds, view.elapsed_duration.nanos = divmod(
            measurement.elapsed, 10**9
        )
    for metric, value in measurement.metrics:
        view.metrics.add(metric_id=metric, value=value)


@cache
def _trial_state_numbers() -> dict[TrialState, int]:
    field = pool.message_descriptor(TRIAL).fields_by_name["state"]
    assert field.enum_type is not None
    return {state: field.enum_type.values_by_name[state.value].number for state in TrialState}

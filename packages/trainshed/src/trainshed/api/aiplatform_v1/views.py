"""Converts records to `aiplatform` v1 messages. Each message is the created resource with its output fields
(facts/resources#pipelines, facts/resources#tuning-jobs, facts/tuning#metrics).

The records are custom jobs, tuning jobs, training pipelines and studies. Trials of tuning jobs and of studies
have the same message.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from google.protobuf.message import Message

from trainshed.api.calls.timestamps import set_micros
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobName, JobUid, StudyName
from trainshed.core.pipelines import Pipeline, Task
from trainshed.core.study.records import Measurement, Study, StudyState, Trial
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.wire import json as wire_json
from trainshed.wire import pool

STATES: Final[Mapping[str, JobState | None]] = {
    "JOB_STATE_QUEUED": JobState.QUEUED,
    "JOB_STATE_PENDING": JobState.PREPARING,
    "JOB_STATE_RUNNING": JobState.RUNNING,
    "JOB_STATE_SUCCEEDED": JobState.SUCCEEDED,
    "JOB_STATE_FAILED": JobState.FAILED,
    "JOB_STATE_CANCELLING": JobState.CANCELLING,
    "JOB_STATE_CANCELLED": JobState.CANCELLED,
    "JOB_STATE_UNSPECIFIED": None,
    "JOB_STATE_PAUSED": None,
    "JOB_STATE_EXPIRED": None,
    "JOB_STATE_UPDATING": None,
    "JOB_STATE_PARTIALLY_SUCCEEDED": None,
}
"""Job states by public name. None = jobs never have this state."""
PIPELINE_STATES: Final[Mapping[str, JobState | None]] = {
    f"PIPELINE_STATE_{name.removeprefix('JOB_STATE_')}": state
    for name, state in STATES.items()
    if state or name.endswith(("_UNSPECIFIED", "_PAUSED"))
}
"""Job states by the public name of a pipeline's state. None = pipelines never have this state."""
_STATE_NAMES: Final = {state: name for name, state in STATES.items() if state is not None}


def custom_job(record: Job) -> Message:
    view = wire_json.from_public(f"{V1}.CustomJob", json.loads(record.public_json))
    set_custom_job_outputs(view, record)
    return view


def set_custom_job_outputs(view: Any, record: Job) -> None:
    """Set the output fields and the current labels of a CustomJob that already contains its input fields."""
    view.state = _STATE_NAMES[record.state]
    set_common_outputs(view, record)


def set_common_outputs(view: Any, work: Work) -> None:
    """Set the output fields that custom jobs, tuning jobs and pipelines share. The state is not one of them,
    because its values differ."""
    view.name = str(work.name)
    set_micros(view.create_time, work.created)
    set_micros(view.update_time, work.updated)
    set_micros(view.start_time, work.started)
    set_micros(view.end_time, work.ended)
    if work.error is not None and work.state.is_final:
        view.error.code = work.error.code
        # Start the message of a cancelled job with this word. Clients that wait for a job search the message
        # for the word, to distinguish a cancellation from a failure.
        prefix = "CANCELED: " if work.error.code == CANCELLED else ""
        view.error.message = f"{prefix}{work.error.message}"
    view.labels.clear()
    view.labels.update(dict(work.labels))


def sibling_name(name: JobName, uid: JobUid, collection: Collection) -> str:
    """Return the public name of a job that the Vertex job or pipeline `name` has created. The name has the
    same location, and the UID as its ID. Return "" if `uid` is 0."""
    if not uid:
        return ""
    return str(JobName(Api.VERTEX, name.project_id, name.location, str(uid), collection))


MeasurementsByTrial = Mapping[int, Sequence[Measurement]]
"""Measurements by trial number."""


def tuning_job(record: TuningJob, trials: Sequence[Trial], measured: MeasurementsByTrial) -> Message:
    view = wire_json.from_public(f"{V1}.HyperparameterTuningJob", json.loads(record.public_json))
    set_tuning_outputs(view, record, trials, measured)
    return view


def set_tuning_outputs(
    view: Any, record: TuningJob, trials: Sequence[Trial] = (), measured: MeasurementsByTrial | None = None
) -> None:
    """Set the output fields and the current labels of a HyperparameterTuningJob that already contains its
    input fields. `trials`: in ascending order of their numbers."""
    view.state = _STATE_NAMES[record.state]
    set_common_outputs(view, record)
    study = StudyName(record.name.project_id, record.name.location, str(record.study))
    for trial in trials:
        job = sibling_name(record.name, trial.job, Collection.CUSTOM_JOBS)
        set_trial(view.trials.add(), study, trial, (measured or {}).get(trial.number, ()), job)


def training_pipeline(record: Pipeline) -> Message:
    view: Any = wire_json.from_public(f"{V1}.TrainingPipeline", json.loads(record.public_json))
    view.state = f"PIPELINE_{_STATE_NAMES[record.state].removeprefix('JOB_')}"
    set_common_outputs(view, record)
    for key, name in _backing_jobs(record):
        view.training_task_metadata.struct_value.fields[key].string_value = name
    if record.model:
        model, _, version = record.model.rpartition("@")
        view.model_to_upload.name = model
        view.model_to_upload.version_id = version
    return view


def definition(record: Pipeline) -> str:
    """Return the trainingTaskDefinition of a pipeline."""
    return str(json.loads(record.public_json).get("trainingTaskDefinition", ""))


def _backing_jobs(record: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the jobs of a pipeline that exist, each with its public key. The SDK follows the first job."""
    match record.spec.task:
        case Task.CUSTOM:
            names = (("backingCustomJob", record.job, Collection.CUSTOM_JOBS),)
        case Task.TUNING:
            names = (
                ("backingHyperparameterTuningJob", record.job, Collection.TUNING_JOBS),
                ("bestTrialBackingCustomJob", record.best_job, Collection.CUSTOM_JOBS),
            )
        case _:
            assert_never(record.spec.task)
    for key, uid, collection in names:
        if name := sibling_name(record.name, uid, collection):
            yield key, name


def study(record: Study) -> Message:
    view: Any = wire_json.from_public(f"{V1}.Study", json.loads(record.public_json))
    view.name = str(record.name)
    view.state = record.state.value
    view.inactive_reason = record.inactive_reason if record.state is StudyState.INACTIVE else ""
    set_micros(view.create_time, record.created)
    return view


def set_trial(
    view: Any,
    study_name: StudyName,
    record: Trial,
    measurements: Sequence[Measurement] = (),
    custom_job: str = "",
) -> None:
    """Set all fields of an empty Trial message. `measurements`: in ascending order of step and elapsed time.
    `custom_job`: the name of the trial's job; "" = no job."""
    view.name = study_name.trial(record.number)
    view.id = str(record.number)
    view.state = record.state.value
    # Sort the parameters by name, because clients read them by position.
    for parameter, value in sorted(record.parameters):
        field = view.parameters.add(parameter_id=parameter).value
        if isinstance(value, str):
            field.string_value = value
        else:
            field.number_value = value
    if record.final is not None:
        _set_measurement(view.final_measurement, record.final)
    for measurement in measurements:
        _set_measurement(view.measurements.add(), measurement)
    # If the trial has a job, its start time is that of the job's program. Otherwise it is the time of the
    # suggestion.
    set_micros(view.start_time, record.started or (0 if record.job else record.created))
    set_micros(view.end_time, record.ended)
    view.client_id = record.client
    view.infeasible_reason = record.infeasible_reason
    view.custom_job = custom_job


def _set_measurement(view: Any, measurement: Measurement) -> None:
    view.SetInParent()
    view.step_count = measurement.step
    if measurement.elapsed:
        view.elapsed_duration.seconds, view.elapsed_duration.nanos = divmod(measurement.elapsed, 10**9)
    for metric, value in measurement.metrics:
        view.metrics.add(metric_id=metric, value=value)


V1: Final = "google.cloud.aiplatform.v1"


def message(kind: str, **fields: Any) -> Any:
    """Return a Vertex AI message of type `kind`, such as `ListModelsResponse`, with these fields."""
    return pool.message(f"{V1}.{kind}", **fields)


def reject_encryption_key(resource: Any, field: str) -> None:
    """Reject a resource with customer-managed encryption keys. Raises InvalidRequest for `field` of the
    request."""
    if resource.HasField("encryption_spec"):
        text = "Keys of customers are not supported. Omit the field."
        raise InvalidRequest((Violation(f"{field}.encryption_spec", text),))

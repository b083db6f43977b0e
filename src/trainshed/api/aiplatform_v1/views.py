"""Records as `aiplatform` v1 messages: the created resource, plus what became of it (facts §1.2)."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.timestamps import set_micros
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.store.port import Operation
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
"""Public state names; None for those that no job here is ever in."""

CUSTOM_JOB: Final = "google.cloud.aiplatform.v1.CustomJob"


def custom_job(job: Job) -> Message:
    """The CustomJob message of a stored job."""
    view = wire_json.from_public(CUSTOM_JOB, json.loads(job.public_json))
    set_outputs(view, job)
    return view


def set_outputs(view: Any, job: Job) -> None:
    """Put the output fields, and the labels as they are now, into a CustomJob with its input fields set."""
    view.name = str(job.name)
    view.state = _state_numbers()[job.state]
    set_micros(view.create_time, job.created)
    set_micros(view.update_time, job.updated)
    if job.started:
        set_micros(view.start_time, job.started)
    if job.ended:
        set_micros(view.end_time, job.ended)
    if job.error is not None and job.state.is_final:
        view.error.code = job.error.code
        view.error.message = job.error.message
    view.labels.clear()
    view.labels.update(dict(job.labels))


def operation(record: Operation) -> Message:
    """A finished deletion: done, with an empty response and the times of the deletion."""
    view: Any = pool.message_class("google.longrunning.Operation")(name=record.name, done=True)
    metadata: Any = pool.message_class("google.cloud.aiplatform.v1.DeleteOperationMetadata")()
    set_micros(metadata.generic_metadata.create_time, record.created)
    set_micros(metadata.generic_metadata.update_time, record.updated)
    view.metadata.Pack(metadata)
    view.response.Pack(pool.message_class("google.protobuf.Empty")())
    return view


@cache
def _state_numbers() -> dict[JobState, int]:
    field = pool.message_descriptor(CUSTOM_JOB).fields_by_name["state"]
    assert field.enum_type is not None
    numbers = field.enum_type.values_by_name
    return {state: numbers[name].number for name, state in STATES.items() if state is not None}

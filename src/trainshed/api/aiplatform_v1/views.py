"""Records as `aiplatform` v1 messages: the created resource, plus what became of it
(facts/resources#pipelines).

What is shown of all that clients create, wait for and cancel, and the custom job itself; tuning jobs and
pipelines have modules of their own.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.timestamps import set_micros
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobName, JobUid
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
"""Public state names; None for those that no job here is ever in."""

CUSTOM_JOB: Final = "google.cloud.aiplatform.v1.CustomJob"


def custom_job(job: Job) -> Message:
    """The CustomJob message of a stored job."""
    view = wire_json.from_public(CUSTOM_JOB, json.loads(job.public_json))
    set_outputs(view, job)
    return view


def set_outputs(view: Any, job: Job) -> None:
    """Put the output fields, and the labels as they are now, into a CustomJob with its input fields set."""
    view.state = job_state_numbers()[job.state]
    set_common_outputs(view, job)


def set_common_outputs(view: Any, work: Work) -> None:
    """What custom jobs, tuning jobs and pipelines show alike: all but the state, whose words differ."""
    view.name = str(work.name)
    set_micros(view.create_time, work.created)
    set_micros(view.update_time, work.updated)
    if work.started:
        set_micros(view.start_time, work.started)
    if work.ended:
        set_micros(view.end_time, work.ended)
    if work.error is not None and work.state.is_final:
        view.error.code = work.error.code
        view.error.message = work.error.message
    view.labels.clear()
    view.labels.update(dict(work.labels))


def sibling_name(name: JobName, uid: JobUid, collection: Collection) -> str:
    """The public name of a job that another Vertex work made: same place, its uid for an id; "" if there is
    none."""
    if not uid:
        return ""
    return str(JobName(Api.VERTEX, name.project_id, name.location, str(uid), collection))


@cache
def job_state_numbers() -> dict[JobState, int]:
    """The numbers of the public enum JobState."""
    field = pool.message_descriptor(CUSTOM_JOB).fields_by_name["state"]
    assert field.enum_type is not None
    numbers = field.enum_type.values_by_name
    return {state: numbers[name].number for name, state in STATES.items() if state is not None}

"""Converts pipeline jobs and their tasks to public messages (facts/pipelines#resources)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.views import PIPELINE_STATES, V1, message, set_common_outputs, sibling_name
from trainshed.api.calls.timestamps import set_micros
from trainshed.core.job import JobError
from trainshed.core.names import JobName, JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.wire import json as wire_json
from trainshed_pipelines.runs.names import execution_name
from trainshed_pipelines.runs.records import ROOT, Artifact, TaskKind, TaskRun, TaskState
from trainshed_pipelines.template.structures import Json

MAX_NAME: Final = 128
"""Maximum length of a display name."""
_MAX_METADATA: Final = 190_000
"""Maximum size in bytes of the metadata of an execution or artifact. MetadataService accepts 200,000."""
_TASK_STATES: Final[Mapping[TaskState, str]] = {
    TaskState.WAITING: "PENDING",
    TaskState.PENDING: "PENDING",
    TaskState.RUNNING: "RUNNING",
    TaskState.CANCELLING: "CANCELLING",
    TaskState.SUCCEEDED: "SUCCEEDED",
    TaskState.FAILED: "FAILED",
    TaskState.CANCELLED: "CANCELLED",
    TaskState.SKIPPED: "SKIPPED",
    TaskState.NOT_TRIGGERED: "NOT_TRIGGERED",
}
_EXECUTION_STATES: Final[Mapping[TaskState, str]] = {
    TaskState.SUCCEEDED: "COMPLETE",
    TaskState.SKIPPED: "CACHED",
    TaskState.FAILED: "FAILED",
    TaskState.CANCELLED: "CANCELLED",
}
"""States of executions by the states of tasks. All other executions are RUNNING."""
_EXECUTION_SCHEMAS: Final[Mapping[TaskKind, str]] = {
    TaskKind.DAG: "system.DagExecution",
    TaskKind.LOOP: "system.DagExecution",
    TaskKind.IMPORTER: "system.ImporterExecution",
    TaskKind.JOB: "system.ContainerExecution",
    TaskKind.NATIVE: "system.ContainerExecution",
}
_STATE_NAMES: Final = {state: name for name, state in PIPELINE_STATES.items() if state is not None}


def pipeline_job(
    job: PipelineJob,
    spec: Mapping[str, Json] | None,
    tasks: Sequence[TaskRun],
    contexts: Sequence[Message] = (),
) -> Message:
    """Return the public message of a pipeline job. `spec`: its compiled pipeline; None = omit the compiled
    pipeline, as in a simple list. `contexts`: the contexts of the run and of its pipeline, as far as they
    exist."""
    public = json.loads(job.public_json)
    if spec is not None:
        public["pipelineSpec"] = spec
    view: Any = wire_json.from_public(f"{V1}.PipelineJob", public)
    view.state = _STATE_NAMES[job.state]
    set_common_outputs(view, job)
    if job.schedule:
        view.schedule_name = job.schedule
    detail = view.job_detail
    for field, context in zip(("pipeline_run_context", "pipeline_context"), contexts, strict=False):
        getattr(detail, field).CopyFrom(context)
    for task in tasks:
        _set_task(detail.task_details.add(), job.name, task)
    return view


def _set_task(view: Any, run: JobName, task: TaskRun) -> None:
    view.task_id = task_id(task.number)
    if task.number != ROOT:
        view.parent_task_id = task_id(task.parent)
    view.task_name = task_name(run, task)
    view.task_unique_name = f"{view.task_name}-{task.number}"
    set_micros(view.create_time, task.created)
    set_micros(view.start_time, task.started)
    set_micros(view.end_time, task.ended)
    view.state = _TASK_STATES[task.state]
    if task.error is not None and task.state.is_final:
        _set_error(view.error, task.error)
    status = view.pipeline_task_status.add(state=view.state)
    set_micros(status.update_time, task.ended or task.started or task.created)
    if task.kind not in (TaskKind.DAG, TaskKind.LOOP) and (task.job or task.failed_jobs):
        detail = view.executor_detail.container_detail
        detail.main_job = _job_name(run, task, task.job)
        detail.failed_main_jobs.extend(_job_name(run, task, uid) for uid in task.failed_jobs)
    if task.execution:
        view.execution.CopyFrom(execution(run, task))
    for key, artifacts in task.inputs.artifacts.items():
        view.inputs[key].artifacts.extend(map(artifact, artifacts))
    for key, artifacts in task.outputs.artifacts.items():
        view.outputs[key].artifacts.extend(map(artifact, artifacts))


def task_id(number: int) -> int:
    """Return the public ID of a task. IDs are positive, because 0 means that a task has no parent."""
    return number + 1


def task_name(run: JobName, task: TaskRun) -> str:
    """Return the public name of a task: its key in the template. The root has the ID of the pipeline job."""
    if task.number == ROOT:
        return run.job_id
    return task.name if task.iteration < 0 else f"{task.name}-{task.iteration}"


def execution(run: JobName, task: TaskRun) -> Message:
    """Return the message of a task's execution. Its metadata contains the task's parameters as `input:KEY`
    and `output:KEY`."""
    inputs = {f"input:{key}": value for key, value in task.inputs.parameters.items()}
    outputs = {f"output:{key}": value for key, value in task.outputs.parameters.items()}
    view = message(
        "Execution",
        name=execution_name(run, task.number),
        display_name=task_name(run, task)[:MAX_NAME],
        schema_title="system.Run" if task.number == ROOT else _EXECUTION_SCHEMAS[task.kind],
        schema_version="0.0.1",
        state=_EXECUTION_STATES.get(task.state, "RUNNING"),
    )
    view.metadata.update(_limit(inputs | outputs))
    return view


def artifact(record: Artifact) -> Message:
    view = message(
        "Artifact",
        name=record.name,
        display_name=record.display_name[:MAX_NAME],
        uri=record.uri,
        schema_title=record.type.schema_title,
        schema_version=record.type.schema_version,
        state="LIVE",
    )
    view.metadata.update(_limit(record.metadata))
    return view


def _limit(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """Return metadata without its largest values if all values together exceed `_MAX_METADATA`."""
    sizes = {key: len(wire_json.encode_text({key: value})) for key, value in metadata.items()}
    excess = sum(sizes.values()) - _MAX_METADATA
    kept = dict(metadata)
    for key in sorted(sizes, key=lambda key: -sizes[key]) if excess > 0 else ():
        if excess > 0:
            excess -= sizes[key]
            del kept[key]
    return kept


def _set_error(view: Any, error: JobError) -> None:
    view.code = error.code
    view.message = error.message


def _job_name(run: JobName, task: TaskRun, uid: JobUid) -> str:
    return sibling_name(run, uid, task.collection)

"""Jobs, timelines and lines as plain JSON of ours, for the command line and the console.

Times are RFC 3339 texts in UTC, "" where the moment has not come.

Job summary: `name, api, uid, project, jobId, displayName, state, createTime, startTime, endTime,
updateTime, labels`, and `error {code, message}` once there is one.
Job description: the summary; `attempt` and its `phase`; `rule`, the row of the failure table that decided the end ("" before);
`waiting`, why it has no room, null if it has (`room_views`); `waits`, the same, or what a job that is not running yet waits
for, as texts; `failure`, the typed facts beside the public error, null or `{rule, cause, replica, task, status, reason,
tail}`; `retries` so far, by rule; `replicas`, each `{id, task, state, node, incarnation, startTime, restarts, leaving,
exit}` with `restarts` in this attempt by rule, `leaving` why it was asked to leave its node, and `exit` null or `{exitCode,
signal, outOfMemory, startTime, endTime, logLines}`; `resource`, the public resource.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainshed.api.aiplatform_v1 import views as vertex
from trainshed.api.ml_v1 import views as ml
from trainshed.api.timestamps import text_micros, text_nanos
from trainshed.api.trainshed_v1.room_views import waiting_view
from trainshed.core.capacity import Waiting
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import ExitRecord, Job, Replica
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, ReplicaId, log_task_name
from trainshed.store.logs.lines import LogLine
from trainshed.wire import json as wire_json

_WAITING: Final[Mapping[JobState, frozenset[str]]] = {
    JobState.QUEUED: frozenset({"waiting"}),
    JobState.PREPARING: frozenset({"waiting", "admitted", "attempt", "preparing", "launching"}),
}
"""Kinds of timeline entries that say what a job in this state waits for."""


def summary(job: Job) -> dict[str, Any]:
    view: dict[str, Any] = {
        "name": str(job.name),
        "api": job.name.api.value,
        "uid": str(job.uid),
        "project": job.name.project_id,
        "jobId": job.name.job_id,
        "displayName": job.display_name,
        "state": job.state.value,
        "createTime": text_micros(job.created),
        "startTime": text_micros(job.started),
        "endTime": text_micros(job.ended),
        "updateTime": text_micros(job.updated),
        "labels": dict(job.labels),
    }
    if job.error is not None:
        view["error"] = {"code": job.error.code, "message": job.error.message}
    return view


def description(
    job: Job,
    etag: str,
    timeline: Sequence[TimelineEntry],
    waiting: Waiting | None = None,
    position: int = 0,
) -> dict[str, Any]:
    """`waiting` and `position`: what is said of the job's room now."""
    return summary(job) | {
        "attempt": job.attempt,
        "phase": job.phase.value,
        "rule": job.outcome.rule if job.outcome else "",
        "waiting": waiting_view(waiting, position) if waiting else None,
        "waits": _waits(job, timeline, waiting),
        "failure": _failure(job),
        "retries": dict(job.retries),
        "replicas": [_replica(job, replica) for replica in _replicas(job)],
        "resource": _resource(job, etag, position),
    }


def timeline_entry(entry: TimelineEntry) -> dict[str, Any]:
    return {
        "at": text_micros(entry.at),
        "kind": entry.kind,
        "message": entry.message,
        "details": entry.details,
    }


def log_line(api: Api, line: LogLine) -> dict[str, Any]:
    """`n` counts the lines of a replica's attempt from 0; `at` has nanoseconds."""
    return {
        "at": text_nanos(line.at),
        "replica": str(line.replica),
        "task": log_task_name(api, line.replica),
        "attempt": line.attempt,
        "severity": line.severity.value,
        "message": line.text,
        "n": line.n,
    }


def _resource(job: Job, etag: str, position: int) -> dict[str, Any]:
    if job.name.api is Api.VERTEX:
        return wire_json.to_public(vertex.custom_job(job))
    message = ml.job(job, etag, position)
    return wire_json.to_public(message)


def _replicas(job: Job) -> tuple[Replica, ...]:
    """The current attempt's replicas; before the first attempt those that there will be."""
    return job.replicas or tuple(Replica(replica) for replica in job.spec.replicas())


def _replica(job: Job, replica: Replica) -> dict[str, Any]:
    return {
        "id": str(replica.id),
        "task": log_task_name(job.name.api, replica.id),
        "state": replica.state.value,
        "node": replica.node,
        "incarnation": replica.incarnation,
        "startTime": text_micros(replica.started),
        "restarts": dict(replica.restarts),
        "leaving": replica.leaving,
        "exit": _exit(replica.exit) if replica.exit else None,
    }


def _exit(record: ExitRecord) -> dict[str, Any]:
    return {
        "exitCode": record.exit_code,
        "signal": record.signal,
        "outOfMemory": record.oom,
        "startTime": text_micros(record.started),
        "endTime": text_micros(record.ended),
        "logLines": record.log_lines,
    }


def _failure(job: Job) -> dict[str, Any] | None:
    """The facts of the error that the job has, or will have when the last of it is down."""
    decided = job.outcome
    error = job.error or (decided.error if decided else None)
    if decided is None or error is None:
        return None
    return {
        "rule": decided.rule,
        "cause": error.cause,
        "replica": error.replica,
        "task": log_task_name(job.name.api, ReplicaId.parse(error.replica))
        if error.replica
        else "",
        "status": error.status,
        "reason": error.reason,
        "tail": error.tail,
    }


def _waits(job: Job, timeline: Sequence[TimelineEntry], waiting: Waiting | None) -> list[str]:
    """Why the job has no room, or what the timeline last said about what it waits for before it runs."""
    if waiting is not None:
        return [text for text in (waiting.message, waiting.hint) if text]
    kinds = _WAITING.get(job.state, frozenset())
    return [entry.message for entry in timeline if entry.kind in kinds][-1:]

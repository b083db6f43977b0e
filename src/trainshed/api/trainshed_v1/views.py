"""Jobs, timelines and lines as plain JSON of ours, for the command line and the console.

Times are RFC 3339 texts in UTC, "" where the moment has not come.

Job summary: `name, api, uid, project, jobId, displayName, state, createTime, startTime, endTime,
updateTime, labels`, and `error {code, message}` once there is one.
Job description: the summary; `attempt`; `rule`, the row of the failure table that decided the end ("" before);
`waits`, what a job that is not running yet waits for (texts); `replicas`, each `{id, task, state,
node, incarnation, startTime, exit}` with `exit` null or `{exitCode, signal, outOfMemory, startTime, endTime,
logLines}`; `resource`, the public resource.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainshed.api.aiplatform_v1 import views as vertex
from trainshed.api.ml_v1 import views as ml
from trainshed.api.timestamps import text_micros, text_nanos
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import ExitRecord, Job, Replica
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, log_task_name
from trainshed.store.logs.lines import LogLine
from trainshed.wire import json as wire_json

_WAITING: Final[Mapping[JobState, frozenset[str]]] = {
    JobState.QUEUED: frozenset({"waiting"}),
    JobState.PREPARING: frozenset({"waiting", "admitted", "preparing", "launching"}),
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


def description(job: Job, etag: str, timeline: Sequence[TimelineEntry]) -> dict[str, Any]:
    return summary(job) | {
        "attempt": job.attempt,
        "rule": job.outcome.rule if job.outcome else "",
        "waits": _waits(job, timeline),
        "replicas": [_replica(job, replica) for replica in _replicas(job)],
        "resource": _resource(job, etag),
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


def _resource(job: Job, etag: str) -> dict[str, Any]:
    message = vertex.custom_job(job) if job.name.api is Api.VERTEX else ml.job(job, etag)
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


def _waits(job: Job, timeline: Sequence[TimelineEntry]) -> list[str]:
    """What the timeline last said about what a job that is not running yet waits for."""
    kinds = _WAITING.get(job.state, frozenset())
    return [entry.message for entry in timeline if entry.kind in kinds][-1:]

"""Converts jobs, tuning jobs, pipelines, timelines and log lines to the records of `/trainshed/v1`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from msgspec import UNSET, structs

from trainshed.api.aiplatform_v1.views import sibling_name
from trainshed.core.capacity import Waiting
from trainshed.core.curves import thin
from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Outcome, Replica, person_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, ReplicaId, log_task_name
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import Measurement, Trial
from trainshed.core.terminals import Autopsy
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import text_micros, text_nanos
from trainshed.core.works import Work
from trainshed.store.logs.lines import LogLine
from trainshed.wire.trainshed_v1 import capacity, timeline
from trainshed.wire.trainshed_v1 import jobs as records

_WAITING_KINDS: Final[Mapping[JobState, frozenset[str]]] = {
    JobState.QUEUED: frozenset({"waiting"}),
    JobState.PREPARING: frozenset({"waiting", "admitted", "attempt", "preparing", "launching", "delayed"}),
}
"""For each state of a job, the kinds of timeline entries that explain why the job is not running yet."""


def summary(job: Work) -> records.JobSummary:
    parent, outcome = (None, None) if isinstance(job, Pipeline) else (job.parent, job.outcome)
    machine_types, accelerators = machines(job)
    return records.JobSummary(
        name=str(job.name),
        api=job.name.api.value,
        kind=_kind(job),
        parent=str(parent.name) if parent else "",
        trial=parent.trial if parent else 0,
        uid=str(job.uid),
        project=job.name.project_id,
        job_id=job.name.job_id,
        display_name=job.display_name,
        user=person_of(job.creator),
        state=job.state.value,
        create_time=text_micros(job.created),
        start_time=text_micros(job.started),
        end_time=text_micros(job.ended),
        update_time=text_micros(job.updated),
        labels=dict(job.labels),
        rule=outcome.rule if outcome else "",
        machines=machine_types,
        accelerators=accelerators,
        error=records.JobError(code=job.error.code, message=job.error.message, reason=job.error.reason or "")
        if job.error is not None
        else UNSET,
    )


def machines(work: Work) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the numbers of requested machines and accelerators by type. For a tuning job, return those of
    each trial. For a pipeline, return nothing, because its jobs have them."""
    types, devices = Counter[str](), Counter[str]()
    if not isinstance(work, Pipeline | PipelineJob):
        for pool in (work.spec if isinstance(work, Job) else work.spec.trial).pools:
            types[pool.machine.type] += pool.replica_count
            if accelerators := pool.machine.accelerators:
                devices[accelerators.type] += accelerators.count * pool.replica_count
    return types, devices


def description(
    work: Work, waiting: Waiting | None, position: int, waits: Sequence[str]
) -> records.JobDescription:
    """Return the description of a job, tuning job or pipeline, without the public resource and without fields
    that exist only for one kind. `waiting`, `position`: the current reason for waiting, and position in the
    queue."""
    outcome = work.outcome
    return records.JobDescription(
        **structs.asdict(summary(work)),
        waiting=waiting_view(waiting, position) if waiting else None,
        waits=tuple(waits),
        failure=_failure(work, outcome),
    )


def with_replicas(
    view: records.JobDescription,
    job: Job,
    autopsies: Sequence[Autopsy],
    links: Mapping[str, str],
    pages: Mapping[str, str],
) -> records.JobDescription:
    """Return the description with the fields that only jobs with replicas have. `autopsies`: kept files of
    failed replicas. `links`: links to the shells of running replicas, by replica name. `pages`: addresses of
    the job's web pages, by name."""
    # Before the first attempt, show the replicas that the job will have.
    replicas = job.replicas or tuple(map(Replica, job.spec.replicas()))
    return structs.replace(
        view,
        substitutions=job.spec.substitutions,
        attempt=job.attempt,
        retries=dict(job.retries),
        replicas=tuple(_replica(job, replica) for replica in replicas),
        autopsies=tuple(
            records.KeptAutopsy(
                replica=str(autopsy.replica),
                task=log_task_name(job.name.api, autopsy.replica),
                attempt=autopsy.attempt,
                expire_time=text_micros(autopsy.expires),
            )
            for autopsy in autopsies
        ),
        web_access_uris=dict(links),
        pages=dict(pages),
    )


def timeline_entry(entry: TimelineEntry) -> timeline.TimelineEntry:
    return timeline.TimelineEntry(
        at=text_micros(entry.at), kind=entry.kind, message=entry.message, details=dict(entry.details)
    )


def paged_line(api: Api, line: LogLine) -> timeline.PagedLine:
    return timeline.PagedLine(
        at=text_nanos(line.at),
        replica=str(line.replica),
        task=log_task_name(api, line.replica),
        attempt=line.attempt,
        severity=line.severity.value,
        message=line.text,
        n=line.n,
        place=str(line.cursor),
    )


def _kind(work: Work) -> str:
    match work:
        case Job():
            return "custom"
        case TuningJob():
            return "tuning"
        case Pipeline():
            return "pipeline"
        case PipelineJob():
            return "pipeline_job"
        case _:
            assert_never(work)


def _replica(job: Job, replica: Replica) -> records.Replica:
    return records.Replica(
        id=str(replica.id),
        task=log_task_name(job.name.api, replica.id),
        state=replica.state.value,
        node=replica.node or "",
        incarnation=replica.incarnation,
        start_time=text_micros(replica.started),
        restarts=dict(replica.restarts),
        leaving=replica.leaving or "",
        began=replica.began or "",
        exit=_exit(replica.exit) if replica.exit else None,
    )


def _exit(record: ExitRecord) -> records.ReplicaExit:
    return records.ReplicaExit(
        exit_code=record.exit_code,
        signal=record.signal,
        out_of_memory=record.oom,
        stopped=record.stopped,
        start_time=text_micros(record.started),
        end_time=text_micros(record.ended),
        log_lines=record.log_lines,
    )


def _failure(work: Work, outcome: Outcome | None) -> records.Failure | None:
    """Return the facts about the error of a job, tuning job or pipeline. The error may be decided but not
    published yet."""
    error = work.error or (outcome.error if outcome else None)
    if error is None:
        return None
    replica = ReplicaId.parse(error.replica) if error.replica else None
    return records.Failure(
        rule=outcome.rule if outcome else "",
        cause=error.cause or "",
        replica=error.replica or "",
        task=log_task_name(work.name.api, replica) if replica else "",
        status=error.status,
        reason=error.reason or error.message.partition("\n")[0],
        tail=error.tail,
        advice=error.advice or "",
    )


def waiting_texts(job: Job, timeline: Sequence[TimelineEntry], waiting: Waiting | None) -> list[str]:
    """Return the reasons why the job waits for capacity, or else the last entry in the timeline that explains
    why the job is not running yet."""
    if waiting is not None:
        return [text for text in (waiting.message, waiting.hint) if text]
    kinds = _WAITING_KINDS.get(job.state, frozenset())
    return [entry.message for entry in timeline if entry.kind in kinds][-1:]


def waiting_view(waiting: Waiting, position: int) -> capacity.Waiting:
    return capacity.Waiting(
        reason=waiting.reason.value,
        message=waiting.message,
        hint=waiting.hint or "",
        blockers=tuple(waiting.blockers),
        position=waiting.position or position,
        expected_time=text_micros(waiting.expected or 0),
    )


_MAX_POINTS: Final = 60
"""Maximum number of points of a curve. A screen cannot show more points."""


def tuning_view(job: TuningJob) -> records.Tuning:
    spec = job.spec.study
    return records.Tuning(
        metric=spec.metrics[0].id,
        goal=spec.metrics[0].goal.value,
        algorithm=spec.algorithm.value,
        max_trials=job.spec.max_trials,
        parallel_trials=job.spec.parallel_trials,
        first_trial=job.spec.first_trial,
        replicas=len(job.spec.trial.replicas()),
        succeeded=job.succeeded,
        infeasible=job.infeasible,
        failed=job.failed,
        running=len(job.running),
        best=job.best,
        best_value=job.best_value if job.best else None,
        exhausted=job.exhausted,
        stopping="median" if spec.median_stopping else "",
    )


def trial_view(
    job: TuningJob, trial: Trial, measured: Sequence[Measurement], state: JobState | None
) -> records.Trial:
    """Return the view of a trial. `measured`: in ascending order of step. `state`: the state of the trial's
    job; None = the job was deleted."""
    metric = job.spec.study.metrics[0].id
    final = trial.final
    curve = [(m.step, value) for m in measured if (value := m.value(metric)) is not None]
    stopping = {running.number: running.stopping for running in job.running}.get(trial.number, "")
    return records.Trial(
        number=trial.number,
        state=trial.state.value,
        parameters=dict(trial.parameters),
        value=final.value(metric) if final else None,
        step=final.step if final else 0,
        metrics=dict(final.metrics) if final else {},
        create_time=text_micros(trial.created),
        start_time=text_micros(trial.started),
        end_time=text_micros(trial.ended),
        job=trial_job_name(job, trial),
        job_state=state.value if state else "",
        stopped_early=trial.stopped_early,
        reason=trial.infeasible_reason or stopping or "",
        curve=tuple(curve[place] for place in thin([value for _, value in curve], _MAX_POINTS)),
    )


def trial_job_name(job: TuningJob, trial: Trial) -> str:
    """Return the public name of a trial's job."""
    if job.name.api is Api.ML:
        return str(job.name.of_trial(trial.number))
    return sibling_name(job.name, trial.job, Collection.CUSTOM_JOBS)


def pipeline_job_view(job: PipelineJob) -> records.PipelineJob:
    return records.PipelineJob(
        template=job.template, root=job.root, schedule=job.schedule or "", tasks=structs.asdict(job.counts)
    )


def pipeline_view(pipeline: Pipeline, job: str, state: JobState | None) -> records.Pipeline:
    """Return the view of a pipeline. `job`: the name of the pipeline's job. `state`: the state of that job;
    None = the job was deleted."""
    return records.Pipeline(
        task=pipeline.spec.task.value,
        job=job,
        job_state=state.value if state else "",
        model=pipeline.model or "",
    )

"""AI Platform Training, `ml` v1 (facts/resources#ml): projects.jobs (create, get, list, cancel, and patch of
labels), and projects.getConfig.

A job with hyperparameters is a tuning job, and each of its trials is a job of its own, `JOB.TRIAL`, which can
be read and cancelled but is not listed.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.calls.call import Call, Handlers, sent
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import list_jobs, page_size
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.registry import Checks
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.resources.jobs import (
    add_to_trials,
    cancel_work,
    links_of,
    queue_position,
    read_job_name,
    with_link,
)
from trainshed.api.resources.submission import (
    BucketUse,
    check_labels,
    checked,
    new_job,
    store_works,
)
from trainshed.core.catalog.machines import consumed_units, units_per_hour
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, JobName, project_number
from trainshed.core.pipelines import Pipeline
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.ml import parse_job
from trainshed.core.specs.syntax import read_labels
from trainshed.core.study.records import Trial, TrialState
from trainshed.core.study.spec import Goal, Metric
from trainshed.core.tuning.records import TuningJob, TuningSpec
from trainshed.core.tuning.trial_jobs import printed
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.JobService"
_ACCOUNT: Final = "trainshed@localhost"
"""It stands for the service."""
_DEFAULT_PAGE: Final = 20
_LARGEST_PAGE: Final = 100
_RESUME: Final = "hyperparameters.resume_previous_job_id"


def check_create(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> JobDraft[JobSpec | TuningSpec]:
    """Return the job to create. Raises InvalidRequest with all faults, including those in `further`."""
    services = call.services
    public = sent(call, request, "job")
    return checked(
        lambda: parse_job(
            public, runtimes=services.runtimes, max_trials=services.settings.max_study_trials
        ),
        _bucket_uses(public),
        services.buckets,
        further,
        project=ProjectName.parse(request.parent).project_id,
    )


async def asked_for(call: Call, request: Any) -> JobDraft[Any]:
    """Return the job to create, after all checks. Raises InvalidRequest with all faults."""
    _, further = await _resumed(call, request)
    return check_create(call, request, further)


async def create(call: Call, request: Any) -> Message:
    services = call.services
    resumed, further = await _resumed(call, request)
    # `public` was made of the request as it came.
    call = call if resumed is None else replace(call, public=None)
    draft = check_create(call, request, further)
    if isinstance(draft.spec, TuningSpec):
        draft = replace(draft, spec=_resuming(draft.spec, resumed))
    name = JobName(Api.ML, ProjectName.parse(request.parent).project_id, "", draft.display_name)
    made = new_job(services, services.new_uid(), name, draft, sent(call, request, "job"))
    await store_works(services, call.principal, made)
    # Read again for the etag, which only the store can make.
    work, etag = await services.reader.job(made.name)
    set_outputs(request.job, work, etag, evidence=NOTHING_TRIED)
    return request.job


async def get(call: Call, request: Any) -> Message:
    work, etag = await call.services.reader.job(_job_name(request.name))
    return await _view(call, work, etag)


async def list_(call: Call, request: Any) -> Message:
    parent = ProjectName.parse(request.parent)
    wanted = compile_job_filter(request.filter, STATES)
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_LARGEST_PAGE)
    page = await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.ML, None, limit=size),
        wanted,
        token=request.page_token,
        question=(str(parent), request.filter),
    )
    return pool.message(
        "google.cloud.ml.v1.ListJobsResponse",
        jobs=[await _view(call, work, etag, in_list=True) for work, etag in page.jobs],
        next_page_token=page.next_token,
    )


async def cancel(call: Call, request: Any) -> Message:
    work, _ = await call.services.reader.job(_job_name(request.name))
    await cancel_work(call.services, call.principal, work)
    return pool.message("google.protobuf.Empty")


async def update(call: Call, request: Any) -> Message:
    """Replace the labels, which are all that can change. `job.etag` guards against a lost update. What is
    stored already is not checked again: a notification target may be there no longer."""
    name = _job_name(request.name)
    if "labels" not in read_update_mask(request.update_mask.paths, ("labels", "etag")):
        text = "Only labels can be updated: give updateMask=labels."
        raise InvalidRequest((Violation("update_mask", text),))
    faults = Faults()
    labels = read_labels(Section({"labels": dict(request.job.labels)}, "", faults))
    faults.refuse()
    services = call.services
    work, _ = await services.reader.job(name)
    check_labels(services, set(labels) - set(work.labels))
    etag = base64.b64encode(request.job.etag).decode()
    changed = await services.intake.replace_labels(name, labels, etag, services.now())
    services.notices.publish(changed.uid)
    # The controller has a running job's labels in memory, and goes by them: who is notified, for instance.
    services.wake(changed.uid)
    work, etag = await services.reader.job(name)
    return await _view(call, work, etag)


async def get_config(call: Call, request: Any) -> Message:
    project = ProjectName.parse(request.name, field="name")
    response: Any = pool.message(
        "google.cloud.ml.v1.GetConfigResponse",
        service_account=_ACCOUNT,
        service_account_project=project_number(project.project_id),
    )
    response.config.tpu_service_account = _ACCOUNT
    return response


async def list_operations(call: Call, request: Any) -> Message:
    """Return none: training jobs make no operations. `gcloud ai-platform operations list` asks for them."""
    ProjectName.parse(request.name, field="name")
    return pool.message("google.longrunning.ListOperationsResponse")


async def get_operation(call: Call, request: Any) -> Message:
    raise NotFound(f"{request.name} does not exist: training jobs have no operations")


HANDLERS: Final[Handlers] = {
    "google.cloud.ml.v1.Operations.ListOperations": list_operations,
    "google.cloud.ml.v1.Operations.GetOperation": get_operation,
    "google.cloud.ml.v1.ProjectManagementService.GetConfig": get_config,
    f"{_SERVICE}.CreateJob": create,
    f"{_SERVICE}.GetJob": get,
    f"{_SERVICE}.ListJobs": list_,
    f"{_SERVICE}.CancelJob": cancel,
    f"{_SERVICE}.UpdateJob": update,
}


def _check_alone(call: Call, request: Any) -> None:
    # What a resumed search leaves out only the store knows.
    if not request.job.training_input.hyperparameters.resume_previous_job_id:
        check_create(call, request)


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateJob": _check_alone}


def _job_name(text: str) -> JobName:
    name = read_job_name(text)
    if name.api is not Api.ML:
        raise NotFound(f"Job {text!r} was not found: it is the name of one of Vertex AI.")
    return name


async def _resumed(call: Call, request: Any) -> tuple[TuningJob | None, tuple[Violation, ...]]:
    """Return the tuning job that a new one resumes, and violations if that cannot be done. What the request
    leaves out of the search is put in as it was before (facts/tuning#ml)."""
    search = request.job.training_input.hyperparameters
    if not search.resume_previous_job_id:
        return None, ()
    project = ProjectName.parse(request.parent).project_id
    name = JobName(Api.ML, project, "", search.resume_previous_job_id)
    try:
        work, _ = await call.services.reader.job(name)
    except NotFound:
        return None, (Violation(_RESUME, f"{name} does not exist; name a job of this project."),)
    if not isinstance(work, TuningJob):
        text = f"{name} did not tune hyperparameters, so it cannot be resumed."
        return None, (Violation(_RESUME, text),)
    if not work.state.is_final:
        text = f"{name} is {work.state}. Wait until it finishes, or cancel it, and submit again."
        return None, (Violation(_RESUME, text),)
    previous: Any = job_view(work, "")
    before = previous.training_input.hyperparameters
    search.params.extend(() if search.params else before.params)
    for field in ("goal", "hyperparameter_metric_tag", "algorithm"):
        setattr(search, field, getattr(search, field) or getattr(before, field))
    return work, ()


def _resuming(spec: TuningSpec, previous: TuningJob | None) -> TuningSpec:
    """Return the specification with what was tried before it. Raises InvalidRequest if that was another
    search."""
    if previous is None:
        return spec
    before = previous.spec.study
    same = {
        "the parameters": spec.study.parameters == before.parameters,
        "the metric and its goal": spec.study.metrics == before.metrics,
    }
    differing = [words for words, alike in same.items() if not alike]
    if differing:
        text = (
            f"{previous.name} was another search: {' and '.join(differing)} must be the same in both jobs. "
            "Use the same values, or omit the field."
        )
        raise InvalidRequest((Violation(_RESUME, text),))
    return replace(
        spec, resumed=(*previous.spec.resumed, previous.study), first_trial=previous.next_trial
    )


async def _view(call: Call, work: Work, etag: str, *, in_list: bool = False) -> Message:
    """Return the Job message with a tuning job's trials. A list does not read the trials' jobs, of which
    there may be very many: it shows the state of each trial as its study knows it."""
    services, evidence = call.services, NOTHING_TRIED
    if isinstance(work, TuningJob):
        trials = await services.studies.history((work.study,))
        children = () if in_list else await services.reader.children(work.uid)
        evidence = Evidence(trials, tuple(job for job in children if isinstance(job, Job)))
    shown = with_link(services, work)
    view: Any = job_view(shown, etag, queue_position(services.capacity, work), evidence)
    if view.training_input.enable_web_access:
        if isinstance(work, Job):
            links = links_of(services, call.principal, work)
            view.training_output.web_access_uris.update(links)
        elif isinstance(work, TuningJob):
            add_to_trials(call, work, view.training_output.trials)
    return view


def _bucket_uses(public: Mapping[str, Any]) -> Iterator[BucketUse]:
    training = public.get("trainingInput", {})
    for index, uri in enumerate(training.get("packageUris", ())):
        yield f"package_uris[{index}]", uri
    yield "job_dir", training.get("jobDir", "")


STATES: Final[Mapping[str, JobState | None]] = {
    **{state.value: state for state in JobState},
    "STATE_UNSPECIFIED": None,
}
"""Public state names; None for the one that no job here is ever in."""

JOB: Final = "google.cloud.ml.v1.Job"


class Evidence(Struct, frozen=True):
    """A tuning job's trials, and, if they were read, the jobs that evaluate them; in any order."""

    trials: Sequence[Trial] = ()
    jobs: Sequence[Job] = ()


NOTHING_TRIED: Final = Evidence()


def job_view(
    record: Work, etag: str, position: int = 0, evidence: Evidence = NOTHING_TRIED
) -> Message:
    """Return the Job message of a stored job; `etag` as the store gives it. `position`: its place in the
    queue, 0 = none. `evidence`: what a tuning job has tried."""
    view = wire_json.from_public(JOB, json.loads(record.public_json))
    set_outputs(view, record, etag, position, evidence)
    return view


def set_outputs(
    view: Any, record: Work, etag: str, position: int = 0, evidence: Evidence = NOTHING_TRIED
) -> None:
    view.job_position = position
    view.state = record.state.value
    view.etag = base64.b64decode(etag)
    set_micros(view.create_time, record.created)
    set_micros(view.start_time, record.started)
    set_micros(view.end_time, record.ended)
    # Programs read `trainingOutput` of a job in any state: it is `{}` until there is a result.
    view.training_output.SetInParent()
    if isinstance(record, TuningJob):
        _set_tuning_output(view.training_output, record, evidence)
    elif isinstance(record, Job) and record.ended:
        view.training_output.consumed_ml_units = _consumed(
            record.spec, record.started, record.ended
        )
    if message := _error_message(record):
        view.error_message = message
    view.labels.clear()
    view.labels.update(dict(record.labels))


def _set_tuning_output(output: Any, record: TuningJob, evidence: Evidence) -> None:
    """Set the trials: finished ones first, the best of them at the top, then those without a result, then
    those that run (facts/resources#ml)."""
    output.is_hyperparameter_tuning_job = True
    metric = record.spec.study.metrics[0]
    output.hyperparameter_metric_tag = metric.id
    output.completed_trial_count = record.succeeded
    states = {job.parent.trial: job.state for job in evidence.jobs if job.parent is not None}
    for trial in sorted(evidence.trials, key=lambda trial: _rank(trial, metric)):
        _set_trial(output.trials.add(), trial, metric, states.get(trial.number))
    if record.ended:
        trials = (
            _consumed(record.spec.trial, trial.started, trial.ended or record.ended)
            for trial in evidence.trials
        )
        output.consumed_ml_units = round(sum(trials), 2)


def _consumed(spec: JobSpec, started: int, ended: int) -> float:
    """Return the ML units that a job used between two moments in nanoseconds; `started` 0 = it never ran."""
    nodes: list[float] = []
    for pool_ in spec.pools:
        devices = pool_.machine.accelerators
        rate = units_per_hour(
            pool_.machine.type, devices.type if devices else "", devices.count if devices else 0
        )
        nodes += [rate] * pool_.replica_count
    return consumed_units(nodes, ended - started if started else 0)


def _rank(trial: Trial, metric: Metric) -> tuple[int, float, int]:
    """Return a sort key: the best first, then those that ended without a result, then those that run; of
    equals the earlier one."""
    value = trial.final.value(metric.id) if trial.final is not None else None
    if value is None:
        return (1 if trial.state.is_over else 2, 0.0, trial.number)
    return (0, -value if metric.goal is Goal.MAXIMIZE else value, trial.number)


def _set_trial(view: Any, trial: Trial, metric: Metric, job: JobState | None) -> None:
    view.trial_id = str(trial.number)
    for name, value in trial.parameters:
        view.hyperparameters[name] = printed(value)
    value = trial.final.value(metric.id) if trial.final is not None else None
    if trial.final is not None and value is not None:
        view.final_metric.training_step = trial.final.step
        view.final_metric.objective_value = value
    view.is_trial_stopped_early = trial.stopped_early
    view.state = _trial_state(trial, job).value
    set_micros(view.start_time, trial.started)
    set_micros(view.end_time, trial.ended)


def _trial_state(trial: Trial, job: JobState | None) -> JobState:
    """Return a trial's state as a job's state: that of its own job if it is known, except for one that ended
    without a result."""
    if trial.state is TrialState.SUCCEEDED:
        return JobState.SUCCEEDED
    if trial.state is TrialState.INFEASIBLE:
        return JobState.CANCELLED if job is JobState.CANCELLED else JobState.FAILED
    return job or JobState.RUNNING


def _error_message(record: Work) -> str:
    """Return what went wrong, or, from the moment a cancellation is decided, its reason."""
    if record.error is not None:
        return record.error.message
    decided = None if isinstance(record, Pipeline) else record.outcome
    if record.state is JobState.CANCELLING and decided is not None and decided.error is not None:
        return decided.error.message
    return ""

"""AI Platform Training, `ml` v1 (facts/resources#ml): the methods create, get, list, cancel and patch
(labels) of projects.jobs, and projects.getConfig.

A job with hyperparameters is a tuning job. Each of its trials is a separate job, `JOB.TRIAL`. Clients can
read and cancel this job, but it is not listed.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.api.calls.call import Call, Handlers, public_field
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import list_jobs, page_size
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.registry import Checks
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.filters.jobs import compile_job_filter
from trainshed.api.resources.dependencies import check_unchanged
from trainshed.api.resources.jobs import (
    add_to_trials,
    cancel_work,
    links_of,
    queue_position,
    read_job_name,
    with_link,
)
from trainshed.api.resources.submission import BucketUse, check_and_parse, check_labels, new_job, store_works
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
from trainshed.core.tuning.trial_jobs import format_argument
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.JobService"
_ACCOUNT: Final = "trainshed@localhost"
"""The service account that represents the service itself."""
_DEFAULT_PAGE_SIZE: Final = 20
_MAX_PAGE_SIZE: Final = 100
_RESUME: Final = "hyperparameters.resume_previous_job_id"


def check_create(
    call: Call, request: Any, further: tuple[Violation, ...] = ()
) -> JobDraft[JobSpec | TuningSpec]:
    """Return the job to create. Raises InvalidRequest with all errors, including `further`."""
    services = call.services
    public = public_field(call, request, "job")
    return check_and_parse(
        lambda: parse_job(public, runtimes=services.runtimes, max_trials=services.settings.max_study_trials),
        _bucket_uses(public),
        services.buckets,
        further,
        project=ProjectName.parse(request.parent).project_id,
    )


async def requested_job(call: Call, request: Any) -> JobDraft[Any]:
    """Return the job to create after all checks, including checks that read the store. Raises InvalidRequest
    with all errors."""
    _, further = await _resumed_job(call, request)
    return check_create(call, request, further)


async def create(call: Call, request: Any) -> Message:
    services = call.services
    resumed, further = await _resumed_job(call, request)
    # Clear `public`, so that the request is converted again. It contains the original request, without the
    # values of the resumed job.
    call = call if resumed is None else replace(call, public=None)
    draft = check_create(call, request, further)
    if isinstance(draft.spec, TuningSpec):
        draft = replace(draft, spec=_with_resumed_studies(draft.spec, resumed))
    name = JobName(Api.ML, ProjectName.parse(request.parent).project_id, "", draft.display_name)
    made = new_job(services, services.new_uid(), name, draft, public_field(call, request, "job"))
    await store_works(services, call.principal, made)
    # Read the stored job, because only the store computes the etag.
    work, etag = await services.reader.job(made.name)
    set_outputs(request.job, work, etag, trial_records=NO_TRIALS)
    return request.job


async def get(call: Call, request: Any) -> Message:
    work, etag = await call.services.reader.job(_job_name(request.name))
    return await _view(call, work, etag)


async def list_(call: Call, request: Any) -> Message:
    parent = ProjectName.parse(request.parent)
    job_filter = compile_job_filter(request.filter, STATES)
    size = page_size(request.page_size, default=_DEFAULT_PAGE_SIZE, maximum=_MAX_PAGE_SIZE)
    page = await list_jobs(
        call.services.reader,
        JobQuery(parent.project_id, Api.ML, None, limit=size),
        job_filter,
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
    """Replace the labels, which are the only fields that can change. `job.etag` prevents lost updates. Labels
    that stay the same are not checked again, because a notification target may no longer exist."""
    name = _job_name(request.name)
    if "labels" not in read_update_mask(request.update_mask.paths, ("labels", "etag")):
        text = "Only labels can be updated. Use updateMask=labels."
        raise InvalidRequest((Violation("update_mask", text),))
    faults = Faults()
    labels = read_labels(Section({"labels": dict(request.job.labels)}, "", faults))
    faults.refuse()
    services = call.services
    work, _ = await services.reader.job(name)
    check_labels(services, set(labels) - set(work.labels))
    check_unchanged(work, labels)
    etag = base64.b64encode(request.job.etag).decode()
    changed = await services.intake.replace_labels(name, labels, etag, services.now())
    services.notices.publish(changed.uid)
    # Notify the controller, because it holds the labels of running jobs in memory and uses them, for example
    # for notifications.
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
    """Return no operations, because training jobs have none. `gcloud ai-platform operations list` calls this
    method."""
    ProjectName.parse(request.name, field="name")
    return pool.message("google.longrunning.ListOperationsResponse")


async def get_operation(call: Call, request: Any) -> Message:
    raise NotFound(
        f"The operation {request.name} does not exist, because training jobs have no operations. Use "
        "projects.jobs.get to read the job."
    )


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


def _check_without_store(call: Call, request: Any) -> None:
    # Do not check a request that resumes a search, because only the store contains the values that the
    # request omits.
    if not request.job.training_input.hyperparameters.resume_previous_job_id:
        check_create(call, request)


CHECKS: Final[Checks] = {f"{_SERVICE}.CreateJob": _check_without_store}


def _job_name(text: str) -> JobName:
    name = read_job_name(text)
    if name.api is not Api.ML:
        raise NotFound(
            f"Job {text!r} was not found, because this is the name of a Vertex AI job. Use "
            "projects/PROJECT/jobs/JOB."
        )
    return name


async def _resumed_job(call: Call, request: Any) -> tuple[TuningJob | None, tuple[Violation, ...]]:
    """Return the tuning job that a new job resumes, and violations if that job cannot be resumed. None = the
    new job resumes no other job. The fields of the search that the request omits are copied from the resumed
    job (facts/tuning#ml)."""
    search = request.job.training_input.hyperparameters
    if not search.resume_previous_job_id:
        return None, ()
    project = ProjectName.parse(request.parent).project_id
    name = JobName(Api.ML, project, "", search.resume_previous_job_id)
    try:
        work, _ = await call.services.reader.job(name)
    except NotFound:
        return None, (Violation(_RESUME, f"{name} does not exist. Use a job of this project."),)
    if not isinstance(work, TuningJob):
        text = f"{name} is not a tuning job and cannot be resumed. Use a tuning job."
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


def _with_resumed_studies(spec: TuningSpec, previous: TuningJob | None) -> TuningSpec:
    """Return the specification of a tuning job that continues the search of the job `previous`. Raises
    InvalidRequest if that search had other parameters or metrics."""
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
            f"{previous.name} is a different search: {' and '.join(differing)} must be the same in both "
            "jobs. Use the same values, or omit the field."
        )
        raise InvalidRequest((Violation(_RESUME, text),))
    return replace(spec, resumed=(*previous.spec.resumed, previous.study), first_trial=previous.next_trial)


async def _view(call: Call, work: Work, etag: str, *, in_list: bool = False) -> Message:
    """Return the Job message with a tuning job's trials.

    In a list, each trial has the state from its study. The jobs of the trials are not read, because there may
    be very many.
    """
    services, trial_records = call.services, NO_TRIALS
    if isinstance(work, TuningJob):
        trials = await services.studies.history((work.study,))
        children = () if in_list else await services.reader.children(work.uid)
        trial_records = TrialRecords(trials, tuple(job for job in children if isinstance(job, Job)))
    shown = with_link(services, work)
    view: Any = job_view(shown, etag, queue_position(services.capacity, work), trial_records)
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
"""Job states by public name. None = jobs never have this state."""

JOB: Final = "google.cloud.ml.v1.Job"


class TrialRecords(Struct, frozen=True):
    """The trials of a tuning job, and the jobs that run them if they were read. Both are in any order."""

    trials: Sequence[Trial] = ()
    jobs: Sequence[Job] = ()


NO_TRIALS: Final = TrialRecords()


def job_view(record: Work, etag: str, position: int = 0, trial_records: TrialRecords = NO_TRIALS) -> Message:
    """Return the Job message of a stored job. `etag`: the job's etag from the store. `position`: the job's
    position in the queue; 0 = not in the queue. `trial_records`: the trials of a tuning job."""
    view = wire_json.from_public(JOB, json.loads(record.public_json))
    set_outputs(view, record, etag, position, trial_records)
    return view


def set_outputs(
    view: Any, record: Work, etag: str, position: int = 0, trial_records: TrialRecords = NO_TRIALS
) -> None:
    view.job_position = position
    view.state = record.state.value
    view.etag = base64.b64decode(etag)
    set_micros(view.create_time, record.created)
    set_micros(view.start_time, record.started)
    set_micros(view.end_time, record.ended)
    # Set `trainingOutput` to `{}` if there is no output, because clients read it for a job in any state.
    view.training_output.SetInParent()
    if isinstance(record, TuningJob):
        _set_tuning_output(view.training_output, record, trial_records)
    elif isinstance(record, Job) and record.ended:
        view.training_output.consumed_ml_units = _ml_units(record.spec, record.started, record.ended)
    if message := _error_message(record):
        view.error_message = message
    view.labels.clear()
    view.labels.update(dict(record.labels))


def _set_tuning_output(output: Any, record: TuningJob, trial_records: TrialRecords) -> None:
    """Set the trials in a tuning job's output: first the finished trials from best to worst, then trials
    without a result, then running trials (facts/resources#ml)."""
    output.is_hyperparameter_tuning_job = True
    metric = record.spec.study.metrics[0]
    output.hyperparameter_metric_tag = metric.id
    output.completed_trial_count = record.succeeded
    states = {job.parent.trial: job.state for job in trial_records.jobs if job.parent is not None}
    for trial in sorted(trial_records.trials, key=lambda trial: _sort_key(trial, metric)):
        _set_trial(output.trials.add(), trial, metric, states.get(trial.number))
    if record.ended:
        trials = (
            _ml_units(record.spec.trial, trial.started, trial.ended or record.ended)
            for trial in trial_records.trials
        )
        output.consumed_ml_units = round(sum(trials), 2)


def _ml_units(spec: JobSpec, started: int, ended: int) -> float:
    """Return the ML units that a job consumed. `started`, `ended`: times in nanoseconds; a start of 0 = the
    job never ran."""
    nodes: list[float] = []
    for pool_ in spec.pools:
        devices = pool_.machine.accelerators
        rate = units_per_hour(
            pool_.machine.type, devices.type if devices else "", devices.count if devices else 0
        )
        nodes += [rate] * pool_.replica_count
    return consumed_units(nodes, ended - started if started else 0)


def _sort_key(trial: Trial, metric: Metric) -> tuple[int, float, int]:
    """Return a sort key. It sorts finished trials from best to worst, then trials without a result, then
    running trials. Equal trials are sorted by number."""
    value = trial.final.value(metric.id) if trial.final is not None else None
    if value is None:
        return (1 if trial.state.is_over else 2, 0.0, trial.number)
    return (0, -value if metric.goal is Goal.MAXIMIZE else value, trial.number)


def _set_trial(view: Any, trial: Trial, metric: Metric, job: JobState | None) -> None:
    view.trial_id = str(trial.number)
    for name, value in trial.parameters:
        view.hyperparameters[name] = format_argument(value)
    value = trial.final.value(metric.id) if trial.final is not None else None
    if trial.final is not None and value is not None:
        view.final_metric.training_step = trial.final.step
        view.final_metric.objective_value = value
    view.is_trial_stopped_early = trial.stopped_early
    view.state = _trial_state(trial, job).value
    set_micros(view.start_time, trial.started)
    set_micros(view.end_time, trial.ended)


def _trial_state(trial: Trial, job: JobState | None) -> JobState:
    """Return the state of a trial as a job state. For an unfinished trial, this is the state of its job if
    known."""
    if trial.state is TrialState.SUCCEEDED:
        return JobState.SUCCEEDED
    if trial.state is TrialState.INFEASIBLE:
        return JobState.CANCELLED if job is JobState.CANCELLED else JobState.FAILED
    return job or JobState.RUNNING


def _error_message(record: Work) -> str:
    """Return the error message of a job. If a cancellation was decided but is not finished, return the reason
    for the cancellation."""
    if record.error is not None:
        return record.error.message
    decided = None if isinstance(record, Pipeline) else record.outcome
    if record.state is JobState.CANCELLING and decided is not None and decided.error is not None:
        return decided.error.message
    return ""

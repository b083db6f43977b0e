"""`aiplatform` v1 JobService: customJobs and hyperparameterTuningJobs (facts/resources#custom-jobs,
facts/resources#tuning-jobs, facts/tuning).

This module also contains the methods get, list, cancel and delete of pipelines (facts/resources#vertex). It
checks the buckets, secrets and experiments to which a job refers.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.aiplatform_v1 import operations, views
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handler, Handlers, public_field
from trainshed.api.calls.errors import install_command
from trainshed.api.calls.paging import SCAN_LIMIT, Listing, Page, list_jobs, page_size, read_all
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.registry import Checks
from trainshed.api.calls.services import Services, Spec
from trainshed.api.filters.jobs import NO_ADDITIONAL_FIELDS, AdditionalFields, States, compile_job_filter
from trainshed.api.filters.matching import matches_all
from trainshed.api.resources.jobs import (
    RESOURCE_NAMES,
    add_to_trials,
    cancel_work,
    delete_for_user,
    links_of,
    read_vertex_name,
    read_work,
    require_kind,
    with_link,
)
from trainshed.api.resources.submission import BucketUse, check_and_parse, new_vertex_job, store_works
from trainshed.core.errors import Violation
from trainshed.core.job import JobDraft
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api, Collection
from trainshed.core.requests import snake_case
from trainshed.core.secrets import SecretRef, references
from trainshed.core.specs.tuning import parse_tuning_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import JobQuery
from trainshed.wire import pool

W = TypeVar("W", bound=Work)
_PAGE_SIZE: Final = 100
_SERVICE: Final = "JobService"
_CUSTOM_FIELD, _TUNING_FIELD = "custom_job", "hyperparameter_tuning_job"
_SPECS: Final = {_CUSTOM_FIELD: "jobSpec", _TUNING_FIELD: "trialJobSpec"}
"""The fields of create requests that contain a job, each with the job's field for the specification."""
_PROGRAMS: Final = ("containerSpec", "pythonPackageSpec")
_TRACKING_FIELDS: Final = {
    "experiment": "experiment",
    "experimentRun": "experiment_run",
    "tensorboard": "tensorboard",
}
"""Request fields that refer to resources of the tracking addition, by their JSON keys."""


_ORDERED: Final = Listing[Work](
    noun="jobs",
    texts={},
    orders={
        "create_time": lambda work: work.created,
        "start_time": lambda work: work.started or 0,
        "end_time": lambda work: work.ended or 0,
        "update_time": lambda work: work.updated,
    },
    page=_PAGE_SIZE,
    max_page=_PAGE_SIZE,
)
"""Lists of jobs in another order than newest first. They are read completely (`read_all`)."""


class JobKind(Struct, Generic[W], frozen=True):
    """The public methods of a collection of jobs or pipelines."""

    #: Name of the public service, such as `JobService`.
    service: str
    collection: Collection
    record: type[W]
    #: Returns the message of a job or pipeline. The last argument specifies whether the message is part of a
    #: list.
    view: Callable[[Call, W, bool], Awaitable[Message]]
    #: The states that list filters accept, by public name.
    states: States
    further: AdditionalFields = NO_ADDITIONAL_FIELDS


def handlers(kind: JobKind[W], create: Handler) -> Handlers:
    collection, noun = kind.collection, RESOURCE_NAMES[kind.collection]

    async def get(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        work, _ = await read_work(call.services.reader, name, kind.record)
        return await kind.view(call, with_link(call.services, work), False)

    async def list_(call: Call, request: Any) -> Message:
        job_filter = compile_job_filter(request.filter, kind.states, kind.further)
        parent = known_location(request.parent)
        size = page_size(request.page_size, default=_PAGE_SIZE, maximum=_PAGE_SIZE)
        scope = parent.project_id, Api.VERTEX, parent.location

        async def read(limit: int, token: str) -> Page:
            return await list_jobs(
                call.services.reader,
                JobQuery(*scope, limit=limit, collection=collection),
                job_filter,
                token=token,
                question=(collection, str(parent), request.filter),
            )

        if " ".join(getattr(request, "order_by", "").split()) in ("", "create_time desc"):
            page = await read(size, request.page_token)
            works, next_token = [work for work, _ in page.jobs], page.next_token
        else:
            jobs = await read_all(lambda token: read(SCAN_LIMIT, token))
            works, next_token = await _ORDERED.page_of(jobs, request, str(parent), matches_all)
        works = [with_link(call.services, require_kind(work, kind.record)) for work in works]
        shown = [await kind.view(call, work, True) for work in works]
        answer = {f"{snake_case(noun)}s": shown, "next_page_token": next_token}
        return message(f"List{noun}sResponse", **answer)

    async def cancel(call: Call, request: Any) -> Message:
        work, _ = await call.services.reader.job(read_vertex_name(request.name, collection))
        await cancel_work(call.services, call.principal, work)
        return pool.message("google.protobuf.Empty")

    async def delete(call: Call, request: Any) -> Message:
        name = read_vertex_name(request.name, collection)
        return operations.finished_view(await delete_for_user(call.services, name))

    methods: dict[str, Handler] = {
        f"Create{noun}": create,
        f"Get{noun}": get,
        f"List{noun}s": list_,
        f"Cancel{noun}": cancel,
        f"Delete{noun}": delete,
    }
    return {f"{V1}.{kind.service}.{method}": handler for method, handler in methods.items()}


def check(field: str, call: Call, request: Any, further: tuple[Violation, ...] = ()) -> JobDraft[Any]:
    """Return the job that `field` of a create request contains. Raises InvalidRequest with all errors,
    including `further`, which contains the errors that the caller has already found."""
    services, key = call.services, _SPECS[field]
    parent = known_location(request.parent)
    public = public_field(call, request, field)

    def parse() -> JobDraft[Any]:
        if field == _CUSTOM_FIELD:
            return parse_custom_job(public, region=parent.location, runtimes=services.runtimes)
        return parse_tuning_job(
            public,
            region=parent.location,
            runtimes=services.runtimes,
            max_trials=services.settings.max_study_trials,
        )

    uses = bucket_uses(public.get(key, {}), snake_case(key))
    return check_and_parse(parse, uses, services.buckets, further, project=parent.project_id)


async def requested_job(field: str, call: Call, request: Any) -> JobDraft[Any]:
    """Return the job that `field` of a create request contains. Raises InvalidRequest with all errors. In
    addition to `check`, this function reads the store to find references to resources that do not exist."""
    key = _SPECS[field]
    spec = public_field(call, request, field).get(key, {})
    location = known_location(request.parent)
    missing = await missing_reference_violations(call.services, location, spec, snake_case(key))
    return check(field, call, request, missing)


def bucket_uses(spec: Mapping[str, Any], path: str) -> Iterator[BucketUse]:
    """Yield (path of the field, URI) for each field of a job's specification that contains a gs:// URI.
    `spec`: the CustomJobSpec in public JSON. `path`: the field of the specification in the request."""
    for position, pool_spec in enumerate(spec.get("workerPoolSpecs", ())):
        uris = pool_spec.get("pythonPackageSpec", {}).get("packageUris", ())
        field = f"{path}.worker_pool_specs[{position}].python_package_spec.package_uris"
        yield from ((f"{field}[{index}]", uri) for index, uri in enumerate(uris))
    output = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "")
    yield f"{path}.base_output_directory.output_uri_prefix", output


async def missing_reference_violations(
    services: Services, location: LocationName, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Return violations for references of a job to resources that do not exist in `location`.

    These resources are secrets, and experiments, runs and TensorBoards of the tracking addition
    (facts/experiments#jobs, facts/experiments#curves). `path`: the field of the specification in the request.
    Invalid names cause no violation here, because the check of the specification reports them.
    """
    secrets = await _missing_secret_violations(services, location.project_id, spec, path)
    tracked = [field for key, field in _TRACKING_FIELDS.items() if spec.get(key)]
    if not tracked:
        return secrets
    if services.tracking is not None:
        return (*secrets, *await services.tracking.missing_references(location, spec, path))
    text = (
        "This field needs an addition that is not installed. On the service's machine, run "
        f"{install_command('tracking')} and restart the service, or omit the field."
    )
    return (*secrets, *(Violation(f"{path}.{field}", text) for field in tracked))


async def _missing_secret_violations(
    services: Services, project: str, spec: Spec, path: str
) -> tuple[Violation, ...]:
    """Return a violation for each environment variable that refers to a secret that does not exist in the
    project."""
    uses = tuple(_secrets(spec, path))
    if not uses:
        return ()
    existing = await services.secrets.find(project, dict.fromkeys(ref for _, ref in uses))
    missing = tuple((field, ref) for field, ref in uses if ref not in existing)
    if not missing:
        return ()
    names = sorted({version.name for version in await services.secrets.versions(project)})
    return tuple(Violation(field, _secret_advice(project, ref, names)) for field, ref in missing)


def _secrets(spec: Spec, path: str) -> Iterator[tuple[str, SecretRef]]:
    """Yield (field path, secret) for each secret to which an environment variable refers."""
    for position, worker_pool in enumerate(spec.get("workerPoolSpecs", ())):
        for key in _PROGRAMS:
            for index, variable in enumerate(worker_pool.get(key, {}).get("env", ())):
                where = f"{path}.worker_pool_specs[{position}].{snake_case(key)}.env[{index}].value"
                for ref in references(variable.get("value", "")):
                    yield where, ref


def _secret_advice(project: str, ref: SecretRef, names: list[str]) -> str:
    if ref.name in names:
        return (
            f"The secret {ref.name!r} of the project {project} has no version {ref.version}. List its "
            f"versions with `trainshed secrets list`, or use $(secret:{ref.name}) for the newest one."
        )
    existing = f"It has: {', '.join(names)}" if names else "It has no secrets yet"
    return (
        f"The project {project} has no secret {ref.name!r}. {existing}. Store it with `trainshed secrets set "
        f"{ref.name}`, or write $$(secret: to use these characters literally."
    )


async def create_custom_job(call: Call, request: Any) -> Message:
    tracking, spec = call.services.tracking, request.custom_job.job_spec
    async with contextlib.AsyncExitStack() as stack:
        if tracking is not None and spec.experiment and not spec.experiment_run:
            # Check the request before the run is created, because a rejected request must not create a run.
            await requested_job(_CUSTOM_FIELD, call, request)
            run = await stack.enter_async_context(tracking.create_run(spec.experiment))
            spec.experiment_run = public_field(call, request, _CUSTOM_FIELD)["jobSpec"]["experimentRun"] = run
        draft = await requested_job(_CUSTOM_FIELD, call, request)
        public = public_field(call, request, _CUSTOM_FIELD)
        job = new_vertex_job(call.services, known_location(request.parent), draft, public)
        await store_works(call.services, call.principal, job)
    if tracking is not None and spec.experiment_run:
        await tracking.add_to_run(spec.experiment_run, job.name)
    views.set_custom_job_outputs(request.custom_job, require_kind(job, Job))
    return request.custom_job


async def create_tuning_job(call: Call, request: Any) -> Message:
    draft = await requested_job(_TUNING_FIELD, call, request)
    public = public_field(call, request, _TUNING_FIELD)
    job = new_vertex_job(call.services, known_location(request.parent), draft, public)
    await store_works(call.services, call.principal, job)
    created = request.hyperparameter_tuning_job
    views.set_tuning_outputs(created, require_kind(job, TuningJob))
    return created


async def _custom_job(call: Call, job: Job, in_list: bool) -> Message:
    view: Any = views.custom_job(job)
    view.web_access_uris.update(links_of(call.services, call.principal, job))
    return view


async def _tuning_job(call: Call, job: TuningJob, in_list: bool) -> Message:
    studies = call.services.studies
    trials = await studies.history((job.study,))
    # Read the measurements after the trials. Otherwise a finished trial could lack measurements. A list omits
    # measurements, because a page of large jobs would contain millions.
    measured = {} if in_list else await studies.measurements(job.study)
    # Convert the trials in a thread. For a thousand trials with a hundred measurements each, the conversion
    # takes half a second.
    view: Any = await asyncio.to_thread(views.tuning_job, job, trials, measured)
    if view.trial_job_spec.enable_web_access or view.trial_job_spec.enable_dashboard_access:
        add_to_trials(call, job, view.trials)
    return view


_CUSTOM_JOBS: Final = JobKind(_SERVICE, Collection.CUSTOM_JOBS, Job, _custom_job, views.STATES)
_TUNING_JOBS: Final = JobKind(_SERVICE, Collection.TUNING_JOBS, TuningJob, _tuning_job, views.STATES)
HANDLERS: Final[Handlers] = {
    **handlers(_CUSTOM_JOBS, create_custom_job),
    **handlers(_TUNING_JOBS, create_tuning_job),
}
CHECKS: Final[Checks] = {
    f"{V1}.{_SERVICE}.CreateCustomJob": partial(check, _CUSTOM_FIELD),
    f"{V1}.{_SERVICE}.CreateHyperparameterTuningJob": partial(check, _TUNING_FIELD),
}

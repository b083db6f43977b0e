"""Preflights: whether a job would be admitted now and on which nodes, or else which change would allow it to
start (spec/submit#preflight). Nothing is stored."""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from trainshed.api import ml_v1
from trainshed.api.aiplatform_v1 import job_service, training_pipelines
from trainshed.api.calls.call import Call
from trainshed.api.calls.checks import with_check_violations
from trainshed.api.calls.impersonation import actor_of, reject_escalation, texts_of
from trainshed.api.calls.project_names import projects_known_to, replace_project_numbers
from trainshed.api.resources.dependencies import find_dependencies
from trainshed.api.resources.jobs import require_kind
from trainshed.api.resources.submission import check_labels, new_job
from trainshed.api.trainshed_v1.call import JsonCall, project_fault
from trainshed.api.trainshed_v1.views import waiting_view
from trainshed.core.capacity import Preflight, WaitReason
from trainshed.core.copies import collection_of
from trainshed.core.dependencies import explain_dependencies
from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation, closest
from trainshed.core.job import JobDraft, WorkerPool
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ML_ROLES, Api, JobName, log_task_name
from trainshed.core.tuning.records import TuningSpec
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.status import WireError
from trainshed.wire.trainshed_v1 import capacity as records

_CHECKS: Final = {**job_service.CHECKS, **training_pipelines.CHECKS, **ml_v1.CHECKS}
_TRIAL_NOTICE: Final = "This is a tuning job. The plan shows the job of one trial."
_PIPELINE_NOTICE: Final = "This is a training pipeline. The plan shows its job."


async def explain(call: JsonCall) -> records.Explanation:
    """`POST /trainshed/v1/jobs:explain`: return whether a job would be admitted now, and on which nodes.
    Nothing is stored. The field `job` is checked as in the API's create method. The result for a tuning job
    is about the job of one trial, and the result for a training pipeline is about its job."""
    settings, (request, faults) = call.services.settings, call.read_body(records.ExplainRequest)
    api, body = request.api, request.job
    project = request.project or settings.project
    location = request.location or settings.region
    if api not in tuple(Api):
        faults.add("api", f"{api!r} is not one of: {', '.join(Api)}.{closest(api, tuple(Api))}")
    if not body:
        faults.add("job", "The job must be set to an object.")
    faults.refuse()
    job, notices = await _job_to_create(call, Api(api), project, location, body)
    job = replace(job, creator=await actor_of(call.services.reader, call.principal))
    check_labels(call.services, job.labels)
    await _require_new(call, job)
    wanted = await find_dependencies(call.services, call.principal, project, job.labels)
    preflight = await call.services.capacity.preflight(job)
    is_stock_out = preflight.waiting and preflight.waiting.reason is WaitReason.STOCK_OUT
    if wanted and not is_stock_out:
        preflight = Preflight(waiting=explain_dependencies(wanted))
    if preflight.is_admitted:
        notices += tuple(_missing_type_notices(job, call.services.capacity.accelerators()))
    return _explanation(job, preflight, notices)


async def _job_to_create(
    call: JsonCall, api: Api, project: str, location: str, body: Mapping[str, Any]
) -> tuple[Job, tuple[str, ...]]:
    """Return the job that the API's create method would create from `body`, and notices about tuning jobs and
    pipelines. Raises the errors of the create method."""
    matched = routes.match("POST", collection_of(api, body, project, location))
    if matched is None:
        raise InvalidRequest((Violation("project", project_fault(project)),))
    route, variables = matched
    create_call = Call(call.principal, call.services, route.rpc.full_name)
    try:
        request = routes.bind(route, variables, (), wire_json.encode_text(body))
        replace_project_numbers(request, projects_known_to(call.principal, call.services))
    except WireError as refused:
        raise with_check_violations(refused, partial(_CHECKS[create_call.method], create_call)) from None
    reject_escalation(call.principal, call.services, list(texts_of(body)))
    draft = await _requested_job(create_call, request)
    notices = (_PIPELINE_NOTICE,) if route.rpc.full_name.endswith(".CreateTrainingPipeline") else ()
    spec = draft.spec
    if isinstance(spec, TuningSpec):
        spec, notices = spec.trial, (*notices, _TRIAL_NOTICE)
    uid = call.services.new_uid()
    region, job_id = ("", draft.display_name) if api is Api.ML else (location, str(uid))
    name = JobName(api, project, region, job_id)
    draft_of_job = JobDraft(spec, draft.display_name, draft.labels)
    return require_kind(new_job(call.services, uid, name, draft_of_job, {}), Job), notices


async def _requested_job(call: Call, request: Any) -> JobDraft[Any]:
    match call.method.rpartition(".")[2]:
        case "CreateCustomJob":
            return await job_service.requested_job("custom_job", call, request)
        case "CreateHyperparameterTuningJob":
            return await job_service.requested_job("hyperparameter_tuning_job", call, request)
        case "CreateTrainingPipeline":
            uid = call.services.new_uid()
            return (await training_pipelines.requested_pipeline(call, request, uid)).pipeline.job
        case _:
            return await ml_v1.requested_job(call, request)


async def _require_new(call: JsonCall, job: Job) -> None:
    """Raise AlreadyExists if an `ml` job with this ID exists. Vertex assigns a new ID to each job."""
    if job.name.api is not Api.ML:
        return
    try:
        await call.services.reader.job(job.name)
    except NotFound:
        return
    raise AlreadyExists(f"{job.name} already exists, and IDs are unique in a project. Use another jobId.")


def _explanation(job: Job, preflight: Preflight, notices: tuple[str, ...]) -> records.Explanation:
    substitutions = job.spec.substitutions
    notes = (text for text in job.spec.runtime_notices if text not in substitutions)
    tasks = {str(r): log_task_name(job.name.api, r) for r in job.spec.replicas()}
    return records.Explanation(
        api=job.name.api.value,
        project=job.name.project_id,
        location=job.spec.region,
        display_name=job.display_name,
        admitted=preflight.is_admitted,
        places=tuple(
            records.Placement(replica=replica, task=tasks.get(replica, replica), node=node)
            for replica, node in preflight.places
        ),
        waiting=waiting_view(preflight.waiting, preflight.position) if preflight.waiting else None,
        position=preflight.position,
        notices=(*notices, *notes),
        warnings=(*substitutions, *job.spec.warnings),
        machines=tuple(_machine(job.name.api, pool) for pool in job.spec.pools),
    )


def _missing_type_notices(job: Job, node_types: Collection[str]) -> Iterator[str]:
    """Yield notices about accelerators that no node has, unless a warning already contains this.
    `node_types`: the accelerator types of the nodes."""
    requested = {pool.machine.accelerators.type for pool in job.spec.pools if pool.machine.accelerators}
    for kind in sorted(requested.difference(node_types)):
        if not any(kind in warning for warning in job.spec.warnings):
            yield f"No node has {kind}. The job would receive GPUs of another type."


def _machine(api: Api, pool: WorkerPool) -> records.PoolMachine:
    machine = pool.machine
    devices = machine.accelerators
    return records.PoolMachine(
        pool=ML_ROLES[pool.position] if api is Api.ML else f"workerpool{pool.position}",
        replicas=pool.replica_count,
        machine_type=machine.type,
        vcpus=machine.vcpus,
        memory_bytes=machine.memory_bytes,
        memory_limit_bytes=machine.memory_limit_bytes,
        accelerators=records.MachineAccelerators(type=devices.type, count=devices.count) if devices else None,
        disk_gb=pool.disk.size_gb,
    )

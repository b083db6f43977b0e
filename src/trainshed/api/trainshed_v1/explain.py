"""Pre-flight: would a job be admitted now, on what, and if not, what would let it start (SPEC §1.7). Stores nothing."""

from typing import Any, assert_never
from urllib.parse import quote

from trainshed.api.aiplatform_v1 import custom_jobs
from trainshed.api.call import Call
from trainshed.api.checks import completed
from trainshed.api.ml_v1 import jobs as ml_jobs
from trainshed.api.planned_drills import with_planned_drills
from trainshed.api.submission import runtime_notices
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.room_views import waiting_view
from trainshed.core.errors import AlreadyExists, InvalidRequest, NotFound, Violation
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ML_ROLES, Api, log_task_name
from trainshed.core.specs.model import WorkerPool
from trainshed.wire.binding import bind
from trainshed.wire.json import encode_text
from trainshed.wire.routes import route_table
from trainshed.wire.status import WireError


async def explain(call: JsonCall) -> dict[str, Any]:
    """`POST /trainshed/v1/jobs:explain {api: "vertex" | "ml", project, location, job}`: `{api, project, location,
    displayName, admitted, places, waiting, position, notices, warnings, machines}`.

    `job` is what the API's own create takes, and is checked as that checks it. `places`: `{replica, task, node}` of each
    replica, if it would be admitted; else `waiting`, as in a job's description, and how many jobs would stand before it,
    plus one (`position`). `machines`: per pool `{pool, replicas, machineType, vcpus, memoryBytes, memoryLimitBytes,
    accelerators, diskGb}`.
    """
    fields = call.fields()
    settings = call.services.settings
    api = fields.choice("api", tuple(api.value for api in Api))
    project = fields.text("project") or settings.project
    location = fields.text("location") or settings.region
    given = fields.mapping("job", required=True)
    if not project:
        fields.fault("project", "Whose job would it be? Give the project's id.")
    if not location and api == Api.VERTEX:
        fields.fault("location", "Where would it run? Give a region, such as us-central1.")
    fields.refuse()
    job = _read(call, Api(api), project, location, encode_text(given))
    job = await with_planned_drills(call.services, job)
    await _require_new(call, job)
    return _answer(call, job)


def _read(call: JsonCall, api: Api, project: str, location: str, body: bytes) -> Job:
    """The job that the API's create would make of `body`. Raises what that raises."""
    match api:
        case Api.VERTEX:
            parent = f"projects/{quote(project, safe='')}/locations/{quote(location, safe='')}"
            path, new, check = f"/v1/{parent}/customJobs", custom_jobs.new, custom_jobs.check_create
        case Api.ML:
            path = f"/v1/projects/{quote(project, safe='')}/jobs"
            new, check = ml_jobs.new, ml_jobs.check_create
        case _:
            assert_never(api)
    matched = route_table().match("POST", path)
    if matched is None:
        raise InvalidRequest((Violation("project", f"{project!r} is not a project id."),))
    route, variables = matched
    asked = Call(call.principal, call.services, f"{route.service}.{route.method}")
    try:
        message = bind(route, variables, (), body).message
    except WireError as refused:
        raise completed(refused, check, asked) from None
    return new(asked, message)


async def _require_new(call: JsonCall, job: Job) -> None:
    """An id of an `ml` job is used once; Vertex gives each job an id of its own."""
    if job.name.api is not Api.ML:
        return
    try:
        await call.services.reader.job(job.name)
    except NotFound:
        return
    raise AlreadyExists(
        f"{job.name} exists already, and ids are used once in a project; give the job another jobId."
    )


def _answer(call: JsonCall, job: Job) -> dict[str, Any]:
    found = call.services.room.preflight(job)
    tasks = {str(r): log_task_name(job.name.api, r) for r in job.spec.replicas()}
    return {
        "api": job.name.api.value,
        "project": job.name.project_id,
        "location": job.spec.region,
        "displayName": job.display_name,
        "admitted": found.admitted,
        "places": [
            {"replica": replica, "task": tasks.get(replica, replica), "node": node}
            for replica, node in found.places
        ],
        "waiting": waiting_view(found.waiting, found.position) if found.waiting else None,
        "position": found.position,
        "notices": [*runtime_notices(job.spec), *found.notices],
        "warnings": list(job.spec.warnings),
        "machines": [_machine(job.name.api, pool) for pool in job.spec.pools],
    }


def _machine(api: Api, pool: WorkerPool) -> dict[str, Any]:
    machine = pool.machine
    devices = machine.accelerators
    return {
        "pool": ML_ROLES[pool.position] if api is Api.ML else f"workerpool{pool.position}",
        "replicas": pool.replica_count,
        "machineType": machine.type,
        "vcpus": machine.vcpus,
        "memoryBytes": machine.memory_bytes,
        "memoryLimitBytes": machine.memory_limit_bytes,
        "accelerators": {"type": devices.type, "count": devices.count} if devices else None,
        "diskGb": pool.disk.size_gb,
    }

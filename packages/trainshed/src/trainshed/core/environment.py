"""Builds the environment variables and the command line of a replica's program (spec/program#arguments,
spec/reduction#settings, facts/program#variables, facts/program#arguments).

Pure: the same job and endpoints always give the same values. The engine adds the values of the slot (HOME,
PATH, storage endpoints).
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, cast

from msgspec import Struct

from trainshed.core import secrets
from trainshed.core.catalog.machines import machine_types
from trainshed.core.cluster import (
    EVALUATOR_POOL,
    MAX_STRING_BYTES,
    PS_POOL,
    WORKER_POOL,
    Endpoints,
    fits_cluster_spec,
    has_reducers,
    is_container_job,
    is_reducer,
    reducers,
    role,
    takes_part_in_reduction,
)
from trainshed.core.job import JobSpec
from trainshed.core.launch import METRIC_FILE, REDUCTION_REPORT_FILE
from trainshed.core.names import Api, JobName, JobUid, ReplicaId, project_number
from trainshed.core.requests import snake_case
from trainshed.core.runtime import REDUCERS
from trainshed.core.terminals import dashboard_port
from trainshed_reduction import variables as known

REDUCER_PROGRAM: Final = ("python3", "-m", "trainshed_reduction.reducer")
"""The command line of reducers."""

REDUCTION_REPORT = "/var/hypertune/reduction.json"
"""The file to which programs write their report on a reduction, set by `REDUCTION_REPORT_FILE`. Its directory
exists for every program and is writable for every user."""

_METRICS = "/var/hypertune/output.metrics"
_REFERENCE = re.compile(rf"(\$\$\()|\$\(([A-Za-z_][A-Za-z0-9_]*)\)|{secrets.PATTERN}")


class PlacedAttempt(Struct, frozen=True):
    """An attempt of a job with the addresses of its replicas.

    `master_port` is the value of MASTER_PORT: a port of the primary that no other replica on the same network
    binds. The programs' own servers use the ports of `endpoints` instead.
    """

    name: JobName
    spec: JobSpec
    endpoints: Endpoints
    master_port: int
    uid: JobUid = JobUid(0)
    attempt: int = 1


def environment(
    gang: PlacedAttempt,
    replica: ReplicaId,
    *,
    image: Mapping[str, str] | None = None,
    packages: str | None = None,
) -> tuple[tuple[str, str], ...]:
    """Return the variables of a replica. They come from its container image (`image`), the service and the
    user. Later values override earlier ones. The user cannot change the metrics file or the variables that
    authenticate a job's workers and reducers. `packages`: the directory of `trainshed_reduction` in the
    program's file system."""
    program = gang.spec.pool(replica.pool).program
    own = dict(program.env)
    variables = {
        **(image or {}),
        # Variables that make the program's framework behave like the requested older version.
        **{way.variable: way.value for way in program.runtime.old_ways if way.unless not in own},
        # No GPUs by default. The engine sets the GPUs of replicas that request some.
        "CUDA_VISIBLE_DEVICES": "",
        # Print each line of the program immediately instead of when a buffer is full.
        "PYTHONUNBUFFERED": "1",
        "GOOGLE_CLOUD_PROJECT": gang.name.project_id,
        "CLOUD_ML_PROJECT_ID": str(project_number(gang.name.project_id)),
        # A trial's job, such as `census.3`, uses the id of its tuning job, `census`.
        "CLOUD_ML_JOB_ID": gang.name.job_id.partition(".")[0],
        "CLOUD_ML_REGION": gang.spec.region,
        "CLOUD_ML_JOB": _dump_within(_cloud_ml_job(gang.spec, replica)),
        "CLOUD_ML_JOB_SA": service_account(gang.name.project_id, gang.spec),
        **_cluster_variables(gang, replica),
        **_reduction_variables(gang, replica),
    }
    reduces = takes_part_in_reduction(gang.spec, replica)
    if reduces:
        variables[REDUCTION_REPORT_FILE] = REDUCTION_REPORT
    trial = _trial_variables(gang.spec)
    variables.update(trial)
    if gang.spec.api is Api.VERTEX:
        variables.update(_output_directories(gang.spec))
        if program.module is None:
            variables["AIP_USE_CUSTOM_CONTAINER"] = "true"
    variables = {name: secrets.remove_marks(value) for name, value in variables.items()}
    for name, value in program.env:
        variables[name] = expand(value, variables, names_secrets=True)
    if trial:
        # With another metrics file, the service would lose the trial's measurements.
        variables[METRIC_FILE] = trial[METRIC_FILE]
    if reduces:
        # The job's workers and reducers authenticate each other with this token.
        variables[known.TOKEN] = secrets.job_mark(gang.uid)
        variables.pop(known.TOKEN_FILE, None)
    if reduces and packages:
        path = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{packages}:{path}" if path else packages
    return tuple(variables.items())


def arguments(
    spec: JobSpec,
    replica: ReplicaId,
    environ: Mapping[str, str],
    *,
    entrypoint: tuple[str, ...] = (),
    command: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the command line of a replica (facts/program#arguments): `python3 -m MODULE ARGS…`, or the
    command of a container.

    `environ` is the result of `environment`. On Vertex, `$(VAR)` is replaced in commands and arguments. `ml`
    arguments stay unchanged, followed by `--job-dir PATH` if the job has a job directory. `entrypoint` and
    `command` are those of the container image. The job's own values override them.
    """
    program = spec.pool(replica.pool).program
    if is_reducer(spec, replica.pool) and program.runtime.family == REDUCERS:
        return REDUCER_PROGRAM
    # The author of an image must not select secrets of the user who runs the image.
    entrypoint, command = _remove_secret_marks(entrypoint), _remove_secret_marks(command)
    if spec.api is Api.VERTEX:
        start = tuple(expand(item, environ) for item in program.command)
        args = tuple(expand(item, environ) for item in program.args)
    else:
        start, args = _remove_secret_marks(program.command), _remove_secret_marks(program.args)
    if program.module is not None:
        start = ("python3", "-m", program.module)
    elif not start:
        start = entrypoint
        # Append the trial's parameters to the image's CMD if the image has no ENTRYPOINT and the arguments
        # are options.
        if spec.trial and not start and args[:1] and args[0].startswith("-"):
            start = command
        args = args or command
    words = (*start, *args)
    return (*words, "--job-dir", spec.job_dir) if spec.job_dir and spec.api is Api.ML else words


def expand(text: str, environ: Mapping[str, str], *, names_secrets: bool = False) -> str:
    """Replace each `$(VAR)` by the value of the variable. `$$(` becomes `$(`, and unknown names stay
    unchanged. With `names_secrets`, `$(secret:NAME)` becomes a mark. The secret's value replaces the mark
    when the program starts (`core.secrets`)."""

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return "$("
        if match[3] is None:
            return environ.get(match[2], match[0])
        return secrets.mark_secret(match[3], match[0]) if names_secrets else match[0]

    return _REFERENCE.sub(replacement, secrets.remove_marks(text))


def _remove_secret_marks(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(secrets.remove_marks, arguments))


def _trial_variables(spec: JobSpec) -> dict[str, str]:
    """Return the variables that describe a trial to each of its replicas (facts/program#variables)."""
    if not spec.trial:
        return {}
    variables = {"CLOUD_ML_TRIAL_ID": spec.trial, METRIC_FILE: _METRICS}
    if spec.api is Api.ML and spec.metric_tag:
        variables["CLOUD_ML_HP_METRIC_TAG"] = spec.metric_tag
    return variables


def _cluster_variables(gang: PlacedAttempt, replica: ReplicaId) -> dict[str, str]:
    """Return the variables that describe a replica's position in the cluster (spec/program#cluster_spec,
    spec/program#tf_config, spec/program#ranks).

    - CLUSTER_SPEC: on Vertex for every replica, keyed by pool; in `ml` for container jobs, keyed by role.
    - TF_CONFIG: on Vertex for jobs with several replicas, in `ml` always. It lists no evaluators, but
      evaluators receive a task. Reducers are not listed and do not receive TF_CONFIG.
    - Ranks: the primary is first, followed by the workers. Other replicas have no rank.
    """
    spec, variables = gang.spec, dict[str, str]()
    is_vertex = spec.api is Api.VERTEX
    roles = {pool.position: role(spec, ReplicaId(pool.position, 0)) for pool in spec.pools}
    if is_vertex or is_container_job(spec):
        by_pool = {position: f"workerpool{position}" for position in roles}
        names = by_pool if is_vertex else roles
        variables["CLUSTER_SPEC"] = _cluster(gang, replica, names)
    if not is_reducer(spec, replica.pool) and not (is_vertex and len(spec.replicas()) == 1):
        outside = {EVALUATOR_POOL, PS_POOL} if has_reducers(spec) else {EVALUATOR_POOL}
        # The id of the internal tenant project for the user's project, in the form that the public services
        # use.
        digest = hashlib.sha256(b"tenant:%d" % project_number(gang.name.project_id)).hexdigest()
        tenant = f"w{digest[:16]}-{'ml' if spec.api is Api.ML else 'tp'}"
        variables["TF_CONFIG"] = _cluster(gang, replica, roles, outside, cloud=tenant)
    if replica.pool <= WORKER_POOL:
        workers = sum(p.replica_count for p in spec.pools if p.position == WORKER_POOL)
        variables["MASTER_ADDR"] = gang.endpoints[ReplicaId(0, 0)].host
        variables["MASTER_PORT"] = str(gang.master_port)
        rank, nodes = str(0 if replica.pool == 0 else 1 + replica.index), str(1 + workers)
        variables |= {"RANK": rank, "WORLD_SIZE": nodes, "NODE_RANK": rank, "NNODES": nodes}
        if workers:
            variables["JAX_COORDINATOR_ADDRESS"] = "{MASTER_ADDR}:{MASTER_PORT}".format_map(variables)
            variables |= {"JAX_NUM_PROCESSES": nodes, "JAX_PROCESS_ID": rank}
    return variables


def _cluster(
    gang: PlacedAttempt,
    replica: ReplicaId,
    names: Mapping[int, str],
    outside: Collection[int] = (),
    **more: str,
) -> str:
    """Return the JSON that describes a cluster and a replica's task. `names`: the pools' names. `outside`:
    pools to omit. `more`: further members of the task. Only trials have `task.trial`, which contains the
    number as text. The job is omitted if it is too long (spec/program#cluster_spec)."""
    spec = gang.spec
    trial = {"trial": spec.trial} if spec.trial else {}
    cluster = {
        names[pool.position]: [str(gang.endpoints[peer]) for peer in pool.replicas()]
        for pool in spec.pools
        if pool.position not in outside
    }
    task = {"type": names[replica.pool], "index": replica.index, **trial, **more}
    job = json.loads(spec.job_json)
    value: dict[str, Any] = {"cluster": cluster, "environment": "cloud", "task": task}
    if fits_cluster_spec(spec.job_json, len(spec.replicas())):
        value["job"] = job
    if job.get("enableDashboardAccess"):
        value["open_ports"] = [dashboard_port(gang.uid)]
    return _dump(value)


_RESOURCE_VARIABLES: Final = {
    "tensorboard": "AIP_TENSORBOARD_RESOURCE_NAME",
    "experiment": "AIP_EXPERIMENT_NAME",
    "experimentRun": "AIP_EXPERIMENT_RUN_NAME",
}
"""Fields of a job's spec that contain a resource name, and the variables that pass the name to programs."""


def _reduction_variables(gang: PlacedAttempt, replica: ReplicaId) -> dict[str, str]:
    """Return the reduction settings that a job may change, for one replica. Empty for a replica outside the
    reduction. `trainshed_reduction.variables`, which programs also read, defines the names and the allowed
    values."""
    spec = gang.spec
    if not takes_part_in_reduction(spec, replica):
        return {}
    if is_reducer(spec, replica.pool):
        return {known.LISTEN: str(gang.endpoints[replica])}
    places = ",".join(str(gang.endpoints[reducer]) for reducer in reducers(spec))
    environ = {known.REDUCERS: places, known.ATTEMPT: str(gang.attempt), known.REPLICA: str(replica)}
    return environ | _bandwidths(spec)


def _bandwidths(spec: JobSpec) -> dict[str, str]:
    """Return the bandwidths in Gbit/s of the slowest worker and of a reducer. Empty unless both are known."""
    of_types = {name: kind.egress_gbps or 0.0 for name, kind in machine_types().items()}
    gbps = {pool.position: of_types.get(pool.machine.type, 0.0) for pool in spec.pools}
    worker = min(gbps[position] for position in gbps if position < PS_POOL)
    if not worker or not gbps[PS_POOL]:
        return {}
    return {known.WORKER_GBPS: f"{worker:g}", known.REDUCER_GBPS: f"{gbps[PS_POOL]:g}"}


def _output_directories(spec: JobSpec) -> dict[str, str]:
    variables: dict[str, str] = {}
    if spec.base_output_directory:
        base = spec.base_output_directory.removesuffix("/")
        variables["AIP_MODEL_DIR"] = f"{base}/model/"
        variables["AIP_CHECKPOINT_DIR"] = f"{base}/checkpoints/"
        variables["AIP_TENSORBOARD_LOG_DIR"] = f"{base}/logs/"
    job = json.loads(spec.job_json)
    for field, variable in _RESOURCE_VARIABLES.items():
        if name := job.get(field):
            variables[variable] = str(name)
    return variables


def _cloud_ml_job(spec: JobSpec, replica: ReplicaId) -> dict[str, Any]:
    """Return CLOUD_ML_JOB in its observed form: the replica's package on Vertex, the training input in
    `ml`."""
    if spec.api is Api.ML:
        return cast("dict[str, Any]", _snake_keys(json.loads(spec.job_json)))
    program = spec.pool(replica.pool).program
    return {
        "python_module": program.module or "",
        "package_uris": list(program.package_uris),
        "job_args": list(program.args) if program.module is not None else [],
    }


def _snake_keys(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {snake_case(name): _snake_keys(item) for name, item in members.items()}
    if isinstance(value, list):
        return [_snake_keys(item) for item in cast("list[Any]", value)]
    return value


def service_account(project_id: str, spec: JobSpec) -> str:
    """Return the service account of a job's programs: the account in the spec, or its project's service agent
    (facts/program#variables)."""
    return spec.service_account or service_agent(project_id)


def service_agent(project_id: str) -> str:
    """Return a project's default service account, the service agent."""
    return f"service-{project_number(project_id)}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


def _dump_within(members: Mapping[str, Any]) -> str:
    """Return the members as JSON. If a variable cannot contain them all, the longest ones are omitted."""
    texts = {name: _dump(value) for name, value in members.items()}
    left_out: list[str] = []
    while True:
        text = _dump({name: value for name, value in members.items() if name not in left_out})
        if len(text.encode()) <= MAX_STRING_BYTES:
            return text
        left_out.append(max(texts.keys() - {*left_out}, key=lambda name: len(texts[name])))


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

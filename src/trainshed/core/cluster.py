"""A replica's place in its job: hostnames, CLUSTER_SPEC, TF_CONFIG, ranks.

spec/program, facts/program. Addresses come from the caller; nothing here knows how they are had.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.core.catalog import images, runtime_versions
from trainshed.core.job.spec import JobSpec
from trainshed.core.names import ML_ROLES, Api, JobUid, ReplicaId, host_token, project_number

WORKER_POOL, PS_POOL, EVALUATOR_POOL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the peers of a replica reach it: hostname or literal address, and the port it may bind."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Endpoints = Mapping[ReplicaId, Endpoint]
"""One endpoint for every replica of a job."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A replica's place in a PyTorch process group of one process per replica (facts/program#variables)."""

    rank: int
    world_size: int


def names_chief(spec: JobSpec) -> bool:
    """Whether the primary is called `chief` rather than `master` (facts/program#tf_config).

    Vertex always says chief; `ml` from runtime 2.1 on, and container jobs when they ask for it.
    """
    if spec.api is Api.VERTEX:
        return True
    if is_container_job(spec):
        return spec.use_chief_in_tf_config
    return runtime_versions.names_chief(spec.runtime_version)


def is_container_job(spec: JobSpec) -> bool:
    """Whether the primary's program was chosen by its image and not by an `ml` runtime version."""
    return bool(spec.pool(0).program.image_uri)


def is_reducer(spec: JobSpec, pool: int) -> bool:
    """Whether the replicas of a pool are a reduction server's."""
    return pool == PS_POOL and has_reducers(spec)


def has_reducers(spec: JobSpec) -> bool:
    """Whether the third pool is a reduction server, which no framework may take for a parameter server."""
    return any(
        pool.position == PS_POOL and images.is_reduction_server(pool.program.image_uri)
        for pool in spec.pools
    )


def role(spec: JobSpec, replica: ReplicaId) -> str:
    """`master` or `chief`, `worker`, `ps`, `evaluator`: what TF_CONFIG and `ml` hostnames call it."""
    if replica.pool == 0 and names_chief(spec):
        return "chief"
    return ML_ROLES[replica.pool]


def hostname(uid: JobUid, spec: JobSpec, replica: ReplicaId) -> str:
    """The same at every start of the replica; unique among all jobs for all that matters
    (facts/program#cluster_spec)."""
    place = f"workerpool{replica.pool}" if spec.api is Api.VERTEX else role(spec, replica)
    return f"cmle-training-{place}-{host_token(uid)}-{replica.index}"


def cluster_spec(spec: JobSpec, endpoints: Endpoints, replica: ReplicaId) -> dict[str, Any] | None:
    """CLUSTER_SPEC of a replica, or None where the public service sets none (spec/program#cluster_spec).

    Vertex: for every replica, keyed by pool. `ml`: for container jobs, keyed by role. Positions without
    replicas are absent.
    """
    if spec.api is Api.VERTEX:
        cluster = _by_pool(
            spec, endpoints, {pool.position: f"workerpool{pool.position}" for pool in spec.pools}
        )
        task: dict[str, Any] = {"type": f"workerpool{replica.pool}", "index": replica.index}
    elif is_container_job(spec):
        cluster = _by_pool(spec, endpoints, _roles(spec))
        task = {"type": role(spec, replica), "index": replica.index}
    else:
        return None
    return {
        "cluster": cluster,
        "environment": "cloud",
        "task": task | _trial(spec),
        "job": json.loads(spec.job_json),
    }


def tf_config(
    spec: JobSpec, endpoints: Endpoints, replica: ReplicaId, *, project_id: str
) -> dict[str, Any] | None:
    """TF_CONFIG of a replica, or None where there is none (spec/program#tf_config, facts/program#tf_config).

    Vertex: for jobs of more than one replica. `ml`: always. Evaluators have a task and are in no cluster;
    reducers have none and are in none.
    """
    if spec.api is Api.VERTEX and len(spec.replicas()) == 1:
        return None
    if is_reducer(spec, replica.pool):
        return None
    roles = _roles(spec)
    roles.pop(EVALUATOR_POOL, None)
    if has_reducers(spec):
        roles.pop(PS_POOL)
    return {
        "cluster": _by_pool(spec, endpoints, roles),
        "environment": "cloud",
        "task": {
            "type": role(spec, replica),
            "index": replica.index,
            **_trial(spec),
            "cloud": tenant_id(spec.api, project_id),
        },
        "job": json.loads(spec.job_json),
    }


def rank(spec: JobSpec, replica: ReplicaId) -> Rank | None:
    """Primary first, then the workers; parameter servers, reducers and evaluators have none
    (spec/program#ranks)."""
    workers = next((p.replica_count for p in spec.pools if p.position == WORKER_POOL), 0)
    if replica.pool > WORKER_POOL:
        return None
    return Rank(0 if replica.pool == 0 else 1 + replica.index, 1 + workers)


def tenant_id(api: Api, project_id: str) -> str:
    """The id of the service's own project for `project_id`, in the form seen on the public services."""
    digest = hashlib.sha256(b"tenant:%d" % project_number(project_id)).hexdigest()[:16]
    return f"w{digest}-{'ml' if api is Api.ML else 'tp'}"


def _trial(spec: JobSpec) -> dict[str, str]:
    """`task.trial` of every replica of a trial: its number as text (facts/program#cluster_spec,
    facts/program#tf_config)."""
    return {"trial": spec.trial} if spec.trial else {}


def _roles(spec: JobSpec) -> dict[int, str]:
    return {pool.position: role(spec, ReplicaId(pool.position, 0)) for pool in spec.pools}


def _by_pool(spec: JobSpec, endpoints: Endpoints, names: Mapping[int, str]) -> dict[str, list[str]]:
    """Endpoints of the named pools, each list ascending by index."""
    return {
        names[pool.position]: [str(endpoints[replica]) for replica in pool.replicas()]
        for pool in spec.pools
        if pool.position in names
    }

"""The role of each pool of a job, and the names of its replicas (spec/program, facts/program)."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from trainshed.core.catalog import images
from trainshed.core.job import JobSpec, WorkerPool
from trainshed.core.names import ML_ROLES, Api, JobUid, ReplicaId, host_token

WORKER_POOL, PS_POOL, EVALUATOR_POOL = 1, 2, 3


MAX_STRING_BYTES = 120_000
"""Maximum bytes of one argument or variable: Linux rejects a value longer than 128 KiB."""
BYTES_PER_ENDPOINT = 64
"""Maximum bytes of a replica's address in CLUSTER_SPEC and TF_CONFIG."""
_BYTES_OF_TASK = 500
"""Maximum bytes of CLUSTER_SPEC or TF_CONFIG without the job and the addresses of the replicas."""


class Endpoint(Struct, frozen=True):
    """The address at which other replicas reach a replica: a hostname or an IP address, and the port that the
    replica may bind."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Endpoints = Mapping[ReplicaId, Endpoint]
"""The endpoint of each replica of a job."""


def fits_cluster_spec(job_json: str, replicas: int) -> bool:
    """Return whether CLUSTER_SPEC and TF_CONFIG can contain the job itself in addition to the addresses of
    `replicas` replicas."""
    size = len(job_json.encode()) + replicas * BYTES_PER_ENDPOINT + _BYTES_OF_TASK
    return size <= MAX_STRING_BYTES


def names_chief(spec: JobSpec) -> bool:
    """Return whether the primary is called `chief` rather than `master` (facts/program#tf_config). Vertex
    always uses `chief`. `ml` uses `chief` from runtime 2.1 on, and in container jobs that request it."""
    if spec.api is Api.VERTEX:
        return True
    if is_container_job(spec):
        return spec.use_chief_in_tf_config
    return images.names_chief(spec.runtime_version)


def is_container_job(spec: JobSpec) -> bool:
    """Return whether the job specifies a container image for its primary instead of an `ml` runtime
    version."""
    return bool(spec.pool(0).program.image_uri)


def is_reducer(spec: JobSpec, pool: int) -> bool:
    """Return whether the replicas of a pool are reducers of a reduction server."""
    return pool == PS_POOL and has_reducers(spec)


def has_reducers(spec: JobSpec) -> bool:
    """Return whether the third pool of a job consists of reducers. Frameworks must not receive the addresses
    of reducers as parameter servers."""
    return reducers_of(spec.pools) is not None


def reducers_of(pools: Iterable[WorkerPool]) -> WorkerPool | None:
    """Return the pool of reducers, or None if no pool has reducers."""
    for pool in pools:
        if pool.position == PS_POOL and images.is_reduction_server(pool.program.image_uri):
            return pool
    return None


def reducers(spec: JobSpec) -> tuple[ReplicaId, ...]:
    """Return the reducers of a job, in the order of the list that workers receive."""
    return spec.pool(PS_POOL).replicas() if has_reducers(spec) else ()


def takes_part_in_reduction(spec: JobSpec, replica: ReplicaId) -> bool:
    """Return whether a replica takes part in a reduction: the job has reducers, and the replica is a reducer,
    the primary or a worker."""
    return has_reducers(spec) and replica.pool <= PS_POOL


def role(spec: JobSpec, replica: ReplicaId) -> str:
    """Return the role of a replica in TF_CONFIG and in `ml` hostnames: `master` or `chief`, `worker`, `ps`,
    `evaluator`."""
    if replica.pool == 0 and names_chief(spec):
        return "chief"
    return ML_ROLES[replica.pool]


def hostname(uid: JobUid, spec: JobSpec, replica: ReplicaId) -> str:
    """Return a replica's hostname. It stays the same in all attempts, and whenever the replica is restarted.
    In practice, no two jobs have the same hostname (facts/program#cluster_spec)."""
    place = f"workerpool{replica.pool}" if spec.api is Api.VERTEX else role(spec, replica)
    return f"cmle-training-{place}-{host_token(uid)}-{replica.index}"

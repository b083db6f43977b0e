"""What the replicas of a job with a Reduction Server are told about it (spec/reduction#settings). Pure.

`trainshed_reduction.variables`, which their programs read too, defines the names of their variables and the
allowed values.
"""

from trainshed.core import secrets
from trainshed.core.catalog.machines import machine_types
from trainshed.core.cluster import PS_POOL, Endpoints, has_reducers, is_reducer
from trainshed.core.job import JobSpec
from trainshed.core.names import JobUid, ReplicaId
from trainshed_reduction import variables as known

PROGRAM = ("python3", "-m", "trainshed_reduction.reducer")
"""The command line of reducers."""


def takes_part(spec: JobSpec, replica: ReplicaId) -> bool:
    """Whether a replica reduces, or can have its sums made: it belongs to the reducers, or is the primary or
    a worker, of a job with reducers."""
    return has_reducers(spec) and replica.pool <= PS_POOL


def reducers(spec: JobSpec) -> tuple[ReplicaId, ...]:
    """Return the reducers of a job, in the order in which workers are told of them."""
    return spec.pool(PS_POOL).replicas() if has_reducers(spec) else ()


def variables(
    spec: JobSpec, endpoints: Endpoints, replica: ReplicaId, attempt: int
) -> dict[str, str]:
    """Return the variables that a job may change; none for a replica that takes no part."""
    if not takes_part(spec, replica):
        return {}
    if is_reducer(spec, replica.pool):
        return {known.LISTEN: str(endpoints[replica])}
    places = ",".join(str(endpoints[reducer]) for reducer in reducers(spec))
    environ = {known.REDUCERS: places, known.ATTEMPT: str(attempt), known.REPLICA: str(replica)}
    return environ | _bandwidths(spec)


def credentials(spec: JobSpec, replica: ReplicaId, uid: JobUid) -> dict[str, str]:
    """Return the variable by which workers and reducers know each other, which a job may not change. Its
    value is a mark of what the service makes (`core.secrets`)."""
    return {known.TOKEN: secrets.job_mark(uid)} if takes_part(spec, replica) else {}


def _bandwidths(spec: JobSpec) -> dict[str, str]:
    """Return the Gbit/s each way of the slowest worker and of a reducer; nothing unless both are known."""
    of_types = {name: kind.egress_gbps or 0.0 for name, kind in machine_types().items()}
    gbps = {pool.position: of_types.get(pool.machine.type, 0.0) for pool in spec.pools}
    worker = min(gbps[position] for position in gbps if position < PS_POOL)
    if not worker or not gbps[PS_POOL]:
        return {}
    return {known.WORKER_GBPS: f"{worker:g}", known.REDUCER_GBPS: f"{gbps[PS_POOL]:g}"}

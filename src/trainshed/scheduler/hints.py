"""What would let a job start now: with fewer replicas of its largest pool."""

from collections.abc import Sequence

from trainshed.core.names import ML_ROLES, Api, JobName, ReplicaId
from trainshed.scheduler.books import Entry
from trainshed.scheduler.model import Demand, Gang
from trainshed.scheduler.rooms import Kind, holds
from trainshed.scheduler.snapshot import Snapshot


def hint(snapshot: Snapshot, entry: Entry) -> str:
    """With how many replicas of its largest pool it would start now, "" if that does not help. Nothing is promised
    while room is kept for others."""
    pools: dict[int, int] = {}
    for replica, _ in entry.gang.replicas:
        pools[replica.pool] = pools.get(replica.pool, 0) + 1
    pool, count = max(pools.items(), key=lambda item: (item[1], item[0]))
    if count < 2 or snapshot.kept:
        return ""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if _fits_with(snapshot, entry, pool, middle) else (low, middle - 1)
        )
    if not low:
        return ""
    plural = "replicas" if low > 1 else "replica"
    return f"would start now with at most {low} {plural} in {_pool_name(entry.gang, pool)}"


def _fits_with(snapshot: Snapshot, entry: Entry, pool: int, count: int) -> bool:
    gang = entry.gang
    replicas = [item for item in gang.replicas if item[0].pool != pool or item[0].index < count]
    for meter, amount in entry.meters:
        if meter.limit is None:
            continue
        less = _scaled(gang.replicas, replicas, amount)
        if not meter.lets(less, meter.limit - meter.used, meter.used):
            return False
    if not snapshot.policy.strict:
        return bool(snapshot.loads)
    sorts = dict(zip((replica for replica, _ in gang.replicas), entry.kinds, strict=True))
    counts: dict[Kind, int] = {}
    for replica, _ in replicas:
        counts[sorts[replica]] = counts.get(sorts[replica], 0) + 1
    return holds(snapshot.free, tuple(counts.items())) is not None


def _scaled(
    replicas: Sequence[tuple[ReplicaId, Demand]],
    fewer: Sequence[tuple[ReplicaId, Demand]],
    amount: int,
) -> int:
    """What fewer replicas take of a quota. Exact for equal ones; for others all of it, as it is not known whose it is."""
    if len({demand for _, demand in replicas}) > 1:
        return amount
    return amount * len(fewer) // len(replicas)


def _pool_name(gang: Gang, pool: int) -> str:
    try:
        is_ml = JobName.parse(gang.name).api is Api.ML
    except ValueError:
        is_ml = False
    return f"the {ML_ROLES[pool]} pool" if is_ml else f"workerpool{pool}"

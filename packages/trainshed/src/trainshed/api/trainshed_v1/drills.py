"""Drills of a job (spec/operations#drills)."""

import re
from typing import Final

from msgspec import structs

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.resources.jobs import find_job
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.core.errors import FailedPrecondition, closest
from trainshed.core.lifecycle.records import Drill, DrillKind, Job
from trainshed.core.names import ML_ROLES, Api, ReplicaId, log_task_name
from trainshed.core.patterns import PatternError, compile_regex
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1 import drills as records

MOST_DRILLS: Final = 100
"""Most drills of one job."""
_NAMED: Final = 10
"""Most replicas that an error names."""
_ROLES: Final = {role: pool for pool, role in enumerate(ML_ROLES)} | {"chief": 0}
_BY_ROLE: Final = re.compile(rf"({'|'.join(_ROLES)})(?:(?: |-|-replica-)(\d{{1,6}}))?", re.ASCII)


async def drill(call: JsonCall) -> records.Drill:
    """`POST /trainshed/v1/jobs/{job}:drill`: order a drill. Raises FailedPrecondition if the job is over or
    has had too many."""
    services = call.services
    job, _ = await find_job(services.reader, call.target)
    ordered = _read_drill(*call.sent(records.DrillOrder), services.now(), job)
    if len(job.drills) >= MOST_DRILLS:
        raise FailedPrecondition(
            f"{job.name} has had {len(job.drills)} drills, and that is all that a job may have;"
            " drill another job."
        )
    services.wake(await services.intake.order_drill(job.name, ordered))
    return drill_view(ordered, job.name.api)


def _read_drill(order: records.DrillOrder, faults: Faults, now: Nanos, job: Job) -> Drill:
    """Return the drill of the job that is ordered. Raises InvalidRequest with all faults."""
    kinds = tuple(DrillKind)
    if order.kind not in kinds:
        text = f"{order.kind!r} is not one of: {', '.join(kinds)}.{closest(order.kind, kinds)}"
        faults.add("kind", text)
    replica = read_replica(order.replica, job, faults)
    try:
        compile_regex(order.at_line)
    except PatternError as error:
        faults.add("atLine", str(error))
    faults.refuse()
    return Drill(0, DrillKind(order.kind), replica, now, order.at_line)


def drill_view(drill: Drill, api: Api) -> records.Drill:
    return records.Drill(
        number=drill.number,
        **structs.asdict(order_view(drill)),
        task=log_task_name(api, drill.replica),
        state=_state(drill),
        order_time=text_micros(drill.ordered),
        fire_time=text_micros(drill.fired),
        attempt=drill.attempt,
        incarnation=drill.incarnation,
    )


def order_view(drill: Drill) -> records.DrillOrder:
    """Return a drill as the record that orders it."""
    return records.DrillOrder(
        kind=drill.kind.value,
        replica=str(drill.replica),
        at_line=drill.at_line,
    )


def _state(drill: Drill) -> str:
    if not drill.number:
        return "ordered"
    if drill.is_armed:
        return "armed"
    return "done" if drill.done else "fired"


def _no_replica(job: Job, name: str) -> str:
    replicas = job.spec.replicas()
    known = ", ".join(log_task_name(job.name.api, r) for r in replicas[:_NAMED])
    more = f" and {len(replicas) - _NAMED} more" if len(replicas) > _NAMED else ""
    return f"{job.name} has no replica {name}; it has: {known}{more}."


def read_replica(text: str, job: Job, faults: Faults) -> ReplicaId:
    """Return the replica of a job that is meant, for "" the primary; faults are noted."""
    text = text.strip()
    replica, shown = ReplicaId(0, 0), text
    try:
        replica = ReplicaId.parse(text) if text else replica
    except ValueError:
        match = _BY_ROLE.fullmatch(text.lower())
        replica = ReplicaId(_ROLES[match[1]], int(match[2] or 0)) if match else None
        shown = str(replica or repr(text))
    if replica is None or replica not in job.spec.replicas():
        faults.add("replica", _no_replica(job, shown))
    return replica or ReplicaId(0, 0)

"""Capacity: nodes and their maintenance (spec/failures#maintenance), quotas of projects and users by region,
and usage in hours and money (spec/queue#quotas).

The defaults of `project` and `region` are those of the service.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.policy import member_fault
from trainshed.access.principals import member_of
from trainshed.api.calls.services import CapacityView
from trainshed.api.resources.jobs import read_job_name
from trainshed.api.trainshed_v1.call import JsonCall, queried_location, read_location, read_project
from trainshed.api.trainshed_v1.replicas import measured_usage
from trainshed.core.capacity import EACH, NodeStatus, QuotaKey, QuotaStatus
from trainshed.core.catalog import quotas as catalog
from trainshed.core.errors import NotFound, PermissionDenied, Unavailable, closest
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos, text_micros
from trainshed.core.usage import MachineTime, Prices, month_of
from trainshed.store import audit
from trainshed.store.logs.usage import with_busy_processors
from trainshed.store.port import NodeDrain
from trainshed.wire.trainshed_v1 import capacity as records
from trainshed.wire.trainshed_v1.record import Nothing
from trainshed.wire.trainshed_v1.replicas import ReplicaUsage, Usage

_MAX_REASON_LENGTH = 500
_MAX_MEASURED_JOBS = 100
"""Maximum number of jobs whose measured usage is read. If there are more, `usage` omits measurements of
running jobs, and of nodes without accelerators."""


async def list_nodes(call: JsonCall) -> records.NodeList:
    """`GET /trainshed/v1/nodes[?usage=true]`: list the nodes and their replicas. With `usage`, also return
    the last measured usage of each replica, for about the first hundred jobs."""
    nodes = [node_view(node) for node in call.services.capacity.nodes()]
    jobs: dict[str, tuple[Job, Usage] | None] = {}
    for place, node in enumerate(nodes):
        is_measured = call.flag("usage") and len(jobs) < _MAX_MEASURED_JOBS
        if node.replicas and (node.accelerators or is_measured):
            replicas = [await _with_usage(call, replica, jobs) for replica in node.replicas]
            nodes[place] = structs.replace(node, replicas=tuple(replicas))
    return records.NodeList(nodes=tuple(nodes))


async def _with_usage(
    call: JsonCall, view: records.NodeReplica, jobs: dict[str, tuple[Job, Usage] | None]
) -> records.NodeReplica:
    """Return the view of a replica with its accelerators on the node, and with its usage if requested.
    `jobs`: cache of jobs by name; None = the job was deleted in the meantime."""
    if view.job not in jobs:
        try:
            job, _ = await call.services.reader.job(read_job_name(view.job, field="job"))
            jobs[view.job] = (job, await measured_usage(call, job)) if isinstance(job, Job) else None
        except NotFound:
            jobs[view.job] = None
    if (quotas_by_key := jobs[view.job]) is None:
        return view
    job, usage = quotas_by_key
    use = next((use for use in usage.replicas if use.id == view.replica), ReplicaUsage())
    running_uses = job.spec.pool(ReplicaId.parse(view.replica).pool).machine.accelerators
    if running_uses is not None:
        gpus = tuple([gpu.uuid for gpu in use.gpus])
        view = structs.replace(
            view, accelerator=running_uses.type, accelerators=running_uses.count, gpus=gpus
        )
    return structs.replace(view, usage=use) if call.flag("usage") and use.sample_time else view


async def drain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:drain`: start no more replicas on the node, and move the running ones
    to other nodes. May be repeated. Raises NotFound, whose message contains the names of all nodes."""
    services = call.services
    request, faults = call.read_body(records.DrainRequest)
    if len(request.reason) > _MAX_REASON_LENGTH:
        faults.add(
            "reason",
            f"The reason has {len(request.reason)} characters. At most {_MAX_REASON_LENGTH} are allowed.",
        )
    faults.refuse()
    _require_node(services.capacity, call.target)
    await services.intake.drain_node(NodeDrain(call.target, services.now(), request.reason))
    await services.capacity.capacity_changed()
    return _current_node(services.capacity, call.target)


async def undrain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:undrain`: return the node to service. Also accepts a node that
    is not drained, and a drained node that no longer exists. Raises Unavailable, and NotFound with the names
    of all nodes."""
    services = call.services
    call.read_body(Nothing)[1].refuse()
    if all(drain.node != call.target for drain in await services.reader.drained_nodes()):
        _require_node(services.capacity, call.target)
    await services.intake.undrain_node(call.target)
    await services.capacity.readmit(call.target)
    await services.capacity.capacity_changed()
    return _current_node(services.capacity, call.target)


def node_view(node: NodeStatus) -> records.Node:
    used, other_use = dict(node.used_accelerators), dict(node.others.accelerators)
    return records.Node(
        name=node.name,
        condition=node.condition.value,
        cause=node.cause or "",
        vcpus=node.vcpus,
        used_vcpus=node.used_vcpus,
        memory_bytes=node.memory_bytes,
        used_memory_bytes=node.used_memory_bytes,
        others_vcpus=node.others.vcpus,
        others_memory_bytes=node.others.memory_bytes,
        accelerators=tuple(
            records.NodeAccelerators(
                type=kind, count=count, used=used.get(kind, 0), used_by_others=other_use.get(kind, 0)
            )
            for kind, count in node.accelerators
        ),
        replicas=tuple(
            records.NodeReplica(job=job, replica=replica)
            for job, _, replica in (text.rpartition(" ") for text in node.replicas)
        ),
    )


def _require_node(capacity: CapacityView, name: str) -> None:
    names = [node.name for node in capacity.nodes()]
    if name not in names:
        existing = f"Use one of: {', '.join(names)}" if names else "No node is connected now"
        raise NotFound(f"The node {name!r} does not exist. {existing}.{closest(name, names)}")


def _current_node(capacity: CapacityView, name: str) -> records.Node:
    """Return the current state of a node. If it no longer exists, return only its name."""
    return next((node_view(node) for node in capacity.nodes() if node.name == name), records.Node(name=name))


_ALL_PROJECTS: Final = "-"
_MAX_ATTEMPTS: Final = 20
_LABEL_PREFIX: Final = "labels."
_GROUPINGS: Final[dict[str, Callable[[MachineTime], str]]] = {
    "user": lambda used: used.person,
    "project": lambda used: used.project_id,
    "node": lambda used: used.node,
    "machine": lambda used: " + ".join(filter(None, (used.machine, used.accelerator))),
}
UNLIMITED: Final = "unlimited"
_MAX_LIMIT: Final = 10**12


async def list_quotas(call: JsonCall) -> records.QuotaList:
    """`GET /trainshed/v1/quotas?project=P&region=R[&all=true]`: list the quotas that have a limit or usage,
    including quotas without a region. With `all`, list the quotas for all metrics that jobs may use."""
    project, region = queried_location(call)
    quotas_by_key = {
        quota.key: quota
        for quota in call.services.capacity.quotas(project)
        if quota.key.region in (region, catalog.GLOBAL)
    }
    if call.flag("all"):
        keys = (_global_or_region_key(project, region, metric, "") for metric in catalog.metrics())
        quotas_by_key = {
            key: QuotaStatus(key=key, limit=None, used=0, waiting=0) for key in keys
        } | quotas_by_key
    ordered = sorted(quotas_by_key, key=lambda key: (key.metric, key.person))
    return records.QuotaList(
        project=project, region=region, quotas=tuple(quota_view(quotas_by_key[key]) for key in ordered)
    )


async def set_quota(call: JsonCall) -> records.PlacedQuota:
    """`POST /trainshed/v1/quotas:set`: set the limit of a quota, or remove it. Jobs that were already
    admitted keep their capacity. An owner of a project cannot raise a limit that an owner of the service has
    set. Raises PermissionDenied."""
    quota_limit, faults = call.read_body(records.QuotaLimit)
    key = _key(call, quota_limit, faults)
    limit = None if quota_limit.limit == UNLIMITED else quota_limit.limit
    if isinstance(limit, str) or not 0 <= (limit or 0) <= _MAX_LIMIT:
        faults.add("limit", f'The limit must be a number from 0 to {_MAX_LIMIT:g}, or "{UNLIMITED}".')
    faults.refuse()
    assert not isinstance(limit, str), "that is a fault"
    by_service = PERMISSIONS["trainshed.v1.Quotas.Set"] in call.principal.rights.everywhere
    if key.metric in (catalog.SHARE, catalog.PRIORITY) and not (key.person or by_service):
        raise PermissionDenied(
            f"A project's {key.metric} affects other projects, so only an owner of the service can set it. "
            "You can set the limits of users in the project (--user)."
        )
    services = call.services
    if (under_way := audit.current_call()) is not None:
        record, after = under_way.record, UNLIMITED if limit is None else limit
        record.resource = f"quota of {key.metric} in {key.region}"
        record.resource += f" for {key.person}" if key.person else ""
        record.detail = {"before": _current_quota(call, key).limit, "after": after}
    await services.intake.set_quota(key, limit, by_service=by_service)
    await services.capacity.capacity_changed()
    return _current_quota(call, key)


def quota_view(quota: QuotaStatus) -> records.Quota:
    return records.Quota(
        metric=quota.key.metric,
        user=quota.key.person,
        limit=UNLIMITED if quota.limit is None else quota.limit,
        used=quota.used,
        waiting=quota.waiting,
    )


def _current_quota(call: JsonCall, key: QuotaKey) -> records.PlacedQuota:
    """Return the current state of a quota."""
    quotas = call.services.capacity.quotas(key.project_id)
    unlisted = QuotaStatus(key=key, limit=None, used=0, waiting=0)
    quota = next((candidate for candidate in quotas if candidate.key == key), unlisted)
    return records.PlacedQuota(project=key.project_id, region=key.region, **structs.asdict(quota_view(quota)))


def _key(call: JsonCall, quota_limit: records.QuotaLimit, faults: Faults) -> QuotaKey:
    project, region = read_location(call, quota_limit.project, quota_limit.region, faults)
    metric, user, quotas_by_key = quota_limit.metric, quota_limit.user, catalog.metrics()
    if metric not in quotas_by_key:
        advice = closest(metric, quotas_by_key) or " List all metrics: trainshed quotas list --all"
        faults.add("metric", f"{metric!r} is not a metric that jobs use.{advice}")
    if user and user != EACH and (fault := member_fault(member_of(user))):
        faults.add("user", f"{fault} Or {EACH!r}: every user without a limit of their own.")
    return _global_or_region_key(project, region, metric, user)


def _global_or_region_key(project: str, region: str, metric: str, person: str) -> QuotaKey:
    is_global = metric in catalog.OF_ALL_REGIONS
    return QuotaKey(
        project_id=project, region=catalog.GLOBAL if is_global else region, metric=metric, person=person
    )


async def usage(call: JsonCall) -> records.UsageReport:
    """`GET /trainshed/v1/usage?project=P[&by=B][&since=T][&until=T]`: return the usage by jobs between two
    times. Default: from the start of this month (UTC) until now. Rows are ordered by cost, then by GPU-hours,
    then by CPU-hours, highest first. `by`: `user` (the default), `project`, `node`, `machine` or
    `labels.KEY`. `project=-` selects all projects."""
    faults, requested = Faults(), call.parameter("project")
    project = None if requested == _ALL_PROJECTS else read_project(call, requested, faults)
    by = call.parameter("by") or "user"
    if by not in _GROUPINGS and not by.startswith(_LABEL_PREFIX):
        faults.add(
            "by", f"{by!r} is not a grouping. Use one of {', '.join(_GROUPINGS)} and {_LABEL_PREFIX}KEY."
        )
    now = call.services.now()
    with faults.collect():
        until = call.moment("until", now)
        since = call.moment("since", month_of(now)[0])
        if since > until:
            faults.add("since", "`since` is later than `until`.")
    faults.refuse()
    used = await _machine_time(call, project, since, min(until, now))
    label = by.removeprefix(_LABEL_PREFIX)
    group_of = _GROUPINGS.get(by, lambda used: dict(used.labels).get(label, ""))
    rows = _rows(used, group_of, call.services.settings.prices)
    return records.UsageReport(
        project=_ALL_PROJECTS if project is None else project,
        by=by,
        since=text_micros(since),
        until=text_micros(min(until, now)),
        rows=rows,
    )


async def _machine_time(
    call: JsonCall, project: str | None, since: Nanos, until: Nanos
) -> tuple[MachineTime, ...]:
    """Return the usage of finished and running attempts."""
    capacity, reservations = call.services.capacity, call.services.reservations
    for _ in range(_MAX_ATTEMPTS):
        holding, reserved = capacity.placed_jobs(), tuple(reservations.uses(until))
        ended = await call.services.reader.machine_time(project, since, until)
        # Read the occupied capacity again. If machines were released in the meantime, read everything again,
        # because those machines would be counted twice.
        after = {(job.uid, job.placed) for job in capacity.placed_jobs()}
        is_same = reserved == tuple(reservations.uses(until))
        if is_same and all((job.uid, job.placed) in after for job in holding):
            break
    else:
        raise Unavailable(
            "The usage cannot be computed, because too many jobs are finishing now. Try again in a moment."
        )
    running = [use.within(since, until) for use in reserved if project in (None, use.project_id)]
    requested = [job for job in holding if project in (None, job.name.project_id)]
    for number, job in enumerate(requested):
        running_uses = capacity.uses(job, until)
        if running_uses and number < _MAX_MEASURED_JOBS and running_uses[0].began < until:
            usages = await call.services.logs.usage(job.uid, job.attempt)
            running_uses = tuple(with_busy_processors(use, usages) for use in running_uses)
        running += (use.within(since, until) for use in running_uses)
    return (*ended, *running)


def _rows(
    used: tuple[MachineTime, ...], key: Callable[[MachineTime], str], prices: Prices
) -> tuple[records.UsageRow, ...]:
    items: dict[str, list[MachineTime]] = {}
    for item in used:
        items.setdefault(key(item), []).append(item)
    rows = (_row(name, group_items, prices) for name, group_items in items.items())
    running_uses = (row for row in rows if row.machine_hours)
    return tuple(sorted(running_uses, key=lambda row: (-row.cost, -row.gpu_hours, -row.cpu_hours)))


def _row(name: str, items: Sequence[MachineTime], prices: Prices) -> records.UsageRow:
    def total(field: str) -> float:
        return sum(getattr(item, field) for item in items)

    seen_cpus, seen_gpus = total("seen_cpu_hours"), total("seen_gpu_hours")
    return records.UsageRow(
        name=name,
        gpu_hours=total("gpu_hours"),
        cpu_hours=total("cpu_hours"),
        gigabyte_hours=total("gigabyte_hours"),
        machine_hours=total("machine_hours"),
        cpu_share=total("busy_cpu_hours") / seen_cpus if seen_cpus else None,
        gpu_share=total("busy_gpu_hours") / seen_gpus if seen_gpus else None,
        cost=sum(map(prices.cost, items)),
    )

"""Capacity: nodes and their maintenance (spec/failures#maintenance); quotas of projects in regions and of
people in them, and what they have used: hours and money (spec/queue#quotas).

Without `project` and `region` the service's own are meant.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from trainshed.access.permissions import PERMISSIONS
from trainshed.access.policy import member_fault
from trainshed.access.principals import member_of
from trainshed.api.calls.services import CapacityView
from trainshed.api.resources.jobs import read_job_name
from trainshed.api.trainshed_v1.call import JsonCall, queried_place, read_place, read_project
from trainshed.api.trainshed_v1.replicas import usage_of
from trainshed.core.capacity import EACH, NodeStatus, QuotaKey, QuotaStatus
from trainshed.core.catalog import quotas as catalog
from trainshed.core.errors import NotFound, PermissionDenied, Unavailable, closest
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId
from trainshed.core.requests import Faults
from trainshed.core.units import Nanos, text_micros
from trainshed.core.usage import MachineTime, Prices, month_of
from trainshed.store import audit
from trainshed.store.logs.usage import measured
from trainshed.store.port import NodeDrain
from trainshed.wire.trainshed_v1 import capacity as records
from trainshed.wire.trainshed_v1.record import Nothing
from trainshed.wire.trainshed_v1.replicas import ReplicaUsage, Usage

_LONGEST_REASON = 500
_MOST_MEASURED = 100
"""Jobs after which no further ones that run, nor nodes without accelerators, say what is used."""


async def list_nodes(call: JsonCall) -> records.NodeList:
    """`GET /trainshed/v1/nodes[?usage=true]`: list the nodes; with what their replicas were last seen to use,
    of the first hundred jobs or so."""
    nodes = [node_view(node) for node in call.services.capacity.nodes()]
    jobs: dict[str, tuple[Job, Usage] | None] = {}
    for place, node in enumerate(nodes):
        is_measured = call.flag("usage") and len(jobs) < _MOST_MEASURED
        if node.replicas and (node.accelerators or is_measured):
            replicas = [await _with_usage(call, replica, jobs) for replica in node.replicas]
            nodes[place] = structs.replace(node, replicas=tuple(replicas))
    return records.NodeList(nodes=tuple(nodes))


async def _with_usage(
    call: JsonCall, view: records.NodeReplica, jobs: dict[str, tuple[Job, Usage] | None]
) -> records.NodeReplica:
    """Return the view with the replica's share of the node's accelerators, and what it uses if that is
    wanted. `jobs`: what was read already, by the job's name; None = it was deleted a moment ago."""
    if view.job not in jobs:
        try:
            job, _ = await call.services.reader.job(read_job_name(view.job, field="job"))
            jobs[view.job] = (job, await usage_of(call, job)) if isinstance(job, Job) else None
        except NotFound:
            jobs[view.job] = None
    if (known := jobs[view.job]) is None:
        return view
    job, usage = known
    use = next((use for use in usage.replicas if use.id == view.replica), ReplicaUsage())
    held = job.spec.pool(ReplicaId.parse(view.replica).pool).machine.accelerators
    if held is not None:
        gpus = tuple([gpu.uuid for gpu in use.gpus])
        view = structs.replace(view, accelerator=held.type, accelerators=held.count, gpus=gpus)
    return structs.replace(view, usage=use) if call.flag("usage") and use.sample_time else view


async def drain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:drain`: start nothing new on the node, and ask what runs there to
    leave. It can be repeated. Raises NotFound, which names the nodes."""
    services = call.services
    sent, faults = call.sent(records.DrainRequest)
    if len(sent.reason) > _LONGEST_REASON:
        faults.add("reason", f"It has {len(sent.reason)} characters; at most {_LONGEST_REASON}.")
    faults.refuse()
    _known(services.capacity, call.target)
    await services.intake.drain_node(NodeDrain(call.target, services.now(), sent.reason))
    await services.capacity.capacity_changed()
    return _node_of(services.capacity, call.target)


async def undrain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:undrain`: let the node take work again. The node need not be drained,
    and a drained node need not exist any more. Raises NotFound, which names the nodes, and Unavailable."""
    services = call.services
    call.sent(Nothing)[1].refuse()
    if all(drain.node != call.target for drain in await services.reader.drained_nodes()):
        _known(services.capacity, call.target)
    await services.intake.undrain_node(call.target)
    await services.capacity.readmit(call.target)
    await services.capacity.capacity_changed()
    return _node_of(services.capacity, call.target)


def node_view(node: NodeStatus) -> records.Node:
    used, others = dict(node.used_accelerators), dict(node.others.accelerators)
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
                type=kind, count=count, used=used.get(kind, 0), used_by_others=others.get(kind, 0)
            )
            for kind, count in node.accelerators
        ),
        replicas=tuple(
            records.NodeReplica(job=job, replica=replica)
            for job, _, replica in (text.rpartition(" ") for text in node.replicas)
        ),
    )


def _known(capacity: CapacityView, name: str) -> None:
    names = [node.name for node in capacity.nodes()]
    if name not in names:
        there = f"the nodes are: {', '.join(names)}" if names else "there is no node now"
        raise NotFound(f"There is no node {name!r}; {there}.{closest(name, names)}")


def _node_of(capacity: CapacityView, name: str) -> records.Node:
    """Return the node as it is now; only its name if it no longer exists."""
    return next(
        (node_view(node) for node in capacity.nodes() if node.name == name), records.Node(name=name)
    )


_ALL_PROJECTS: Final = "-"
_TRIES: Final = 20
_LABEL: Final = "labels."
_BY: Final[dict[str, Callable[[MachineTime], str]]] = {
    "user": lambda used: used.person,
    "project": lambda used: used.project_id,
    "node": lambda used: used.node,
    "machine": lambda used: " + ".join(filter(None, (used.machine, used.accelerator))),
}
UNLIMITED: Final = "unlimited"
_LARGEST: Final = 10**12


async def list_quotas(call: JsonCall) -> records.QuotaList:
    """`GET /trainshed/v1/quotas?project=P&region=R[&all=true]`: list each quota that has a limit or is used,
    those of no region included; with `all` those of every metric that jobs may use."""
    project, region = queried_place(call)
    known = {
        quota.key: quota
        for quota in call.services.capacity.quotas(project)
        if quota.key.region in (region, catalog.GLOBAL)
    }
    if call.flag("all"):
        keys = (_key_of(project, region, metric, "") for metric in catalog.metrics())
        known = {key: QuotaStatus(key=key, limit=None, used=0, waiting=0) for key in keys} | known
    ordered = sorted(known, key=lambda key: (key.metric, key.person))
    return records.QuotaList(
        project=project, region=region, quotas=tuple(quota_view(known[key]) for key in ordered)
    )


async def set_quota(call: JsonCall) -> records.PlacedQuota:
    """`POST /trainshed/v1/quotas:set`: set a quota, or take its limit away. A job that was admitted under
    another limit keeps its capacity. An owner of the project cannot loosen a limit of the service's owner.
    Raises PermissionDenied."""
    wanted, faults = call.sent(records.QuotaLimit)
    key = _key(call, wanted, faults)
    limit = None if wanted.limit == UNLIMITED else wanted.limit
    if isinstance(limit, str) or not 0 <= (limit or 0) <= _LARGEST:
        faults.add("limit", f'It must be a number from 0 to {_LARGEST:g}, or "{UNLIMITED}".')
    faults.refuse()
    assert not isinstance(limit, str), "that is a fault"
    is_of_service = PERMISSIONS["trainshed.v1.Quotas.Set"] in call.principal.rights.everywhere
    if key.metric in (catalog.SHARE, catalog.PRIORITY) and not (key.person or is_of_service):
        raise PermissionDenied(
            f"A project's {key.metric} affects other projects, so only an owner of the service can set it. "
            "You can set the limits of users in the project (--user)."
        )
    services = call.services
    if (under_way := audit.under_way()) is not None:
        record, after = under_way.record, UNLIMITED if limit is None else limit
        record.resource = f"quota of {key.metric} in {key.region}"
        record.resource += f" for {key.person}" if key.person else ""
        record.detail = {"before": _quota_of(call, key).limit, "after": after}
    await services.intake.set_quota(key, limit, by_service=is_of_service)
    await services.capacity.capacity_changed()
    return _quota_of(call, key)


def quota_view(quota: QuotaStatus) -> records.Quota:
    return records.Quota(
        metric=quota.key.metric,
        user=quota.key.person,
        limit=UNLIMITED if quota.limit is None else quota.limit,
        used=quota.used,
        waiting=quota.waiting,
    )


def _quota_of(call: JsonCall, key: QuotaKey) -> records.PlacedQuota:
    """Return the quota as it is now."""
    quotas = call.services.capacity.quotas(key.project_id)
    unlisted = QuotaStatus(key=key, limit=None, used=0, waiting=0)
    quota = next((candidate for candidate in quotas if candidate.key == key), unlisted)
    return records.PlacedQuota(
        project=key.project_id, region=key.region, **structs.asdict(quota_view(quota))
    )


def _key(call: JsonCall, wanted: records.QuotaLimit, faults: Faults) -> QuotaKey:
    project, region = read_place(call, wanted.project, wanted.region, faults)
    metric, user, known = wanted.metric, wanted.user, catalog.metrics()
    if metric not in known:
        advice = closest(metric, known) or " Those that have a limit: trainshed quotas list --all"
        faults.add("metric", f"{metric!r} is not a metric that jobs use.{advice}")
    if user and user != EACH and (fault := member_fault(member_of(user))):
        faults.add("user", f"{fault} Or {EACH!r}: every user without a limit of their own.")
    return _key_of(project, region, metric, user)


def _key_of(project: str, region: str, metric: str, person: str) -> QuotaKey:
    is_of_all = metric in catalog.OF_ALL_REGIONS
    return QuotaKey(
        project_id=project,
        region=catalog.GLOBAL if is_of_all else region,
        metric=metric,
        person=person,
    )


async def usage(call: JsonCall) -> records.UsageReport:
    """`GET /trainshed/v1/usage?project=P[&by=B][&since=T][&until=T]`: return what programs of jobs used
    between two moments, by default from the beginning of this month (UTC) until now; the most expensive
    first, then those with the most GPU-hours and CPU-hours.

    `by`: `user` (the default), `project`, `node`, `machine` or `labels.KEY`. `project=-`: in all projects.
    """
    faults, chosen = Faults(), call.parameter("project")
    project = None if chosen == _ALL_PROJECTS else read_project(call, chosen, faults)
    by = call.parameter("by") or "user"
    if by not in _BY and not by.startswith(_LABEL):
        faults.add("by", f"{by!r} is none of {', '.join(_BY)} and {_LABEL}KEY.")
    now = call.services.now()
    with faults.gathered():
        until = call.moment("until", now)
        since = call.moment("since", month_of(now)[0])
        if since > until:
            faults.add("since", "It is later than `until`.")
    faults.refuse()
    used = await _used(call, project, since, min(until, now))
    label = by.removeprefix(_LABEL)
    way = _BY.get(by, lambda used: dict(used.labels).get(label, ""))
    rows = _rows(used, way, call.services.settings.prices)
    return records.UsageReport(
        project=_ALL_PROJECTS if project is None else project,
        by=by,
        since=text_micros(since),
        until=text_micros(min(until, now)),
        rows=rows,
    )


async def _used(
    call: JsonCall, project: str | None, since: Nanos, until: Nanos
) -> tuple[MachineTime, ...]:
    """Return what was used, by attempts that are over and by those that go on."""
    capacity, reservations = call.services.capacity, call.services.reservations
    for _ in range(_TRIES):
        holding, reserved = capacity.holding(), tuple(reservations.uses(until))
        ended = await call.services.reader.machine_time(project, since, until)
        # Machines that are released in the meantime must be counted once.
        after = {(job.uid, job.placed) for job in capacity.holding()}
        is_same = reserved == tuple(reservations.uses(until))
        if is_same and all((job.uid, job.placed) in after for job in holding):
            break
    else:
        raise Unavailable("Too many jobs are finishing now to be counted. Try again in a moment.")
    running = [use.within(since, until) for use in reserved if project in (None, use.project_id)]
    chosen = [job for job in holding if project in (None, job.name.project_id)]
    for number, job in enumerate(chosen):
        held = capacity.uses(job, until)
        if held and number < _MOST_MEASURED and held[0].began < until:
            usages = await call.services.logs.usage(job.uid, job.attempt)
            held = tuple(measured(use, usages) for use in held)
        running += (use.within(since, until) for use in held)
    return (*ended, *running)


def _rows(
    used: tuple[MachineTime, ...], key: Callable[[MachineTime], str], prices: Prices
) -> tuple[records.UsageRow, ...]:
    parts: dict[str, list[MachineTime]] = {}
    for part in used:
        parts.setdefault(key(part), []).append(part)
    rows = (_row(name, of_name, prices) for name, of_name in parts.items())
    held = (row for row in rows if row.machine_hours)
    return tuple(sorted(held, key=lambda row: (-row.cost, -row.gpu_hours, -row.cpu_hours)))


def _row(name: str, parts: Sequence[MachineTime], prices: Prices) -> records.UsageRow:
    def total(field: str) -> float:
        return sum(getattr(part, field) for part in parts)

    seen_cpus, seen_gpus = total("seen_cpu_hours"), total("seen_gpu_hours")
    return records.UsageRow(
        name=name,
        gpu_hours=total("gpu_hours"),
        cpu_hours=total("cpu_hours"),
        gigabyte_hours=total("gigabyte_hours"),
        machine_hours=total("machine_hours"),
        cpu_share=total("busy_cpu_hours") / seen_cpus if seen_cpus else None,
        gpu_share=total("busy_gpu_hours") / seen_gpus if seen_gpus else None,
        cost=sum(map(prices.cost, parts)),
    )

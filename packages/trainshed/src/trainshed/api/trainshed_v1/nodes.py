"""Nodes and their maintenance: list, drain, undrain (spec/failures#maintenance)."""

from msgspec import structs

from trainshed.api.calls.services import CapacityView
from trainshed.api.resources.jobs import read_job_name
from trainshed.api.trainshed_v1.call import JsonCall, near
from trainshed.core.capacity import NodeStatus
from trainshed.core.errors import NotFound
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import ReplicaId
from trainshed.store.port import NodeDrain
from trainshed.wire.trainshed_v1 import capacity as records

_LONGEST_REASON = 500


async def list_(call: JsonCall) -> records.NodeList:
    """`GET /trainshed/v1/nodes`: list the nodes."""
    nodes = [node_view(node) for node in call.services.capacity.nodes()]
    for place, node in enumerate(nodes):
        if node.accelerators and node.replicas:
            replicas = tuple([await _with_gpus(call, replica) for replica in node.replicas])
            nodes[place] = structs.replace(node, replicas=replicas)
    return records.NodeList(nodes=tuple(nodes))


async def _with_gpus(call: JsonCall, view: records.NodeReplica) -> records.NodeReplica:
    """Return the view with the replica's share of the node's accelerators."""
    services, replica = call.services, ReplicaId.parse(view.replica)
    try:
        job, _ = await services.reader.job(read_job_name(view.job, field="job"))
    except NotFound:
        return view  # It was over, and deleted, a moment ago.
    if not isinstance(job, Job):
        return view
    devices = job.spec.pool(replica.pool).machine.accelerators
    if devices is None:
        return view
    usage = await services.logs.usage(job.uid, job.attempt)
    gpus = next(
        (
            replica_usage.lives[-1].gpus
            for replica_usage in usage
            if replica_usage.replica == replica
        ),
        (),
    )
    return structs.replace(
        view, accelerator=devices.type, accelerators=devices.count, gpus=tuple(gpus)
    )


async def drain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:drain`: start nothing new on the node, and ask what runs there to
    leave. It can be repeated. Raises NotFound, which names the nodes."""
    services = call.services
    fields = call.fields()
    reason = fields.text("reason")
    if len(reason) > _LONGEST_REASON:
        fields.fault("reason", f"It has {len(reason)} characters; at most {_LONGEST_REASON}.")
    fields.refuse()
    _known(services.capacity, call.target)
    await services.intake.drain_node(NodeDrain(call.target, services.now(), reason))
    await services.capacity.capacity_changed()
    return _view_of(services.capacity, call.target)


async def undrain(call: JsonCall) -> records.Node:
    """`POST /trainshed/v1/nodes/{node}:undrain`: let the node take work again. The node need not be drained,
    and a drained node need not exist any more. Raises NotFound, which names the nodes, and Unavailable."""
    services = call.services
    call.fields().refuse()
    if all(drain.node != call.target for drain in await services.reader.drained_nodes()):
        _known(services.capacity, call.target)
    await services.intake.undrain_node(call.target)
    await services.capacity.readmit(call.target)
    await services.capacity.capacity_changed()
    return _view_of(services.capacity, call.target)


def node_view(node: NodeStatus) -> records.Node:
    used, others = dict(node.used_accelerators), dict(node.others.accelerators)
    return records.Node(
        name=node.name,
        condition=node.condition.value,
        cause=node.cause,
        vcpus=node.vcpus,
        used_vcpus=node.used_vcpus,
        memory_bytes=node.memory_bytes,
        used_memory_bytes=node.used_memory_bytes,
        others_vcpus=node.others.vcpus,
        others_memory_bytes=node.others.memory_bytes,
        accelerators=tuple(
            records.NodeAccelerators(
                type=kind,
                count=count,
                used=used.get(kind, 0),
                used_by_others=others.get(kind, 0),
            )
            for kind, count in node.accelerators
        ),
        replicas=tuple(_replica(text) for text in node.replicas),
    )


def _replica(text: str) -> records.NodeReplica:
    job, _, replica = text.rpartition(" ")
    return records.NodeReplica(job=job, replica=replica)


def _known(capacity: CapacityView, name: str) -> None:
    names = [node.name for node in capacity.nodes()]
    if name not in names:
        there = f"the nodes are: {', '.join(names)}" if names else "there is no node now"
        raise NotFound(f"There is no node {name!r}; {there}.{near(name, names)}")


def _view_of(capacity: CapacityView, name: str) -> records.Node:
    """Return the node as it is now; only its name if it no longer exists."""
    return next(
        (node_view(node) for node in capacity.nodes() if node.name == name), records.Node(name=name)
    )

"""`aiplatform` v1 PersistentResourceService: machines reserved for jobs (spec/queue#reservations)."""

from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import list_response
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.impersonation import actor_of
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Reservations, Services
from trainshed.api.resources.submission import compact_json
from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.records import person_of
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import Api
from trainshed.core.requests import Faults, Section
from trainshed.core.reservations import (
    RESOURCE_ID,
    Change,
    PersistentResource,
    PersistentResourceName,
    ReservationState,
    ResourcePool,
    Used,
    first_hold,
    public_resource,
    resize,
)
from trainshed.core.specs import worker_pool
from trainshed.core.specs.syntax import check_texts, read_labels, service_account_fault
from trainshed.core.specs.vertex import read_machine
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json

_SERVICE: Final = f"{V1}.PersistentResourceService"
_RESOURCE: Final = f"{V1}.PersistentResource"
_MAX_POOLS: Final = 10
_UPDATABLE: Final = ("display_name", "labels", "resource_pools")
_COUNT_PATH: Final = "resource_pools.replica_count"
_NO_SCALING: Final = "Machines are not added or removed automatically. Omit the field and set replicaCount."
_HOST_NETWORK: Final = "Jobs run in the network of their host. Omit the field."
_UNSERVED: Final = {
    "network": _HOST_NETWORK,
    "reservedIpRanges": _HOST_NETWORK,
    "pscInterfaceConfig": _HOST_NETWORK,
    "encryptionSpec": "Customer-managed keys are not supported. Omit the field.",
}
_RAY: Final = (
    "Ray clusters are not supported. Omit the field, and start Ray in a custom job with `ray start`. Its "
    "replicas find each other with CLUSTER_SPEC."
)


async def create(call: Call, request: Any) -> Message:
    """Request the machines of a new resource. The operation finishes when all machines are reserved, or when
    it is certain that they can never be reserved."""
    parent, services = known_location(request.parent), call.services
    sent = wire_json.to_public(request.persistent_resource)
    resource_id = request.persistent_resource_id or f"resource-{services.new_uid()}"
    pools = _read_new(sent, resource_id)
    if services.settings.queue:
        raise FailedPrecondition(
            f"Persistent resources are not available: {services.settings.queue} assigns the nodes "
            f"of this service. Create a reservation in {services.settings.queue}."
        )
    name = PersistentResourceName(parent.project_id, parent.location, resource_id)
    now, operation = services.now(), _operation(services, OperationKind.CREATE, name)
    record = PersistentResource(
        name=name,
        public_json=compact_json(sent),
        created=now,
        updated=now,
        pools=pools,
        holds=(first_hold(services.new_uid(), pools, now),),
        display_name=request.persistent_resource.display_name,
        labels=tuple(sent.get("labels", {}).items()),
        person=person_of(await actor_of(services.reader, call.principal)),
        operation=operation.name,
    )
    await services.reservations.create(record, operation)
    return await _operation_response(services, operation)


async def get(call: Call, request: Any) -> Message:
    resources = call.services.reservations
    await resources.wait_for_changes()
    return _view(resources, resources.get(PersistentResourceName.parse(request.name)))


async def list_(call: Call, request: Any) -> Message:
    parent, resources = known_location(request.parent), call.services.reservations
    await resources.wait_for_changes()
    records = resources.of_location(parent.project_id, parent.location)
    page, token = await _LISTING.page_of(records, request, str(parent))
    return list_response("List", "PersistentResources", map(partial(_view, resources), page), token)


async def update(call: Call, request: Any) -> Message:
    """Change names, labels, or numbers of machines. The operation finishes when the additional machines are
    reserved."""
    services, sent = call.services, request.persistent_resource
    name = PersistentResourceName.parse(sent.name, of="persistent_resource.name")
    paths = ["resource_pools" if path == _COUNT_PATH else path for path in request.update_mask.paths]
    fields = read_update_mask(paths, _UPDATABLE, sent)
    section = Section(wire_json.to_public(sent), "persistent_resource", Faults())
    check_texts(section, "displayName")
    labels = read_labels(section)
    section.faults.refuse()

    def change(current: PersistentResource, used: Used) -> PersistentResource:
        _require_state(current, ReservationState.RUNNING, ReservationState.UPDATING)
        if "display_name" in fields:
            current = replace(current, display_name=sent.display_name)
        if "labels" in fields:
            current = replace(current, labels=labels)
        if "resource_pools" in fields:
            current = _with_pools(current, section, used, services)
        return current

    return await _change(services, OperationKind.UPDATE, name, change)


async def reboot(call: Call, request: Any) -> Message:
    """Restart the jobs of a resource. If the resource is in the state ERROR, request the resource's machines
    again."""
    name = PersistentResourceName.parse(request.name)

    def change(current: PersistentResource, _: Used) -> PersistentResource:
        _require_state(current, ReservationState.RUNNING, ReservationState.ERROR)
        return replace(current, error=None, is_rebooting=current.error is None)

    return await _change(call.services, OperationKind.REBOOT, name, change)


async def delete(call: Call, request: Any) -> Message:
    """Cancel the jobs of a resource, and release its machines after the jobs have ended."""
    name, email = PersistentResourceName.parse(request.name), call.principal.email

    def change(current: PersistentResource, _: Used) -> PersistentResource:
        if current.deleted_by is not None:
            raise FailedPrecondition(f"{name} is already being deleted. Wait until the deletion finishes.")
        return replace(current, deleted_by=email)

    return await _change(call.services, OperationKind.DELETE, name, change)


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreatePersistentResource": create,
    f"{_SERVICE}.GetPersistentResource": get,
    f"{_SERVICE}.ListPersistentResources": list_,
    f"{_SERVICE}.UpdatePersistentResource": update,
    f"{_SERVICE}.RebootPersistentResource": reboot,
    f"{_SERVICE}.DeletePersistentResource": delete,
}
_LISTING: Final = Listing[PersistentResource](
    "persistent resources",
    {"display_name": lambda record: record.display_name, "state": lambda record: record.state.value},
    {},
)


async def _change(
    services: Services, kind: OperationKind, name: PersistentResourceName, change: Change
) -> Message:
    operation = _operation(services, kind, name)
    await services.reservations.change(name, change, operation)
    return await _operation_response(services, operation)


async def _operation_response(services: Services, operation: Operation) -> Message:
    """Read an operation again, and return its current message. The operation may be unfinished."""
    return await operations.operation_view(services, await services.reader.operation(operation.name))


def _operation(services: Services, kind: OperationKind, name: PersistentResourceName) -> Operation:
    now = services.now()
    return Operation(
        name=f"projects/{name.project_id}/locations/{name.location}/operations/{services.new_uid()}",
        kind=kind,
        target=str(name),
        created=now,
        updated=now,
        state=OperationState.RUNNING,
        response_type="" if kind is OperationKind.DELETE else _RESOURCE,
    )


def _require_state(resource: PersistentResource, *states: ReservationState) -> None:
    if resource.state not in states:
        raise FailedPrecondition(
            f"{resource.name} is {resource.state} and must be {' or '.join(states)}. Wait until its "
            "operation finishes, or delete the resource."
        )


def _view(resources: Reservations, record: PersistentResource) -> Message:
    return wire_json.from_public(_RESOURCE, public_resource(record, resources.usage(record.name)))


def _read_new(sent: dict[str, Any], resource_id: str) -> tuple[ResourcePool, ...]:
    """Return the pools in a request for a new resource (public JSON). Pools without an ID receive one. Raises
    InvalidRequest with all errors."""
    faults = Faults()
    section = Section(sent, "persistent_resource", faults)
    if not RESOURCE_ID.fullmatch(resource_id):
        faults.add(
            "persistent_resource_id",
            f"{resource_id!r} is not a valid ID. Use 1 to 63 lowercase letters, digits and dashes. Start "
            "with a letter and do not end with a dash.",
        )
    check_texts(section, "displayName")
    read_labels(section)
    for field, advice in _UNSERVED.items():
        if section.has(field):
            section.fault(field, advice)
    runtime = section.section("resourceRuntimeSpec")
    if runtime.has("raySpec"):
        runtime.fault("raySpec", _RAY)
    account = runtime.section("serviceAccountSpec").text("serviceAccount")
    if account:
        fault = service_account_fault(account)
        advice = "Set serviceAccount in each job instead. Only enableCustomServiceAccount is supported."
        runtime.section("serviceAccountSpec").fault("serviceAccount", fault or advice)
    sections = list(section.sections("resourcePools"))
    if not 1 <= len(sections) <= _MAX_POOLS:
        section.fault("resourcePools", f"A resource has 1 to {_MAX_POOLS} pools.")
    ids = [pool.text("id") or f"pool-{index}" for index, pool in enumerate(sections)]
    pools: list[ResourcePool] = []
    for index, pool in enumerate(sections[:_MAX_POOLS]):
        if ids[index] in ids[:index]:
            pool.fault("id", f"{ids[index]!r} is the ID of another pool. Use a different ID for each pool.")
        machine = read_machine(pool.section("machineSpec"), is_reducer=False)
        disk = worker_pool.read_disk(pool.section("diskSpec"), Api.VERTEX, machine.type)
        pools.append(ResourcePool(ids[index], machine, disk, _count(pool)))
    faults.refuse()
    for values, pool_id in zip(sent["resourcePools"], ids, strict=True):
        values["id"] = pool_id
    return tuple(pools)


def _count(section: Section) -> int:
    """Return a pool's number of machines."""
    count = section.integer("replicaCount")
    if section.has("autoscalingSpec"):
        section.fault("autoscalingSpec", _NO_SCALING)
    elif not 1 <= count <= worker_pool.MAX_REPLICAS:
        section.fault("replicaCount", f"A pool has 1 to {worker_pool.MAX_REPLICAS} replicas.")
    return count


def _with_pools(
    current: PersistentResource, sent: Section, used: Used, services: Services
) -> PersistentResource:
    """Return the resource with the numbers of machines that a request specifies. The request must not change
    any other field of the pools. `used`: numbers of machines that jobs use."""
    sections = list(sent.sections("resourcePools"))
    if [s.text("id") for s in sections] != [pool.id for pool in current.pools]:
        pool_ids = ", ".join(pool.id for pool in current.pools)
        sent.fault(
            "resourcePools",
            f"Send all pools with their IDs in this order: {pool_ids}. Only their numbers of machines can "
            "change. Create another resource for other machines.",
        )
        sent.faults.refuse()
    for section, pool in zip(sections, current.pools, strict=True):
        spec = section.section("machineSpec")
        if section.has("machineSpec") and read_machine(spec, is_reducer=False) != pool.machine:
            section.fault("machineSpec", "The machine cannot change. Create another resource.")
    counts = [_count(section) for section in sections]
    sent.faults.refuse()
    try:
        return resize(current, counts, used, services.new_uid(), services.now())
    except ValueError as busy:
        raise FailedPrecondition(f"{current.name} was not changed: {busy}") from None

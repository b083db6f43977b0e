"""`aiplatform` v1 PersistentResourceService (spec/clients#surface).

A persistent resource reserves nothing here, because jobs share this service's machines. It is a name that
jobs may give, and counts as running from its creation on (docs/coming-from-vertex.md).
"""

import json
import re
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import decode_token, encode_token, page_size
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.operations import done_at_once
from trainshed.api.resources.submission import kept_json
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import Api
from trainshed.core.requests import Faults, Section
from trainshed.core.specs import machines
from trainshed.core.specs.syntax import MAX_DISPLAY_NAME, read_labels
from trainshed.core.specs.vertex import read_machine
from trainshed.store.records import Operation, OperationKind
from trainshed.store.resources import PersistentResource
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.PersistentResourceService"
_RESOURCE: Final = "google.cloud.aiplatform.v1.PersistentResource"
_COLLECTION: Final = "persistentResources"
_ID: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_PAGE: Final = 100


async def unknown_resource(
    services: Services, parent: str, resource_id: str, path: str
) -> tuple[Violation, ...]:
    """Return a violation if a CustomJobSpec at `path` of a request names a persistent resource that does not
    exist in its location."""
    if not resource_id:
        return ()
    name = f"{parent}/{_COLLECTION}/{resource_id}"
    try:
        await services.models.persistent_resource(name)
    except NotFound:
        text = f"{name} does not exist; create it first, or leave the field out."
        return (Violation(f"{path}.persistent_resource_id", text),)
    return ()


async def create(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    public = _checked(request.persistent_resource, request.persistent_resource_id)
    now = call.services.now()
    record = PersistentResource(
        name=f"{parent}/{_COLLECTION}/{request.persistent_resource_id}",
        display_name=request.persistent_resource.display_name,
        public_json=kept_json(public),
        created=now,
        updated=now,
        labels=tuple(public.get("labels", {}).items()),
    )
    done = _operation(call.services, parent, OperationKind.CREATE, record)
    await call.services.models.create_persistent_resource(record, done)
    return operations.finished(done)


async def get(call: Call, request: Any) -> Message:
    _parse(request.name)
    return _view(await call.services.models.persistent_resource(request.name))


async def list_(call: Call, request: Any) -> Message:
    parent = str(known_location(request.parent))
    size = page_size(request.page_size, default=_DEFAULT_PAGE, maximum=_DEFAULT_PAGE)
    after = decode_token(request.page_token, parent) if request.page_token else ""
    resources = await call.services.models.persistent_resources(parent, after, size + 1)
    page = resources[:size]
    return pool.message_class("google.cloud.aiplatform.v1.ListPersistentResourcesResponse")(
        persistent_resources=[_view(record) for record in page],
        next_page_token=encode_token(page[-1].name, parent) if len(resources) > size else "",
    )


async def reboot(call: Call, request: Any) -> Message:
    """Set the update time. Nothing can be restarted, so this is done at once."""
    parent = _parse(request.name)
    current = await call.services.models.persistent_resource(request.name)
    record = replace(current, updated=call.services.now())
    done = _operation(call.services, parent, OperationKind.UPDATE, record)
    await call.services.models.replace_persistent_resource(record, done)
    return operations.finished(done)


async def delete(call: Call, request: Any) -> Message:
    parent = _parse(request.name)
    services = call.services
    done = done_at_once(services, parent, OperationKind.DELETE, request.name)
    await services.models.delete_persistent_resource(request.name, done)
    return operations.finished(done)


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreatePersistentResource": create,
    f"{_SERVICE}.GetPersistentResource": get,
    f"{_SERVICE}.ListPersistentResources": list_,
    f"{_SERVICE}.DeletePersistentResource": delete,
    f"{_SERVICE}.RebootPersistentResource": reboot,
}


def _parse(name: str, *, field: str = "name") -> LocationName:
    """Return the location in a persistent resource's name. Raises InvalidRequest for any other text."""
    match name.split("/"):
        case ["projects", _, "locations", _, "persistentResources", resource_id] if resource_id:
            return LocationName.parse(name.rpartition(f"/{_COLLECTION}/")[0], field=field)
        case _:
            text = (
                f"{name!r} is not a persistent resource's name; expected"
                " projects/PROJECT/locations/LOCATION/persistentResources/RESOURCE."
            )
            raise InvalidRequest((Violation(field, text),))


def _checked(resource: Any, resource_id: str) -> dict[str, Any]:
    """Return the resource in public JSON, each pool with an id. Raises InvalidRequest with all faults."""
    public = wire_json.to_public(resource)
    faults = Faults()
    if not _ID.fullmatch(resource_id):
        faults.add(
            "persistent_resource_id",
            f"{resource_id!r} is not an id; it has at most 63 lowercase letters, digits and dashes, begins "
            "with a letter and ends with a letter or digit.",
        )
    section = Section(public, "", faults)
    if len(section.text("displayName")) > MAX_DISPLAY_NAME:
        section.fault(
            "displayName", f"At most {MAX_DISPLAY_NAME} characters are allowed in a display name."
        )
    read_labels(section)
    runtime = section.section("resourceRuntimeSpec")
    if runtime.has("raySpec"):
        runtime.fault(
            "raySpec",
            "No Ray cluster is run here; leave it out, and let a custom job start Ray on its replicas "
            "(`ray start`), which find each other by CLUSTER_SPEC.",
        )
    pools = list(section.sections("resourcePools"))
    if not pools:
        section.fault("resourcePools", "At least one resource pool must be given.")
    ids = [worker_pool.text("id") or f"pool-{number}" for number, worker_pool in enumerate(pools)]
    for position, worker_pool in enumerate(pools):
        if ids[position] in ids[:position]:
            worker_pool.fault(
                "id", f"Another pool is called {ids[position]!r}, too; ids are unique."
            )
        _check_pool(worker_pool)
    faults.refuse()
    for worker_pool, pool_id in zip(public["resourcePools"], ids, strict=True):
        worker_pool["id"] = pool_id
    return public


def _check_pool(section: Section) -> None:
    """Check a pool's machines by the rules of a job's pools, and its number of replicas."""
    machine = read_machine(section.section("machineSpec"))
    machines.read_disk(section.section("diskSpec"), Api.VERTEX, machine.type)
    scaling = section.section("autoscalingSpec")
    if section.has("autoscalingSpec"):
        low, high = scaling.integer("minReplicaCount"), scaling.integer("maxReplicaCount")
        if not 0 <= low <= high <= machines.MAX_REPLICAS or high < 1:
            scaling.fault(
                "maxReplicaCount",
                f"The counts must be 0 <= min <= max, and max 1 to {machines.MAX_REPLICAS}.",
            )
    elif not 1 <= section.integer("replicaCount") <= machines.MAX_REPLICAS:
        section.fault(
            "replicaCount",
            f"A pool needs 1 to {machines.MAX_REPLICAS} replicas, or an autoscaling_spec.",
        )


def _operation(
    services: Services, parent: LocationName, kind: OperationKind, record: PersistentResource
) -> Operation:
    """Return the operation that reports the resource as it is in `record`."""
    return done_at_once(services, parent, kind, record.name, _view(record))


def _view(record: PersistentResource) -> Message:
    view: Any = wire_json.from_public(_RESOURCE, json.loads(record.public_json))
    view.name = record.name
    view.state = view.RUNNING
    for worker_pool in view.resource_pools:
        if worker_pool.HasField("autoscaling_spec") and not worker_pool.replica_count:
            worker_pool.replica_count = max(1, worker_pool.autoscaling_spec.min_replica_count)
    set_micros(view.create_time, record.created)
    set_micros(view.start_time, record.created)
    set_micros(view.update_time, record.updated)
    view.labels.clear()
    view.labels.update(dict(record.labels))
    return view

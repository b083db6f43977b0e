"""DatasetService.ExportData: writes a dataset's rows or items to files, whole or split
(facts/datasets#exports)."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.datasets.resources import SERVICE, require_files
from trainshed.api.aiplatform_v1.operations import operation_view
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import LocationName
from trainshed.api.resources.submission import checked
from trainshed.core.datasets.plans import DataExport
from trainshed.core.datasets.records import DatasetName
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.input_data import read_export
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json

_DESTINATION: Final = "export_config.gcs_destination.output_uri_prefix"


async def export(call: Call, request: Any) -> Message:
    """Start an export; the operation's metadata tells where it writes to."""
    services = call.services
    name = DatasetName.parse(request.name)
    dataset = await services.datasets.dataset(name)
    config = Section(wire_json.to_public(request), "", Faults()).section("exportConfig")
    now = services.now()

    def read() -> DataExport:
        plan = read_export(config, dataset, now)
        config.faults.refuse()
        assert plan is not None, "what is no plan is a fault"
        return DataExport(plan, name.project_id, call.principal.email)

    prefix = request.export_config.gcs_destination.output_uri_prefix
    data = checked(read, ((_DESTINATION, prefix),), services.buckets, project=name.project_id)
    uses = tuple(("name", uri) for files in data.plan.files for uri in files.uris)
    await require_files(services, name.project_id, uses)
    operation = Operation(
        name=f"{LocationName(name.project_id, name.location)}/operations/{services.new_uid()}",
        kind=OperationKind.EXPORT_DATA,
        target=str(name),
        created=now,
        updated=now,
        state=OperationState.RUNNING,
        data=data,
    )
    await services.operations.begin(operation)
    services.exports.begin(operation)
    return await operation_view(services, operation)


HANDLERS: Final[Handlers] = {f"{SERVICE}.ExportData": export}

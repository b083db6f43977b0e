"""`aiplatform` v1 ModelService.ExportModel: a copy of a version's artifacts (facts/models#export)."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.messages import V1
from trainshed.api.aiplatform_v1.model_messages import EXPORT_FORMAT
from trainshed.api.aiplatform_v1.operations import operation_view
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import LocationName, read_name
from trainshed.api.resources.submission import checked
from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import ModelName
from trainshed.core.pipelines import ModelExport, ModelVersion
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import bucket_path_fault
from trainshed.core.units import Nanos
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json

_DESTINATION: Final = "output_config.artifact_destination.output_uri_prefix"


async def export(call: Call, request: Any) -> Message:
    """Start to copy a version's artifacts; the operation's metadata tells where to."""
    name, version = read_name(ModelName.parse, request.name)
    services = call.services
    record = await services.models.version(name, version)
    public = wire_json.to_public(request)
    prefix = request.output_config.artifact_destination.output_uri_prefix
    checked(
        lambda: check_export(public, record),
        ((_DESTINATION, prefix),),
        services.buckets,
        project=name.project_id,
    )
    await _require_artifacts(call, record)
    now = services.now()
    location = LocationName(name.project_id, name.location)
    operation = Operation(
        name=f"{location}/operations/{services.new_uid()}",
        kind=OperationKind.EXPORT,
        target=f"{name}@{record.version}",
        created=now,
        updated=now,
        state=OperationState.RUNNING,
        export=ModelExport(
            source=f"{record.artifact_uri.rstrip('/')}/",
            output=output_of(prefix, record.display_name, now),
            project=name.project_id,
            email=call.principal.email,
        ),
    )
    await services.operations.begin(operation)
    services.exports.begin(operation)
    return await operation_view(services, operation)


HANDLERS: Final[Handlers] = {f"{V1}.ModelService.ExportModel": export}


def check_export(public: Mapping[str, Any], record: ModelVersion) -> None:
    """Check an ExportModelRequest in public JSON. Raises InvalidRequest with all faults."""
    faults = Faults()
    config = Section(public, "", faults).section("outputConfig")
    wanted = config.text("exportFormatId")
    if wanted and wanted != EXPORT_FORMAT:
        config.fault(
            "exportFormatId",
            f"{wanted!r} is no format of this model; it has {EXPORT_FORMAT!r} alone.",
        )
    if config.is_set("imageDestination"):
        config.fault(
            "imageDestination",
            "No container image is exported here; ask for the artifacts with artifactDestination.",
        )
    destination = config.section("artifactDestination")
    prefix = destination.text("outputUriPrefix")
    fault = bucket_path_fault(prefix) if prefix else "Name a gs:// directory for the copy."
    inside = f"{prefix.rstrip('/')}/".startswith(f"{record.artifact_uri.rstrip('/')}/")
    if not fault and record.artifact_uri and inside:
        fault = (
            f"{prefix!r} lies in the model itself ({record.artifact_uri}); name another directory."
        )
    if fault:
        destination.fault("outputUriPrefix", fault)
    faults.refuse()


def output_of(prefix: str, display_name: str, now: Nanos) -> str:
    """Return the directory that an export makes, named as the public type describes. Characters of the
    display name that do not fit a path are replaced."""
    plain = "".join(
        letter if letter.isalnum() or letter in "-_." else "-" for letter in display_name
    )
    at = datetime.fromtimestamp(now // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{prefix.rstrip('/')}/model-export-{plain}-{at}.{now // 10**6 % 1000:03d}Z/"


async def _require_artifacts(call: Call, record: ModelVersion) -> None:
    """Raise FailedPrecondition if there is nothing to copy."""
    what = f"{record.name}@{record.version}"
    if not record.artifact_uri:
        raise FailedPrecondition(
            f"{what} has no artifacts, so that there is nothing to export; upload a version with an "
            "artifactUri."
        )
    if await asyncio.to_thread(call.services.buckets.last_written, record.artifact_uri) == 0:
        raise FailedPrecondition(
            f"There is nothing at {record.artifact_uri} any more, where the artifacts of {what} should be; "
            "copy them there again, or upload a new version."
        )

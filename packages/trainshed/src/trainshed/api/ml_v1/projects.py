"""`ml` v1 ProjectManagementService: who runs a project's jobs, and where.

Over REST, locations share one URL with Vertex, whose answer there includes these fields. The methods for
locations here serve transports that can tell the two APIs apart.
"""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import LocationName, ProjectName
from trainshed.core.catalog.regions import near_region, regions
from trainshed.core.errors import NotFound
from trainshed.core.names import Api, project_number
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.ProjectManagementService"


async def get_config(call: Call, request: Any) -> Message:
    project = ProjectName.parse(request.name, field="name")
    account = call.services.settings.service_account
    response: Any = pool.message_class("google.cloud.ml.v1.GetConfigResponse")(
        service_account=account, service_account_project=project_number(project.project_id)
    )
    response.config.tpu_service_account = account
    return response


async def get_location(call: Call, request: Any) -> Message:
    return _view(known_location(request.name, field="name"))


async def list_locations(call: Call, request: Any) -> Message:
    """List all locations on one page: there are fewer regions than fit on any page."""
    project = ProjectName.parse(request.parent)
    return pool.message_class("google.cloud.ml.v1.ListLocationsResponse")(
        locations=[_view(LocationName(project.project_id, region)) for region in regions(Api.ML)]
    )


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.GetConfig": get_config,
    f"{_SERVICE}.GetLocation": get_location,
    f"{_SERVICE}.ListLocations": list_locations,
}


def known_location(name: str, *, field: str = "parent") -> LocationName:
    """Return a location by its name. Raises InvalidRequest on `field`, NotFound."""
    location = LocationName.parse(name, field=field)
    if location.location not in regions(Api.ML):
        raise NotFound(
            f"Location {location.location!r} was not found; use a region of AI Platform Training such "
            "as us-central1 (projects.locations.list names them all)."
            + near_region(Api.ML, location.location)
        )
    return location


def _view(location: LocationName) -> Message:
    return pool.message_class("google.cloud.ml.v1.Location")(name=str(location))

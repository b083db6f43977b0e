"""`ml` v1 projects.locations, for transports that can tell it from Vertex's: over REST both share one URL,
and the answer there is Vertex's, whose fields include these."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import LocationName, ProjectName
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import NotFound
from trainshed.core.names import Api
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.ProjectManagementService"


async def get(call: Call, request: Any) -> Message:
    location = LocationName.parse(request.name, field="name")
    if location.location not in regions(Api.ML):
        raise NotFound(
            f"Location {location.location!r} was not found; use a region of AI Platform Training such "
            "as us-central1 (projects.locations.list names them all)."
        )
    return _view(location)


async def list_(call: Call, request: Any) -> Message:
    """All at once: there are fewer regions than fit on any page."""
    project = ProjectName.parse(request.parent)
    return pool.message_class("google.cloud.ml.v1.ListLocationsResponse")(
        locations=[_view(LocationName(project.project_id, region)) for region in regions(Api.ML)]
    )


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.GetLocation": get,
    f"{_SERVICE}.ListLocations": list_,
}


def _view(location: LocationName) -> Message:
    return pool.message_class("google.cloud.ml.v1.Location")(name=str(location))

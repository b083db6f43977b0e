"""The locations of Vertex, and the paths `projects.locations`, which both APIs share.

A location is only a label that is part of names and separates jobs. All jobs run on this service's machines.
"""

from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import decode_token, first_page, page_size
from trainshed.api.calls.parents import LocationName, ProjectName
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import NotFound, closest
from trainshed.core.names import Api
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.location.Locations"


@lru_cache(1024)
def known_location(name: str, *, field: str = "parent") -> LocationName:
    """Return the parsed location `projects/P/locations/L`. Raises InvalidRequest, and NotFound for an unknown
    region."""
    location = LocationName.parse(name, field=field)
    if location.location not in regions(Api.VERTEX):
        raise NotFound(
            f"Location {location.location!r} was not found. Use a region of Vertex training such as "
            "us-central1; projects.locations.list returns all regions."
            + closest(location.location, regions(Api.VERTEX))
        )
    return location


async def get(call: Call, request: Any) -> Message:
    return _view(known_location(request.name, field="name"))


async def list_(call: Call, request: Any) -> Message:
    project = ProjectName.parse(request.name, field="name")
    size = page_size(request.page_size, default=100, maximum=1_000)
    start = decode_token(request.page_token, str(project))
    later = sorted(region for region in regions(Api.VERTEX) if region > start)
    page, token = first_page(later, size, str, str(project))
    return pool.message(
        "google.cloud.location.ListLocationsResponse",
        locations=[_view(LocationName(project.project_id, region)) for region in page],
        next_page_token=token,
    )


HANDLERS: Final[Handlers] = {f"{_SERVICE}.GetLocation": get, f"{_SERVICE}.ListLocations": list_}


def _view(location: LocationName) -> Message:
    return pool.message(
        "google.cloud.location.Location",
        name=str(location),
        location_id=location.location,
        display_name=location.location,
        labels={"cloud.googleapis.com/region": location.location},
    )

"""`aiplatform` v1 VizierService: studies create, get, list, look up, delete (facts/resources#vertex,
spec/clients#surface)."""

import json
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import study_views
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.paging import page_size
from trainshed.api.resources.studies import delete_study, is_of_ml, list_studies, read_study_name
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import StudyName
from trainshed.core.specs.study import ParsedStudy, parse_study
from trainshed.core.study.records import Study, StudyUid
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.VizierService"
_LARGEST_PAGE: Final = 100


def check_create(call: Call, request: Any) -> ParsedStudy:
    """The study to create. Raises InvalidRequest with all that is wrong."""
    known_location(request.parent)
    return parse_study(wire_json.to_public(request.study))


async def create(call: Call, request: Any) -> Message:
    """A display name that is there already is a conflict: it is how clients find a study again
    (spec/clients#conflicts)."""
    parsed = check_create(call, request)
    parent = known_location(request.parent)
    uid = call.services.new_uid()
    record = Study(
        uid=StudyUid(uid),
        name=StudyName(parent.project_id, parent.location, str(uid)),
        display_name=parsed.display_name,
        spec=parsed.spec,
        public_json=json.dumps(
            wire_json.to_public(request.study), ensure_ascii=False, separators=(",", ":")
        ),
        created=call.services.now(),
    )
    await call.services.studies.create_study(record)
    return study_views.study(record)


async def get(call: Call, request: Any) -> Message:
    name = read_study_name(request.name, of_ml=False)
    return study_views.study(await call.services.studies.study(name))


async def list_(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_LARGEST_PAGE, maximum=_LARGEST_PAGE)
    page, token = await list_studies(call.services, parent, token=request.page_token, size=size)
    return pool.message_class("google.cloud.aiplatform.v1.ListStudiesResponse")(
        studies=[study_views.study(record) for record in page], next_page_token=token
    )


async def lookup(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    if not request.display_name:
        raise InvalidRequest((Violation("display_name", "The display name must be set."),))
    found = await call.services.studies.lookup_study(
        parent.project_id, parent.location, request.display_name
    )
    if is_of_ml(found.name):
        raise NotFound(f"{parent} has no study called {request.display_name!r} of this API.")
    return study_views.study(found)


async def delete(call: Call, request: Any) -> Message:
    await delete_study(call.services, read_study_name(request.name, of_ml=False))
    return pool.message_class("google.protobuf.Empty")()


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateStudy": create,
    f"{_SERVICE}.GetStudy": get,
    f"{_SERVICE}.ListStudies": list_,
    f"{_SERVICE}.LookupStudy": lookup,
    f"{_SERVICE}.DeleteStudy": delete,
}

CHECKS: Final[Checks] = {f"{_SERVICE}.CreateStudy": check_create}

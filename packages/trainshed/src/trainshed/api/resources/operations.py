"""Records of operations that are done when they are answered."""

import json
from typing import Protocol

from google.protobuf.message import Message

from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json


class Located(Protocol):
    """A name that lies in a location."""

    @property
    def project_id(self) -> str: ...

    @property
    def location(self) -> str: ...


def done_at_once(
    services: Services,
    name: Located,
    kind: OperationKind,
    target: str,
    response: Message | None = None,
) -> Operation:
    """Return the record of a finished operation in the location of `name`. `target`: the full name of what it
    is about; `response`: its response, None for a DELETE."""
    now = services.now()
    answer = (
        "" if response is None else json.dumps(wire_json.to_public(response), ensure_ascii=False)
    )
    return Operation(
        name=f"{LocationName(name.project_id, name.location)}/operations/{services.new_uid()}",
        kind=kind,
        target=target,
        created=now,
        updated=now,
        response=answer,
        response_type="" if response is None else response.DESCRIPTOR.full_name,
    )

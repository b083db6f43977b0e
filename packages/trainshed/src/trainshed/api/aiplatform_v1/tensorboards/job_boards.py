"""Checks the tensorboards that jobs name for their curves (facts/experiments#curves)."""

from collections.abc import Mapping
from typing import Any

from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.services import Services
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import project_number
from trainshed.core.tensorboards.records import BoardName, Level


async def unknown_board(
    services: Services, parent: str, spec: Mapping[str, Any], path: str
) -> tuple[Violation, ...]:
    """Return a violation if a CustomJobSpec names a tensorboard that does not exist in its location.

    `spec`: in public JSON, from `path` of the request. An invalid name is reported by the specification's
    check.
    """
    text = str(spec.get("tensorboard", ""))
    if not text:
        return ()
    place = known_location(parent)
    at = f"{path}.tensorboard"
    try:
        board = BoardName.parse(text, Level.TENSORBOARD, of=at)
    except InvalidRequest:
        return ()
    here = place.project_id, str(project_number(place.project_id))
    if board.project_id not in here or board.location != place.location:
        # Whether another project has it must not be told either.
        text = f"{board} lies elsewhere than the job, whose location is {place}."
        return (Violation(at, text),)
    try:
        await services.tensorboards.resource(BoardName(place.project_id, place.location, board.ids))
    except NotFound:
        text = (
            f"{board} does not exist; create it first, or leave the field out: the job's curves are kept "
            "in any case."
        )
        return (Violation(at, text),)
    return ()

"""`ml` v1 projects.locations.studies and their trials: the same as Vertex's, in other messages
(facts/tuning#vizier).

The client chooses the study's id, and lists have no pages.
"""

from typing import Any, Final

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.services import Services
from trainshed.api.ml_v1 import study_views
from trainshed.api.ml_v1.projects import known_location
from trainshed.api.resources import vizier
from trainshed.api.resources.studies import is_of_ml
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import StudyName
from trainshed.core.specs.ml import parse_ml_study
from trainshed.core.specs.study import ParsedStudy
from trainshed.core.study.reading import Claim
from trainshed.core.study.records import Study
from trainshed.store.records import Operation
from trainshed.wire import json as wire_json


async def read_operation(services: Services, name: str) -> Operation:
    """Return an operation of a study of this API, whose name is below the location. Raises NotFound."""
    record = await services.reader.operation(name)
    if not record.study or not is_of_ml(StudyName.parse(record.target.partition("/trials/")[0])):
        raise NotFound(f"Operation {name!r} was not found: it is one of Vertex AI; ask there.")
    return record


def _parse(call: Call, request: Any) -> ParsedStudy:
    known_location(request.parent)
    wrong: tuple[Violation, ...] = ()
    if request.study_id.isdecimal():
        text = (
            f"{request.study_id!r} has digits only, as the ids of Vertex studies, which share these paths "
            "here; put a letter into it."
        )
        wrong = (Violation("study_id", text),)
    try:
        parsed = parse_ml_study(wire_json.to_public(request.study), request.study_id)
    except InvalidRequest as invalid:
        raise InvalidRequest((*wrong, *invalid.violations)) from None
    if wrong:
        raise InvalidRequest(wrong)
    return parsed


def _operations(study: Study, what: str) -> str:
    """Return the beginning of operations' names. Clients of `ml` v1 poll operations only below the location,
    where an id that is not all digits belongs to this API."""
    name = study.name
    return f"projects/{name.project_id}/locations/{name.location}/operations/{what}_"


def _claim(trial: Any, state: str) -> tuple[Claim, str, str]:
    return Claim.SUCCEEDED if state == "COMPLETED" else Claim.WANTED, "", ""


def _check_suggestion(request: Any) -> None:
    """Accept every request: all of its fields are served."""


_ML: Final = vizier.Dialect(
    package="google.cloud.ml.v1",
    of_ml=True,
    location=known_location,
    parse_study=_parse,
    study_id=lambda _, request: request.study_id,
    study=study_views.study,
    trial=study_views.trial,
    operation=study_views.operation,
    given_parameters=study_views.given_parameters,
    given_measurement=study_views.given_measurement,
    claim=_claim,
    suggesting=lambda study: _operations(study, "suggest"),
    checking=lambda study, _: _operations(study, "check_stopping"),
    check_suggestion=_check_suggestion,
    optimal="trials",
    without=frozenset({"LookupStudy"}),
)
HANDLERS: Final[Handlers] = vizier.handlers(_ML)
CHECKS: Final[Checks] = vizier.checks(_ML)

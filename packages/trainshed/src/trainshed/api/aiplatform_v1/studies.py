"""`aiplatform` v1 VizierService: studies and their trials in Vertex's messages (facts/resources#vertex,
spec/clients#surface)."""

from typing import Any, Final

from trainshed.api.aiplatform_v1 import operations, study_views
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.errors import NotServed
from trainshed.api.resources import vizier
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.specs.study import ParsedStudy, parse_study
from trainshed.core.study.reading import Claim
from trainshed.wire import json as wire_json


def _parse(call: Call, request: Any) -> ParsedStudy:
    known_location(request.parent)
    return parse_study(wire_json.to_public(request.study))


def _check_suggestion(request: Any) -> None:
    if any(context.parameters for context in request.contexts):
        raise NotServed(
            "contexts with parameters are not served: suggestions come from the whole search space. Leave "
            "contexts out, or create a trial with the parameters that you want to have tried."
        )
    count = request.suggestion_count
    if len(request.contexts) not in (0, count):
        wrong = f"{len(request.contexts)} contexts are given for {count} suggestions; give none or as many."
        raise InvalidRequest((Violation("contexts", wrong),))


def _claim(trial: Any, state: str) -> tuple[Claim, str, str]:
    ended = state in (Claim.SUCCEEDED, Claim.INFEASIBLE)
    return Claim(state) if ended else Claim.WANTED, trial.client_id, trial.infeasible_reason


_VERTEX: Final = vizier.Dialect(
    package="google.cloud.aiplatform.v1",
    of_ml=False,
    location=known_location,
    parse_study=_parse,
    study_id=lambda uid, _: str(uid),
    study=study_views.study,
    trial=study_views.trial,
    operation=operations.operation_view,
    given_parameters=study_views.given_parameters,
    given_measurement=study_views.given_measurement,
    claim=_claim,
    suggesting=lambda study: f"{study.name}/operations/",
    checking=lambda study, number: f"{study.name.trial(number)}/operations/",
    check_suggestion=_check_suggestion,
    optimal="optimal_trials",
    studies_page=100,
    # As many as the public limit of a study, because the SDK's `Study.trials()` reads only the first page.
    trials_page=1_000,
)
HANDLERS: Final[Handlers] = vizier.handlers(_VERTEX)
CHECKS: Final[Checks] = vizier.checks(_VERTEX)

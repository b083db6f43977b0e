"""`ml` v1 projects.locations.studies and their trials: the same as Vertex's, in other words
(facts/tuning#vizier).

The client chooses the study's id, and lists have no pages.
"""

import asyncio
import json
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.ml_v1 import study_views
from trainshed.api.resources import studies
from trainshed.api.resources.studies import (
    check_stopping,
    is_of_ml,
    read_study_name,
    read_trial_name,
    suggest,
)
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import Api, StudyName
from trainshed.core.specs.ml import parse_ml_study
from trainshed.core.specs.study import ParsedStudy
from trainshed.core.study.reading import Claim, GivenTrial
from trainshed.core.study.records import Study, StudyUid, Trial
from trainshed.store.records import Operation
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_V1: Final = "google.cloud.ml.v1"
_SERVICE: Final = f"{_V1}.VizierService"
_CHUNK: Final = 1_000
_FEW: Final = 20
"""Trials whose views are made at once; those of more are made aside, while everybody else goes on."""


def check_create(call: Call, request: Any) -> ParsedStudy:
    """The study to create. Raises InvalidRequest with all that is wrong."""
    _known_location(request.parent)
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


async def create_study(call: Call, request: Any) -> Message:
    parsed = check_create(call, request)
    parent = _known_location(request.parent)
    record = Study(
        uid=StudyUid(call.services.new_uid()),
        name=StudyName(parent.project_id, parent.location, request.study_id),
        display_name=parsed.display_name,
        spec=parsed.spec,
        public_json=json.dumps(
            wire_json.to_public(request.study), ensure_ascii=False, separators=(",", ":")
        ),
        created=call.services.now(),
    )
    await call.services.studies.create_study(record)
    return study_views.study(record)


async def get_study(call: Call, request: Any) -> Message:
    return study_views.study(await _study(call, request.name, field="name"))


async def list_studies(call: Call, request: Any) -> Message:
    found = await studies.ml_studies(call.services, _known_location(request.parent))
    return pool.message_class(f"{_V1}.ListStudiesResponse")(
        studies=[study_views.study(record) for record in found]
    )


async def delete_study(call: Call, request: Any) -> Message:
    await studies.delete_study(call.services, read_study_name(request.name, of_ml=True))
    return pool.message_class("google.protobuf.Empty")()


async def create_trial(call: Call, request: Any) -> Message:
    """The client's own trial: REQUESTED, or COMPLETED if it comes with a final measurement or the state says
    so."""
    study = await _study(call, request.parent)
    made = await studies.create_trial(call.services, study, _given_trial(request.trial))
    return await _view(call, study, made)


async def get_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    return await _view(call, study, await studies.read_trial(call.services, study, number))


async def list_trials(call: Call, request: Any) -> Message:
    """All of them, ascending by number."""
    study = await _study(call, request.parent)
    views: list[Message] = []
    after = 0
    while rows := await call.services.studies.trials(study.uid, after, _CHUNK):
        views += await _views(call, study, rows)
        after = rows[-1].number
    return pool.message_class(f"{_V1}.ListTrialsResponse")(trials=views)


async def delete_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    await studies.delete_trial(call.services, study, number)
    return pool.message_class("google.protobuf.Empty")()


async def suggest_trials(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent)
    record = await suggest(
        call.services,
        study,
        parent=_operations(study, "suggest"),
        client=request.client_id,
        count=request.suggestion_count,
    )
    return await study_views.operation(call.services, record)


async def add_measurement(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    given = study_views.given_measurement(request.measurement, "measurement")
    changed = await studies.add_measurement(call.services, study, number, given)
    return await _view(call, study, changed)


async def complete(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    given = None
    if request.HasField("final_measurement"):
        given = study_views.given_measurement(request.final_measurement, "final_measurement")
    changed = await studies.complete(
        call.services,
        study,
        number,
        given,
        is_infeasible=request.trial_infeasible,
        reason=request.infeasible_reason,
    )
    return await _view(call, study, changed)


async def stop(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    return await _view(call, study, await studies.stop(call.services, study, number))


async def check_early_stopping(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    record = await check_stopping(
        call.services, study, number, parent=_operations(study, "check_stopping")
    )
    return await study_views.operation(call.services, record)


async def list_optimal(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent)
    best = await studies.optimal(call.services, study)
    return pool.message_class(f"{_V1}.ListOptimalTrialsResponse")(
        trials=await _views(call, study, best)
    )


async def read_operation(services: Services, name: str) -> Operation:
    """An operation of a study of this API, which names it below the location. Raises NotFound."""
    record = await services.reader.operation(name)
    if not record.study or not is_of_ml(StudyName.parse(record.target.partition("/trials/")[0])):
        raise NotFound(f"Operation {name!r} was not found: it is one of Vertex AI; ask there.")
    return record


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateStudy": create_study,
    f"{_SERVICE}.GetStudy": get_study,
    f"{_SERVICE}.ListStudies": list_studies,
    f"{_SERVICE}.DeleteStudy": delete_study,
    f"{_SERVICE}.CreateTrial": create_trial,
    f"{_SERVICE}.GetTrial": get_trial,
    f"{_SERVICE}.ListTrials": list_trials,
    f"{_SERVICE}.DeleteTrial": delete_trial,
    f"{_SERVICE}.SuggestTrials": suggest_trials,
    f"{_SERVICE}.AddTrialMeasurement": add_measurement,
    f"{_SERVICE}.CompleteTrial": complete,
    f"{_SERVICE}.StopTrial": stop,
    f"{_SERVICE}.CheckTrialEarlyStoppingState": check_early_stopping,
    f"{_SERVICE}.ListOptimalTrials": list_optimal,
}

CHECKS: Final[Checks] = {f"{_SERVICE}.CreateStudy": check_create}


def _known_location(name: str) -> LocationName:
    location = LocationName.parse(name)
    if location.location not in regions(Api.ML):
        raise NotFound(
            f"Location {location.location!r} was not found; use a region of AI Platform Training such "
            "as us-central1 (projects.locations.list names them all)."
        )
    return location


def _operations(study: Study, what: str) -> str:
    """Clients of `ml` v1 poll operations below the location only; an id that is not all digits is one of this
    API."""
    name = study.name
    return f"projects/{name.project_id}/locations/{name.location}/operations/{what}_"


async def _study(call: Call, name: str, *, field: str = "parent") -> Study:
    return await call.services.studies.study(read_study_name(name, of_ml=True, field=field))


async def _trial(call: Call, name: str) -> tuple[Study, int]:
    study, number = read_trial_name(name, of_ml=True)
    return await call.services.studies.study(study), number


async def _view(call: Call, study: Study, record: Trial) -> Message:
    return (await _views(call, study, (record,)))[0]


async def _views(call: Call, study: Study, records: tuple[Trial, ...]) -> list[Message]:
    shown = await studies.with_measurements(call.services, study.uid, records)

    def views() -> list[Message]:
        return [study_views.trial(study.name, record, measured) for record, measured in shown]

    # Half a second's work for a thousand trials with a hundred measurements each.
    return await asyncio.to_thread(views) if len(shown) > _FEW else views()


def _given_trial(message: Any) -> GivenTrial:
    states = message.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    is_completed = message.state in states and states[message.state].name == "COMPLETED"
    final = message.final_measurement if message.HasField("final_measurement") else None
    return GivenTrial(
        "trial",
        tuple(study_views.given_parameters(message, "trial")),
        tuple(
            study_views.given_measurement(each, f"trial.measurements[{index}]")
            for index, each in enumerate(message.measurements)
        ),
        study_views.given_measurement(final, "trial.final_measurement")
        if final is not None
        else None,
        Claim.SUCCEEDED if is_completed else Claim.WANTED,
    )

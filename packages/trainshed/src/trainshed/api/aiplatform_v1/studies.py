"""`aiplatform` v1 VizierService: studies and their trials (facts/tuning#vizier, facts/resources#trials).

An operation reads a request, lets `resources.studies` carry it out, and shows the resulting record.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.operations import operation_view
from trainshed.api.aiplatform_v1.study_views import (
    given_measurement,
    given_parameters,
    study_view,
    trial_view,
)
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.errors import NotServed
from trainshed.api.calls.paging import decode_number, encode_token, page_size
from trainshed.api.resources import studies
from trainshed.api.resources.studies import read_study_name, read_trial_name
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import StudyName
from trainshed.core.specs.study import ParsedStudy, parse_study
from trainshed.core.study.reading import Claim, GivenTrial
from trainshed.core.study.records import Study, StudyUid, Trial
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_V1: Final = "google.cloud.aiplatform.v1"
_SERVICE: Final = f"{_V1}.VizierService"
_FEW: Final = 20
"""Most trials whose views are made on the event loop; those of more are made in a thread, so that other
requests go on meanwhile."""
_STUDIES: Final = 100
_TRIALS: Final = 1_000
"""Most trials of a page: as many as the public limit of a study, because the SDK's `Study.trials()` reads
only the first page."""


async def create_study(call: Call, request: Any) -> Message:
    """Create a study. An existing display name is a conflict, because clients find a study again by it
    (spec/clients#conflicts)."""
    parsed = _parse(call, request)
    parent = known_location(request.parent)
    uid = StudyUid(call.services.new_uid())
    record = Study(
        uid=uid,
        name=StudyName(parent.project_id, parent.location, str(uid)),
        display_name=parsed.display_name,
        spec=parsed.spec,
        public_json=json.dumps(
            wire_json.to_public(request.study), ensure_ascii=False, separators=(",", ":")
        ),
        created=call.services.now(),
    )
    await call.services.studies.create_study(record)
    return study_view(record)


async def get_study(call: Call, request: Any) -> Message:
    return study_view(await _study(call, request.name))


async def list_studies(call: Call, request: Any) -> Message:
    """List studies, newest first."""
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_STUDIES, maximum=_STUDIES)
    question = (str(parent), "studies")
    after = StudyUid(decode_number(request.page_token, *question))
    rows = await call.services.studies.studies(parent.project_id, parent.location, after, size + 1)
    page = rows[:size]
    return _message(
        "ListStudiesResponse",
        studies=map(study_view, page),
        next_page_token=encode_token(str(page[-1].uid), *question) if len(rows) > size else "",
    )


async def look_up_study(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    if not request.display_name:
        raise InvalidRequest((Violation("display_name", "The display name must be set."),))
    return study_view(
        await call.services.studies.lookup_study(
            parent.project_id, parent.location, request.display_name
        )
    )


async def delete_study(call: Call, request: Any) -> Message:
    await studies.delete_study(call.services, read_study_name(request.name))
    return pool.message_class("google.protobuf.Empty")()


async def create_trial(call: Call, request: Any) -> Message:
    """Create the client's own trial: REQUESTED, or over if it has a final measurement or its state says
    so."""
    study = await _study(call, request.parent, "parent")
    made = await studies.create_trial(call.services, study, _given_trial(request.trial))
    return await _view(call, study, made)


async def get_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    return await _view(call, study, await studies.read_trial(call.services, study, number))


async def list_trials(call: Call, request: Any) -> Message:
    """List trials, ascending by number."""
    study = await _study(call, request.parent, "parent")
    size = page_size(request.page_size, default=_TRIALS, maximum=_TRIALS)
    question = (str(study.name), "trials")
    after = decode_number(request.page_token, *question)
    rows = await call.services.studies.trials(study.uid, after, size + 1)
    page = rows[:size]
    more = len(rows) > size
    return _message(
        "ListTrialsResponse",
        trials=await _views(call, study, page),
        next_page_token=encode_token(str(page[-1].number), *question) if more else "",
    )


async def delete_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    await studies.delete_trial(call.services, study, number)
    return pool.message_class("google.protobuf.Empty")()


async def suggest_trials(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent, "parent")
    count = request.suggestion_count
    if any(context.parameters for context in request.contexts):
        raise NotServed(
            "contexts with parameters are not served: suggestions come from the whole search space. Leave "
            "contexts out, or create a trial with the parameters that you want to have tried."
        )
    if len(request.contexts) not in (0, count):
        wrong = f"{len(request.contexts)} contexts are given for {count} suggestions; give none or as many."
        raise InvalidRequest((Violation("contexts", wrong),))
    record = await studies.suggest(call.services, study, client=request.client_id, count=count)
    return await operation_view(call.services, record)


async def add_measurement(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.trial_name, "trial_name")
    reported = given_measurement(request.measurement, "measurement")
    changed = await studies.add_measurement(call.services, study, number, reported)
    return await _view(call, study, changed)


async def complete_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    reported = None
    if request.HasField("final_measurement"):
        reported = given_measurement(request.final_measurement, "final_measurement")
    changed = await studies.complete(
        call.services,
        study,
        number,
        reported,
        is_infeasible=request.trial_infeasible,
        reason=request.infeasible_reason,
    )
    return await _view(call, study, changed)


async def stop_trial(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    return await _view(call, study, await studies.stop(call.services, study, number))


async def check_early_stopping(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.trial_name, "trial_name")
    record = await studies.check_stopping(call.services, study, number)
    return await operation_view(call.services, record)


async def list_optimal_trials(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent, "parent")
    best = await studies.optimal(call.services, study)
    return _message("ListOptimalTrialsResponse", optimal_trials=await _views(call, study, best))


def _parse(call: Call, request: Any) -> ParsedStudy:
    known_location(request.parent)
    return parse_study(wire_json.to_public(request.study))


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateStudy": create_study,
    f"{_SERVICE}.GetStudy": get_study,
    f"{_SERVICE}.ListStudies": list_studies,
    f"{_SERVICE}.LookupStudy": look_up_study,
    f"{_SERVICE}.DeleteStudy": delete_study,
    f"{_SERVICE}.CreateTrial": create_trial,
    f"{_SERVICE}.GetTrial": get_trial,
    f"{_SERVICE}.ListTrials": list_trials,
    f"{_SERVICE}.DeleteTrial": delete_trial,
    f"{_SERVICE}.SuggestTrials": suggest_trials,
    f"{_SERVICE}.AddTrialMeasurement": add_measurement,
    f"{_SERVICE}.CompleteTrial": complete_trial,
    f"{_SERVICE}.StopTrial": stop_trial,
    f"{_SERVICE}.CheckTrialEarlyStoppingState": check_early_stopping,
    f"{_SERVICE}.ListOptimalTrials": list_optimal_trials,
}
CHECKS: Final[Checks] = {f"{_SERVICE}.CreateStudy": _parse}


def _message(name: str, **fields: Any) -> Message:
    return pool.message_class(f"{_V1}.{name}")(**fields)


async def _study(call: Call, text: str, field: str = "name") -> Study:
    return await call.services.studies.study(read_study_name(text, field=field))


async def _trial(call: Call, text: str, field: str = "name") -> tuple[Study, int]:
    study, number = read_trial_name(text, field=field)
    return await call.services.studies.study(study), number


async def _view(call: Call, study: Study, record: Trial) -> Message:
    return (await _views(call, study, (record,)))[0]


async def _views(call: Call, study: Study, records: Sequence[Trial]) -> list[Message]:
    shown = await studies.with_measurements(call.services, study.uid, records)

    def views() -> list[Message]:
        return [trial_view(study.name, record, measured) for record, measured in shown]

    # Takes half a second for a page of trials with a hundred measurements each.
    return await asyncio.to_thread(views) if len(shown) > _FEW else views()


def _given_trial(message: Any) -> GivenTrial:
    states = message.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    state = states[message.state].name if message.state in states else ""
    final = None
    if message.HasField("final_measurement"):
        final = given_measurement(message.final_measurement, "trial.final_measurement")
    return GivenTrial(
        "trial",
        tuple(given_parameters(message, "trial")),
        tuple(
            given_measurement(measurement, f"trial.measurements[{index}]")
            for index, measurement in enumerate(message.measurements)
        ),
        final,
        Claim(state) if state in (Claim.SUCCEEDED, Claim.INFEASIBLE) else Claim.WANTED,
        message.client_id,
        message.infeasible_reason,
    )

"""`aiplatform` v1 VizierService: the trials of a study, from suggestion to completion
(facts/resources#trials, facts/tuning)."""

import asyncio
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import operation_views, study_views
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.errors import NotServed
from trainshed.api.calls.paging import decode_number, encode_token, page_size
from trainshed.api.resources import studies
from trainshed.api.resources.studies import (
    check_stopping,
    read_study_name,
    read_trial_name,
    suggest,
)
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.study.reading import Claim, GivenTrial
from trainshed.core.study.records import Study, Trial
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.aiplatform.v1.VizierService"
_LARGEST_PAGE: Final = 1_000
"""As many trials as a study has by the public limit: the SDK's `Study.trials()` reads the first page only."""
_V1: Final = "google.cloud.aiplatform.v1"
_FEW: Final = 20
"""Trials whose views are made at once; those of more are made aside, while everybody else goes on."""


async def create(call: Call, request: Any) -> Message:
    """The client's own trial: REQUESTED, or over if it comes with a final measurement or the state says
    so."""
    study = await _study(call, request.parent)
    made = await studies.create_trial(call.services, study, _given_trial(request.trial))
    return await _view(call, study, made)


async def get(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    return await _view(call, study, await studies.read_trial(call.services, study, number))


async def list_(call: Call, request: Any) -> Message:
    """Ascending by number."""
    study = await _study(call, request.parent)
    size = page_size(request.page_size, default=_LARGEST_PAGE, maximum=_LARGEST_PAGE)
    question = (str(study.name), "trials")
    after = decode_number(request.page_token, *question)
    rows = await call.services.studies.trials(study.uid, after, size + 1)
    page = rows[:size]
    more = len(rows) > size
    return pool.message_class(f"{_V1}.ListTrialsResponse")(
        trials=await _views(call, study, page),
        next_page_token=encode_token(str(page[-1].number), *question) if more else "",
    )


async def delete(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.name)
    await studies.delete_trial(call.services, study, number)
    return pool.message_class("google.protobuf.Empty")()


async def suggest_trials(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent)
    if any(context.parameters for context in request.contexts):
        raise NotServed(
            "contexts with parameters are not served: suggestions come from the whole search space. Leave "
            "contexts out, or create a trial with the parameters that you want to have tried."
        )
    count = request.suggestion_count
    if len(request.contexts) not in (0, count):
        wrong = f"{len(request.contexts)} contexts are given for {count} suggestions; give none or as many."
        raise InvalidRequest((Violation("contexts", wrong),))
    record = await suggest(
        call.services,
        study,
        parent=f"{study.name}/operations/",
        client=request.client_id,
        count=count,
    )
    return await operation_views.operation(call.services, record)


async def add_measurement(call: Call, request: Any) -> Message:
    study, number = await _trial(call, request.trial_name, field="trial_name")
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
    study, number = await _trial(call, request.trial_name, field="trial_name")
    record = await check_stopping(
        call.services, study, number, parent=f"{study.name.trial(number)}/operations/"
    )
    return await operation_views.operation(call.services, record)


async def list_optimal(call: Call, request: Any) -> Message:
    study = await _study(call, request.parent)
    best = await studies.optimal(call.services, study)
    return pool.message_class(f"{_V1}.ListOptimalTrialsResponse")(
        optimal_trials=await _views(call, study, best)
    )


HANDLERS: Final[Handlers] = {
    f"{_SERVICE}.CreateTrial": create,
    f"{_SERVICE}.GetTrial": get,
    f"{_SERVICE}.ListTrials": list_,
    f"{_SERVICE}.DeleteTrial": delete,
    f"{_SERVICE}.SuggestTrials": suggest_trials,
    f"{_SERVICE}.AddTrialMeasurement": add_measurement,
    f"{_SERVICE}.CompleteTrial": complete,
    f"{_SERVICE}.StopTrial": stop,
    f"{_SERVICE}.CheckTrialEarlyStoppingState": check_early_stopping,
    f"{_SERVICE}.ListOptimalTrials": list_optimal,
}


async def _study(call: Call, name: str, *, field: str = "parent") -> Study:
    return await call.services.studies.study(read_study_name(name, of_ml=False, field=field))


async def _trial(call: Call, name: str, *, field: str = "name") -> tuple[Study, int]:
    study, number = read_trial_name(name, of_ml=False, field=field)
    return await call.services.studies.study(study), number


async def _view(call: Call, study: Study, record: Trial) -> Message:
    return (await _views(call, study, (record,)))[0]


async def _views(call: Call, study: Study, records: tuple[Trial, ...]) -> list[Message]:
    shown = await studies.with_measurements(call.services, study.uid, records)

    def views() -> list[Message]:
        return [study_views.trial(study.name, record, measured) for record, measured in shown]

    # Half a second's work for a page of trials with a hundred measurements each.
    return await asyncio.to_thread(views) if len(shown) > _FEW else views()


def _given_trial(message: Any) -> GivenTrial:
    states = message.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    state = states[message.state].name if message.state in states else ""
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
        Claim(state) if state in (Claim.SUCCEEDED, Claim.INFEASIBLE) else Claim.WANTED,
        message.client_id,
        message.infeasible_reason,
    )

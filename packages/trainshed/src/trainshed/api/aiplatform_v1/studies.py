"""`aiplatform` v1 VizierService: studies, their trials, suggestions, and whether a trial should stop early
(facts/tuning#vizier, facts/resources#trials, spec/tuning#studies).

Changes of a trial are pure (`core.study.changes`). Suggestions and checks are stored as operations that the
controller carries out. No request is held open for them: after PATIENCE the operation is answered as it is,
and the client polls it.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1 import views
from trainshed.api.aiplatform_v1.kinds import Kind
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.operations import operation_view
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.errors import NotServed
from trainshed.api.calls.paging import Listing, decode_position, first_page, page_size
from trainshed.api.calls.registry import Checks
from trainshed.api.calls.services import Services
from trainshed.api.resources.operations import wait_for
from trainshed.core.errors import FailedPrecondition, InvalidRequest, Violation
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid, StudyName
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.study import parse_study
from trainshed.core.study import changes
from trainshed.core.study.progress import final_measurement, optimal_trials
from trainshed.core.study.reading import parse_trial, read_measurement
from trainshed.core.study.records import Measurement, Study, StudyState, StudyUid, Trial, TrialState
from trainshed.core.study.spec import StudySpec
from trainshed.store.records import Operation, OperationKind
from trainshed.wire import json as wire_json
from trainshed.wire import pool

SERVICE: Final = f"{V1}.VizierService"
_TRIALS: Final = 1_000
"""Most trials of a page: as many as the public limit of a study, because the SDK's `Study.trials()` reads
only the first page."""


async def create_study(call: Call, request: Any) -> Message:
    """Create a study. An existing display name is a conflict, because clients find a study again by it
    (spec/clients#conflicts)."""
    display_name, spec = _parse(call, request)
    parent = known_location(request.parent)
    uid = StudyUid(call.services.new_uid())
    record = Study(
        uid=uid,
        name=StudyName(parent.project_id, parent.location, str(uid)),
        display_name=display_name,
        spec=spec,
        public_json=wire_json.compact_text(wire_json.to_public(request.study)),
        created=call.services.now(),
    )
    return views.study(await call.services.studies.create(record))


async def look_up_study(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    if not request.display_name:
        raise InvalidRequest((Violation("display_name", "The display name must be set."),))
    return views.study(
        await call.services.studies.lookup_study(
            parent.project_id, parent.location, request.display_name
        )
    )


async def delete_study(call: Call, request: Any) -> Message:
    """Delete a study with its trials, and notify waiters for its operations."""
    name, services = StudyName.parse(request.name), call.services
    uid = await services.studies.delete_study(name, services.now())
    services.notices.publish(JobUid(uid))
    return pool.message("google.protobuf.Empty")


async def create_trial(call: Call, request: Any) -> Message:
    """Create the client's own trial: REQUESTED, or over if it has a final measurement or its state says
    so."""
    services = call.services
    study = await study_above(call, request)
    public = wire_json.to_public(request.trial)
    record, measurements = parse_trial(study.spec, study.uid, public, services.now())
    if not _vacancies(services, study, await services.studies.history((study.uid,))):
        raise _takes_no_more(services, study)
    return await _view(call, study, await services.studies.create_trial(record, measurements))


async def get_trial(call: Call, request: Any) -> Message:
    study, number = await trial_of(call, request.name)
    return await _view(call, study, await call.services.studies.trial(study.uid, number))


async def list_trials(call: Call, request: Any) -> Message:
    """List trials, ascending by number."""
    study = await study_above(call, request)
    size = page_size(request.page_size, default=_TRIALS, maximum=_TRIALS)
    question = (str(study.name), "trials")
    after = decode_position(request.page_token, *question)
    rows = await call.services.studies.trials(study.uid, after, size + 1)
    page, token = first_page(rows, size, lambda trial: trial.number, *question)
    shown = await _views(call, study, page)
    return message("ListTrialsResponse", trials=shown, next_page_token=token)


async def delete_trial(call: Call, request: Any) -> Message:
    study, number = await trial_of(call, request.name)
    await call.services.studies.delete_trial(study.uid, number)
    return pool.message("google.protobuf.Empty")


async def add_measurement(call: Call, request: Any) -> Message:
    """Add a measurement to a trial; one of the same step and elapsed time is replaced."""
    study, number = await trial_of(call, request.trial_name, "trial_name")
    sent = Section(wire_json.to_public(request.measurement), "measurement", Faults())
    measurement = read_measurement(study.spec, sent, final=False)
    sent.faults.refuse()
    now = call.services.now()
    changed = await call.services.studies.change_trial(
        study.uid, number, lambda trial, _: changes.measured(trial, now), measurement
    )
    return await _view(call, study, changed)


async def complete_trial(call: Call, request: Any) -> Message:
    """End the trial with the given final measurement, or else with the one that the specification selects
    among its own. With neither it is infeasible. It is also infeasible if the client says so; then the
    measurement is ignored (public text)."""
    study, number = await trial_of(call, request.name)
    services, is_infeasible = call.services, request.trial_infeasible
    faults = Faults()
    if request.infeasible_reason and not is_infeasible:
        text = "Only infeasible trials can have a reason. Set trial_infeasible, too."
        faults.add("infeasible_reason", text)
    final: Measurement | None = None
    if request.HasField("final_measurement") and not is_infeasible:
        public = wire_json.to_public(request.final_measurement)
        final = read_measurement(
            study.spec, Section(public, "final_measurement", faults), final=True
        )
    faults.refuse()

    now = services.now()

    def change(trial: Trial, measured: Callable[[], Sequence[Measurement]]) -> Trial:
        if is_infeasible:
            return changes.infeasible(trial, request.infeasible_reason, now)
        last = final or final_measurement(study.spec, measured())
        return changes.completed(trial, last, now)

    return await _view(call, study, await services.studies.change_trial(study.uid, number, change))


async def stop_trial(call: Call, request: Any) -> Message:
    study, number = await trial_of(call, request.name)
    changed = await call.services.studies.change_trial(
        study.uid, number, lambda trial, _: changes.stopped(trial)
    )
    return await _view(call, study, changed)


async def list_optimal_trials(call: Call, request: Any) -> Message:
    """List the Pareto-optimal trials, ascending by number; the best trials if there is a single objective."""
    study = await study_above(call, request)
    history = await call.services.studies.history((study.uid,))
    # Takes long for many trials and objectives; other requests go on meanwhile.
    best = await asyncio.to_thread(optimal_trials, study.spec, history)
    return message("ListOptimalTrialsResponse", optimal_trials=await _views(call, study, best))


def _parse(call: Call, request: Any) -> tuple[str, StudySpec]:
    known_location(request.parent)
    return parse_study(wire_json.to_public(request.study))


async def study_above(call: Call, request: Any) -> Study:
    """Return the study that is a request's `parent`. Raises InvalidRequest, NotFound."""
    return await call.services.studies.get(StudyName.parse(request.parent, of="parent"))


async def trial_of(call: Call, text: str, field: str = "name") -> tuple[Study, int]:
    """Return the study and the number of a trial's name in `field`. Raises InvalidRequest, NotFound."""
    study, number = StudyName.parse_trial(text, of=field)
    return await call.services.studies.get(study), number


def _vacancies(services: Services, study: Study, history: Sequence[Trial]) -> int:
    """Return how many new trials the study takes beside those that it has."""
    most = services.settings.max_study_trials
    return max(0, (most or sys.maxsize) - len(history)) if study.state is StudyState.ACTIVE else 0


def _takes_no_more(services: Services, study: Study) -> FailedPrecondition:
    what = f"already has the maximum of {services.settings.max_study_trials} trials"
    if study.state is not StudyState.ACTIVE:
        why = f" ({study.inactive_reason})" if study.inactive_reason else ""
        what = f"is {study.state}{why} and accepts no further trials"
    return FailedPrecondition(f"{study.name} {what}. Create another study.")


async def _view(call: Call, study: Study, record: Trial) -> Message:
    return (await _views(call, study, (record,)))[0]


async def _views(call: Call, study: Study, records: Sequence[Trial]) -> list[Message]:
    numbers = [record.number for record in records]
    measured = await call.services.studies.measurements(study.uid, numbers)

    def shown() -> list[Message]:
        made = [message("Trial") for _ in records]
        for view, record in zip(made, records, strict=True):
            views.set_trial(view, study.name, record, measured.get(record.number, ()))
        return made

    # Takes half a second for a page of trials with a hundred measurements each.
    return await asyncio.to_thread(shown)


PATIENCE: Final = 2.0
"""Seconds that a call waits for its operation, which saves its client a poll."""
_MOST: Final = 1_000
"""Most suggestions of one call: as many as a study may have by the public limit (facts/tuning#metrics)."""


async def suggest(call: Call, request: Any) -> Message:
    """Ask the controller for trials. All clients without a name are one, which gets its active trials again.
    Raises InvalidRequest, FailedPrecondition (nothing can be handed out)."""
    study = await study_above(call, request)
    count = request.suggestion_count
    if any(context.parameters for context in request.contexts):
        raise NotServed(
            "contexts with parameters are not served: suggestions come from the whole search space. Leave "
            "contexts out, or create a trial with the parameters that you want to have tried."
        )
    if len(request.contexts) not in (0, count):
        wrong = f"{len(request.contexts)} contexts are given for {count} suggestions; give none or as many."
        raise InvalidRequest((Violation("contexts", wrong),))
    if not 1 <= count <= _MOST:
        text = f"{count} is not from 1 to {_MOST}."
        raise InvalidRequest((Violation("suggestion_count", text),))
    client = request.client_id
    count = await _to_hand_out(call.services, study, client, count)
    return await _begin(
        call, OperationKind.SUGGEST, str(study.name), study, client=client, count=count
    )


async def check_stopping(call: Call, request: Any) -> Message:
    """Ask the controller whether the trial should stop. Raises NotFound, FailedPrecondition (it is over)."""
    study, number = await trial_of(call, request.trial_name, "trial_name")
    trial = await call.services.studies.trial(study.uid, number)
    if trial.state.is_over:
        raise FailedPrecondition(
            f"Trial {number} is {trial.state}: it is over and cannot be stopped."
        )
    target = study.name.trial(number)
    return await _begin(call, OperationKind.CHECK_STOPPING, target, study, trial=number)


async def _to_hand_out(services: Services, study: Study, client: str, count: int) -> int:
    """Return how many trials of `count` the client may be given. Even if a study is full or not active, the
    client gets back the trials that it has not completed, and in a full one also those that were requested.

    Raises FailedPrecondition if there are none.
    """
    history = await services.studies.history((study.uid,))
    new = _vacancies(services, study, history)
    there = sum(
        (trial.state is TrialState.ACTIVE and trial.client == client)
        or (trial.state is TrialState.REQUESTED and study.state is StudyState.ACTIVE)
        for trial in history
    )
    if there + new == 0:
        raise _takes_no_more(services, study)
    return min(count, there + new)


async def _begin(
    call: Call, kind: OperationKind, target: str, study: Study, **fields: Any
) -> Message:
    """Store an operation, tell the controller, and return its message when it has ended, or after
    PATIENCE."""
    services, now = call.services, call.services.now()
    operation = Operation(
        name=f"{target}/operations/{services.new_uid()}",
        kind=kind,
        target=target,
        created=now,
        updated=now,
        state=OperationState.RUNNING,
        study=study.uid,
        **fields,
    )
    await services.studies.begin_operation(operation)
    services.suggest(operation.study)
    return await operation_view(services, await wait_for(services, operation.name, PATIENCE))


_STUDIES: Final = Kind(
    "VizierService",
    "Study",
    StudyName.parse,
    lambda services: services.studies,
    lambda _, study: views.study(study),
    Listing("studies", {}, {}),
    plural="Studies",
)
"""Studies, newest first."""
HANDLERS: Final[Handlers] = {
    **_STUDIES.handlers(
        CreateStudy=create_study, LookupStudy=look_up_study, DeleteStudy=delete_study
    ),
    f"{SERVICE}.CreateTrial": create_trial,
    f"{SERVICE}.GetTrial": get_trial,
    f"{SERVICE}.ListTrials": list_trials,
    f"{SERVICE}.DeleteTrial": delete_trial,
    f"{SERVICE}.AddTrialMeasurement": add_measurement,
    f"{SERVICE}.CompleteTrial": complete_trial,
    f"{SERVICE}.StopTrial": stop_trial,
    f"{SERVICE}.ListOptimalTrials": list_optimal_trials,
    f"{SERVICE}.SuggestTrials": suggest,
    f"{SERVICE}.CheckTrialEarlyStoppingState": check_stopping,
}
CHECKS: Final[Checks] = {f"{SERVICE}.CreateStudy": _parse}

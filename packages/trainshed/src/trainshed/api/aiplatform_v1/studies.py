"""`aiplatform` v1 VizierService: studies and their trials, suggestions and early-stopping checks
(facts/tuning#vizier, facts/resources#trials, spec/tuning#studies).

Pure functions compute the changes of a trial (`core.study.changes`). Suggestions and early-stopping checks
are stored as operations, which the controller executes. A request waits at most OPERATION_TIMEOUT for its
operation. After that the client polls the operation.
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
from trainshed.api.resources.operations import wait_for_operation
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
_MAX_PAGE_SIZE: Final = 1_000
"""Maximum number of trials on a page. It equals the public maximum of trials per study, because the SDK's
`Study.trials()` reads only the first page."""


async def create_study(call: Call, request: Any) -> Message:
    """Create a study. Raises AlreadyExists for an existing display name, because clients find studies by
    display name (spec/clients#conflicts)."""
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
        await call.services.studies.lookup_study(parent.project_id, parent.location, request.display_name)
    )


async def delete_study(call: Call, request: Any) -> Message:
    """Delete a study with its trials. Wake the requests that wait for operations of the study."""
    name, services = StudyName.parse(request.name), call.services
    uid = await services.studies.delete_study(name, services.now())
    services.notices.publish(JobUid(uid))
    return pool.message("google.protobuf.Empty")


async def create_trial(call: Call, request: Any) -> Message:
    """Create a trial with parameters from the client. The trial's state is REQUESTED. If the request contains
    a final measurement or a final state, the trial is finished at once."""
    services = call.services
    study = await parent_study(call, request)
    public = wire_json.to_public(request.trial)
    record, measurements = parse_trial(study.spec, study.uid, public, services.now())
    if not _remaining_trials(services, study, await services.studies.history((study.uid,))):
        raise _study_full_error(services, study)
    return await _view(call, study, await services.studies.create_trial(record, measurements))


async def get_trial(call: Call, request: Any) -> Message:
    study, number = await find_trial(call, request.name)
    return await _view(call, study, await call.services.studies.trial(study.uid, number))


async def list_trials(call: Call, request: Any) -> Message:
    """List trials in ascending order of their numbers."""
    study = await parent_study(call, request)
    size = page_size(request.page_size, default=_MAX_PAGE_SIZE, maximum=_MAX_PAGE_SIZE)
    question = (str(study.name), "trials")
    after = decode_position(request.page_token, *question)
    rows = await call.services.studies.trials(study.uid, after, size + 1)
    page, token = first_page(rows, size, lambda trial: trial.number, *question)
    create_views = await _views(call, study, page)
    return message("ListTrialsResponse", trials=create_views, next_page_token=token)


async def delete_trial(call: Call, request: Any) -> Message:
    study, number = await find_trial(call, request.name)
    await call.services.studies.delete_trial(study.uid, number)
    return pool.message("google.protobuf.Empty")


async def add_measurement(call: Call, request: Any) -> Message:
    """Add a measurement to a trial. It replaces a measurement with the same step and elapsed time."""
    study, number = await find_trial(call, request.trial_name, "trial_name")
    sent = Section(wire_json.to_public(request.measurement), "measurement", Faults())
    measurement = read_measurement(study.spec, sent, final=False)
    sent.faults.refuse()
    now = call.services.now()
    changed = await call.services.studies.change_trial(
        study.uid, number, lambda trial, _: changes.record_measurement(trial, now), measurement
    )
    return await _view(call, study, changed)


async def complete_trial(call: Call, request: Any) -> Message:
    """Finish a trial with the final measurement in the request. Without it, the study's specification
    determines which of the trial's measurements is final. The trial is infeasible if no such measurement
    exists. If the client marks the trial as infeasible, the measurement in the request is ignored (public
    documentation)."""
    study, number = await find_trial(call, request.name)
    services, is_infeasible = call.services, request.trial_infeasible
    faults = Faults()
    if request.infeasible_reason and not is_infeasible:
        text = "Only infeasible trials can have a reason. Set trial_infeasible, too."
        faults.add("infeasible_reason", text)
    final: Measurement | None = None
    if request.HasField("final_measurement") and not is_infeasible:
        public = wire_json.to_public(request.final_measurement)
        final = read_measurement(study.spec, Section(public, "final_measurement", faults), final=True)
    faults.refuse()

    now = services.now()

    def change(trial: Trial, measured: Callable[[], Sequence[Measurement]]) -> Trial:
        if is_infeasible:
            return changes.infeasible(trial, request.infeasible_reason, now)
        last = final or final_measurement(study.spec, measured())
        return changes.complete(trial, last, now)

    return await _view(call, study, await services.studies.change_trial(study.uid, number, change))


async def stop_trial(call: Call, request: Any) -> Message:
    study, number = await find_trial(call, request.name)
    changed = await call.services.studies.change_trial(
        study.uid, number, lambda trial, _: changes.request_stop(trial)
    )
    return await _view(call, study, changed)


async def list_optimal_trials(call: Call, request: Any) -> Message:
    """List the Pareto-optimal trials in ascending order of their numbers. With one objective, these are the
    best trials."""
    study = await parent_study(call, request)
    history = await call.services.studies.history((study.uid,))
    # Search in a thread, because the search takes long if there are many trials and objectives.
    best = await asyncio.to_thread(optimal_trials, study.spec, history)
    return message("ListOptimalTrialsResponse", optimal_trials=await _views(call, study, best))


def _parse(call: Call, request: Any) -> tuple[str, StudySpec]:
    known_location(request.parent)
    return parse_study(wire_json.to_public(request.study))


async def parent_study(call: Call, request: Any) -> Study:
    """Return the study that a request's `parent` specifies. Raises InvalidRequest and NotFound."""
    return await call.services.studies.get(StudyName.parse(request.parent, of="parent"))


async def find_trial(call: Call, text: str, field: str = "name") -> tuple[Study, int]:
    """Return the study and the trial number from the name in `field`. Raises InvalidRequest and NotFound."""
    study, number = StudyName.parse_trial(text, of=field)
    return await call.services.studies.get(study), number


def _remaining_trials(services: Services, study: Study, history: Sequence[Trial]) -> int:
    """Return how many more trials the study can have."""
    max_trials = services.settings.max_study_trials
    return max(0, (max_trials or sys.maxsize) - len(history)) if study.state is StudyState.ACTIVE else 0


def _study_full_error(services: Services, study: Study) -> FailedPrecondition:
    reason = f"already has the maximum of {services.settings.max_study_trials} trials"
    if study.state is not StudyState.ACTIVE:
        details = f" ({study.inactive_reason})" if study.inactive_reason else ""
        reason = f"is {study.state}{details} and accepts no further trials"
    return FailedPrecondition(f"{study.name} {reason}. Create another study.")


async def _view(call: Call, study: Study, record: Trial) -> Message:
    return (await _views(call, study, (record,)))[0]


async def _views(call: Call, study: Study, records: Sequence[Trial]) -> list[Message]:
    numbers = [record.number for record in records]
    measured = await call.services.studies.measurements(study.uid, numbers)

    def create_views() -> list[Message]:
        trials = [message("Trial") for _ in records]
        for view, record in zip(trials, records, strict=True):
            views.set_trial(view, study.name, record, measured.get(record.number, ()))
        return trials

    # Create the messages in a thread. For a page of trials with a hundred measurements each, this takes half
    # a second.
    return await asyncio.to_thread(create_views)


OPERATION_TIMEOUT: Final = 2.0
"""Maximum number of seconds that a request waits for its operation. If the operation finishes in this time,
the client does not need to poll the operation."""
_MAX_SUGGESTIONS: Final = 1_000
"""Maximum number of suggestions per request. It equals the public maximum of trials per study
(facts/tuning#metrics)."""


async def suggest(call: Call, request: Any) -> Message:
    """Request trials from the controller.

    A client receives its active trials again. All clients without an ID count as one client. Raises
    InvalidRequest, and FailedPrecondition if no trial is available.
    """
    study = await parent_study(call, request)
    count = request.suggestion_count
    if any(context.parameters for context in request.contexts):
        raise NotServed(
            "Contexts with parameters are not supported, because suggestions cover the whole search space. "
            "Omit contexts, or create a trial with your parameters."
        )
    if len(request.contexts) not in (0, count):
        wrong = (
            f"The request has {len(request.contexts)} contexts for {count} suggestions. Send none or {count}."
        )
        raise InvalidRequest((Violation("contexts", wrong),))
    if not 1 <= count <= _MAX_SUGGESTIONS:
        text = f"{count} is out of range. Use 1 to {_MAX_SUGGESTIONS}."
        raise InvalidRequest((Violation("suggestion_count", text),))
    client = request.client_id
    count = await _available_count(call.services, study, client, count)
    return await _start_operation(
        call, OperationKind.SUGGEST, str(study.name), study, client=client, count=count
    )


async def check_stopping(call: Call, request: Any) -> Message:
    """Request an early-stopping decision about a trial from the controller. Raises NotFound, and
    FailedPrecondition if the trial has finished."""
    study, number = await find_trial(call, request.trial_name, "trial_name")
    trial = await call.services.studies.trial(study.uid, number)
    if trial.state.is_over:
        raise FailedPrecondition(
            f"Trial {number} has already finished ({trial.state}) and cannot be stopped."
        )
    target = study.name.trial(number)
    return await _start_operation(call, OperationKind.CHECK_STOPPING, target, study, trial=number)


async def _available_count(services: Services, study: Study, client: str, count: int) -> int:
    """Return how many of `count` trials the client can receive.

    A client can always receive its unfinished trials again, even if the study is full or not active. If the
    study is full, the client can also receive requested trials. Raises FailedPrecondition if no trial is
    available.
    """
    history = await services.studies.history((study.uid,))
    remaining = _remaining_trials(services, study, history)
    existing = sum(
        (trial.state is TrialState.ACTIVE and trial.client == client)
        or (trial.state is TrialState.REQUESTED and study.state is StudyState.ACTIVE)
        for trial in history
    )
    if existing + remaining == 0:
        raise _study_full_error(services, study)
    return min(count, existing + remaining)


async def _start_operation(
    call: Call, kind: OperationKind, target: str, study: Study, **fields: Any
) -> Message:
    """Store an operation and notify the controller. Return the operation's message when it finishes, or after
    OPERATION_TIMEOUT."""
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
    return await operation_view(
        services, await wait_for_operation(services, operation.name, OPERATION_TIMEOUT)
    )


_STUDIES: Final = Kind(
    "VizierService",
    "Study",
    StudyName.parse,
    lambda services: services.studies,
    lambda _, study: views.study(study),
    Listing("studies", {}, {}),
    plural="Studies",
)
"""Lists return the newest study first."""
HANDLERS: Final[Handlers] = {
    **_STUDIES.handlers(CreateStudy=create_study, LookupStudy=look_up_study, DeleteStudy=delete_study),
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

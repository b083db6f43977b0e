"""`aiplatform` v1 VizierService: suggestions, and whether a trial should stop early (spec/tuning#studies).

Both are stored as operations that the controller carries out. No request is held open for them: after
PATIENCE the operation is answered as it is, and the client polls it.
"""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.operations import operation_view
from trainshed.api.aiplatform_v1.studies import (
    SERVICE,
    check_active,
    full,
    is_full,
    stored,
    study_of,
    trial_of,
)
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.errors import NotServed
from trainshed.api.calls.services import Services
from trainshed.api.resources.operations import wait_for
from trainshed.core.errors import FailedPrecondition, InvalidRequest, Violation
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.records import Study, StudyState, TrialState
from trainshed.store.records import Operation, OperationKind

PATIENCE: Final = 2.0
"""Seconds that a call waits for its operation, which saves its client a poll."""
_MOST: Final = 1_000
"""Most suggestions of one call: as many as a study may have by the public limit (facts/tuning#metrics)."""


async def suggest(call: Call, request: Any) -> Message:
    """Ask the controller for trials. All clients without a name are one, which gets its active trials again.
    Raises InvalidRequest, FailedPrecondition (nothing can be handed out)."""
    study = await study_of(call, request.parent, "parent")
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
    trial = (await stored(call.services, study, number)).trial
    if trial.state.is_over:
        raise FailedPrecondition(
            f"Trial {number} is {trial.state}: it is over, and nothing of it is left to stop."
        )
    target = study.name.trial(number)
    return await _begin(call, OperationKind.CHECK_STOPPING, target, study, trial=number)


HANDLERS: Final[Handlers] = {
    f"{SERVICE}.SuggestTrials": suggest,
    f"{SERVICE}.CheckTrialEarlyStoppingState": check_stopping,
}


async def _to_hand_out(services: Services, study: Study, client: str, count: int) -> int:
    """Return how many trials of `count` the client may be given. Even if a study is full or not active, the
    client gets back the trials that it has not completed, and in a full one also those that were requested.

    Raises FailedPrecondition if there are none.
    """
    is_active = study.state is StudyState.ACTIVE
    if is_active and not await is_full(services, study):
        return count
    history = await services.studies.history((study.uid,))
    most = services.settings.max_study_trials
    new = max(most - len(history), 0) if is_active else 0
    there = sum(
        (trial.state is TrialState.ACTIVE and trial.client == client)
        or (trial.state is TrialState.REQUESTED and is_active)
        for trial in history
    )
    if there + new == 0:
        check_active(study)
        raise full(services, study)
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

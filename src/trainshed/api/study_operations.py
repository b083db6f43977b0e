"""Suggestions and early stopping checks: stored as operations that the controller carries out, and waited for a moment.

Owns how long a call waits and what a client may be given; who suggests what is the controller's. Nothing is held open:
after PATIENCE the operation is answered as it stands, and the client polls it.
"""

from typing import Final

from trainshed.api.aiplatform_v1.operations import wait_for
from trainshed.api.services import Services
from trainshed.api.vizier import check_active, full, is_full, read_trial
from trainshed.core.errors import FailedPrecondition, InvalidRequest, Violation
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.studies import Study, StudyState
from trainshed.core.study.trials import TrialState
from trainshed.store.operations import Operation, OperationKind

PATIENCE: Final = 2.0
"""Seconds that a call waits for its operation, which saves its client a poll."""
MOST_SUGGESTIONS: Final = 1_000
"""Of one call: as many as a study may have by the public limit (facts §7.4)."""


async def suggest(
    services: Services, study: Study, *, parent: str, client: str, count: int
) -> Operation:
    """Ask the controller for `count` trials for `client`; the operation as it is after at most PATIENCE. `parent`: its
    name up to the number that ends it. Raises InvalidRequest, FailedPrecondition (nothing can be handed out)."""
    wrong: list[Violation] = []
    if not 1 <= count <= MOST_SUGGESTIONS:
        wrong.append(Violation("suggestion_count", f"{count} is not from 1 to {MOST_SUGGESTIONS}."))
    if not client:
        wrong.append(
            Violation(
                "client_id",
                "It is missing; name the client, so that it gets its pending trial back if it asks again.",
            )
        )
    if wrong:
        raise InvalidRequest(tuple(wrong))
    asked = Operation(
        name=f"{parent}{services.new_uid()}",
        kind=OperationKind.SUGGEST,
        target=str(study.name),
        created=services.now(),
        updated=services.now(),
        state=OperationState.RUNNING,
        study=study.uid,
        client=client,
        count=await _to_hand_out(services, study, client, count),
    )
    return await _begin(services, asked)


async def check_stopping(
    services: Services, study: Study, number: int, *, parent: str
) -> Operation:
    """Ask the controller whether the trial should stop; answers as `suggest`. Raises NotFound, FailedPrecondition (the
    trial is over)."""
    trial = await read_trial(services, study, number)
    if trial.state.is_over:
        raise FailedPrecondition(
            f"Trial {number} is {trial.state}: it is over, and nothing of it is left to stop."
        )
    asked = Operation(
        name=f"{parent}{services.new_uid()}",
        kind=OperationKind.CHECK_STOPPING,
        target=study.name.trial(number),
        created=services.now(),
        updated=services.now(),
        state=OperationState.RUNNING,
        study=study.uid,
        trial=number,
    )
    return await _begin(services, asked)


async def _to_hand_out(services: Services, study: Study, client: str, count: int) -> int:
    """How many trials of `count` the client may be given. Even of a study that is full, or not active, it gets those
    back that it has not completed, and of a full one those that were requested.

    Raises FailedPrecondition if there are none.
    """
    is_active = study.state is StudyState.ACTIVE
    if is_active and not await is_full(services, study):
        return count
    history = await services.studies.history((study.uid,))
    most = services.settings.max_study_trials
    room = max(most - len(history), 0) if is_active else 0
    there = sum(
        (trial.state is TrialState.ACTIVE and trial.client == client)
        or (trial.state is TrialState.REQUESTED and is_active)
        for trial in history
    )
    if there + room == 0:
        check_active(study)
        raise full(services, study)
    return min(count, there + room)


async def _begin(services: Services, operation: Operation) -> Operation:
    """Store it, tell the controller, and wait for its end, at most PATIENCE."""
    await services.studies.begin_operation(operation)
    services.suggest(operation.study)
    return await wait_for(services, operation.name, PATIENCE)

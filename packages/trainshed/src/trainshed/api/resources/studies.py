"""What is done with studies and their trials; takes and returns records, never messages
(spec/tuning#studies).

Every change of a trial loads it, changes it purely (`core.study.changes`), and stores it if nobody else has
changed it meanwhile; otherwise it starts again. Suggestions and early stopping checks are stored as
operations that the controller carries out. No request is held open for them: after PATIENCE the operation is
answered as it is, and the client polls it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from msgspec.structs import replace

from trainshed.api.calls.services import Services
from trainshed.core.errors import (
    Aborted,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Violation,
)
from trainshed.core.failure.messages import CANCELLED
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState, OperationTrigger
from trainshed.core.lifecycle.tables import OPERATION
from trainshed.core.names import JobUid, StudyName
from trainshed.core.requests import Faults
from trainshed.core.study import changes
from trainshed.core.study.progress import final_measurement
from trainshed.core.study.reading import (
    GivenMeasurement,
    GivenTrial,
    parse_trial,
    read_measurement,
)
from trainshed.core.study.records import Measurement, Study, StudyState, StudyUid, Trial, TrialState
from trainshed.eventloop.background import joined
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation, OperationKind
from trainshed.store.studies import StoredTrial
from trainshed.studies.optimal import optimal_trials

_TRIES: Final = 5
PATIENCE: Final = 2.0
"""Seconds that a call waits for its operation, which saves its client a poll."""
MOST_SUGGESTIONS: Final = 1_000
"""Most suggestions of one call: as many as a study may have by the public limit (facts/tuning#metrics)."""


def read_study_name(text: str, *, field: str = "name") -> StudyName:
    """Return the name of a study. Raises InvalidRequest for an invalid one."""
    try:
        return StudyName.parse(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, str(error)),)) from None


def read_trial_name(text: str, *, field: str = "name") -> tuple[StudyName, int]:
    """Return a trial's study and number. Raises InvalidRequest for an invalid name."""
    try:
        return StudyName.parse_trial(text)
    except ValueError as error:
        raise InvalidRequest((Violation(field, str(error)),)) from None


async def delete_study(services: Services, name: StudyName) -> None:
    """Delete a study with its trials, and notify waiters for its operations. Raises NotFound."""
    uid = await services.studies.delete_study(name, services.now())
    services.notices.publish(JobUid(uid))


async def read_trial(services: Services, study: Study, number: int) -> Trial:
    """Return a trial. Raises NotFound."""
    return (await _stored(services, study, number)).trial


async def with_measurements(
    services: Services, study: StudyUid, trials: Iterable[Trial]
) -> tuple[tuple[Trial, tuple[Measurement, ...]], ...]:
    """Return each trial with its measurements, ascending by (step, elapsed)."""
    shown = tuple(trials)
    measured = await services.studies.measurements(study, [trial.number for trial in shown])
    return tuple((trial, measured.get(trial.number, ())) for trial in shown)


async def create_trial(services: Services, study: Study, claimed: GivenTrial) -> Trial:
    """Store a client's own trial under the next number. Raises InvalidRequest with all faults,
    FailedPrecondition (the study is not active, or full)."""
    record, measurements = parse_trial(study.spec, study.uid, claimed, services.now())
    check_active(study)
    if await is_full(services, study):
        raise full(services, study)
    return await services.studies.create_trial(record, measurements)


async def delete_trial(services: Services, study: Study, number: int) -> None:
    """Delete a trial. Raises NotFound."""
    await _stored(services, study, number)
    await services.studies.delete_trial(study.uid, number)


async def add_measurement(
    services: Services, study: Study, number: int, reported: GivenMeasurement
) -> Trial:
    """Add a measurement to a trial; one of the same step and elapsed time is replaced. Raises InvalidRequest,
    NotFound, FailedPrecondition (the trial is over), Aborted."""
    faults = Faults()
    measurement = read_measurement(study.spec, reported, faults, final=False)
    faults.refuse()

    async def change(trial: Trial) -> Trial:
        return changes.measured(trial, services.now())

    return await _change(services, study, number, change, measurement)


async def complete(
    services: Services,
    study: Study,
    number: int,
    reported: GivenMeasurement | None,
    *,
    is_infeasible: bool,
    reason: str,
) -> Trial:
    """End the trial with the given final measurement, or else with the one that the specification selects
    among its own. With neither it is infeasible. It is also infeasible if the client says so; then `reported`
    is ignored (public text).

    Raises InvalidRequest, NotFound, FailedPrecondition (it was over before), Aborted.
    """
    faults = Faults()
    if reason and not is_infeasible:
        faults.add(
            "infeasible_reason", "A reason is for infeasible trials; set trial_infeasible, too."
        )
    final = None
    if reported is not None and not is_infeasible:
        final = read_measurement(study.spec, reported, faults, final=True)
    faults.refuse()

    async def change(trial: Trial) -> Trial:
        if is_infeasible:
            return changes.infeasible(trial, reason, services.now())
        if final is not None:
            return changes.completed(trial, final, services.now())
        # Read after the trial, so that a measurement that arrives in between makes the commit stale.
        own = await services.studies.measurements(study.uid, [number])
        selected = final_measurement(study.spec, own.get(number, ()))
        return changes.completed(trial, selected, services.now())

    return await _change(services, study, number, change)


async def stop(services: Services, study: Study, number: int) -> Trial:
    """Tell the trial to stop. Raises NotFound, FailedPrecondition (it is over), Aborted."""

    async def change(trial: Trial) -> Trial:
        return changes.stopped(trial)

    return await _change(services, study, number, change)


async def optimal(services: Services, study: Study) -> tuple[Trial, ...]:
    """Return the Pareto-optimal trials, ascending by number; the best trials if there is a single
    objective."""
    history = await services.studies.history((study.uid,))
    # Takes long for many trials and objectives; other requests go on meanwhile.
    return await asyncio.to_thread(optimal_trials, study.spec, history)


async def _stored(services: Services, study: Study, number: int) -> StoredTrial:
    try:
        return await services.studies.trial(study.uid, number)
    except NotFound:
        raise NotFound(
            f"{study.name.trial(number)} was not found: there is none of that number, or it was deleted."
        ) from None


async def _change(
    services: Services,
    study: Study,
    number: int,
    change: Callable[[Trial], Awaitable[Trial]],
    measurement: Measurement | None = None,
) -> Trial:
    for _ in range(_TRIES):
        stored = await _stored(services, study, number)
        changed = await change(stored.trial)
        if changed == stored.trial and measurement is None:
            return changed
        try:
            await services.studies.change_trial(changed, stored.generation, measurement)
        except StaleCommit:
            continue
        return changed
    raise Aborted(
        f"{study.name.trial(number)} was changed by others {_TRIES} times meanwhile; send the request again."
    )


async def is_full(services: Services, study: Study) -> bool:
    """Whether the study has as many trials as it may have."""
    most = services.settings.max_study_trials
    if most == 0 or not await services.studies.trials(study.uid, most - 1, 1):
        # Numbers are never reused: unless a trial has the number `most` or a higher one, the study is not
        # full.
        return False
    return len(await services.studies.history((study.uid,))) >= most


def full(services: Services, study: Study) -> FailedPrecondition:
    """Return the error for a study that has had all its trials."""
    return FailedPrecondition(
        f"{study.name} has had the {services.settings.max_study_trials} trials that a study may have; create "
        "another study."
    )


def check_active(study: Study) -> None:
    """Raise FailedPrecondition if the study takes no further trials."""
    if study.state is not StudyState.ACTIVE:
        why = f" ({study.inactive_reason})" if study.inactive_reason else ""
        raise FailedPrecondition(
            f"{study.name} is {study.state}{why} and takes no further trials; create another study."
        )


async def suggest(services: Services, study: Study, *, client: str, count: int) -> Operation:
    """Ask the controller for `count` trials for `client`, and return the operation as it is after at most
    PATIENCE. All clients without a name are one, which gets its active trials again. Raises
    InvalidRequest, FailedPrecondition (nothing can be
    handed out)."""
    if not 1 <= count <= MOST_SUGGESTIONS:
        text = f"{count} is not from 1 to {MOST_SUGGESTIONS}."
        raise InvalidRequest((Violation("suggestion_count", text),))
    operation = Operation(
        name=f"{study.name}/operations/{services.new_uid()}",
        kind=OperationKind.SUGGEST,
        target=str(study.name),
        created=services.now(),
        updated=services.now(),
        state=OperationState.RUNNING,
        study=study.uid,
        client=client,
        count=await _to_hand_out(services, study, client, count),
    )
    return await _begin(services, operation)


async def check_stopping(services: Services, study: Study, number: int) -> Operation:
    """Ask the controller whether the trial should stop; returns the operation as `suggest` does. Raises
    NotFound, FailedPrecondition (the trial is over)."""
    trial = await read_trial(services, study, number)
    if trial.state.is_over:
        raise FailedPrecondition(
            f"Trial {number} is {trial.state}: it is over, and nothing of it is left to stop."
        )
    operation = Operation(
        name=f"{study.name.trial(number)}/operations/{services.new_uid()}",
        kind=OperationKind.CHECK_STOPPING,
        target=study.name.trial(number),
        created=services.now(),
        updated=services.now(),
        state=OperationState.RUNNING,
        study=study.uid,
        trial=number,
    )
    return await _begin(services, operation)


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


async def _begin(services: Services, operation: Operation) -> Operation:
    """Store an operation, tell the controller, and wait at most PATIENCE for its end."""
    await services.studies.begin_operation(operation)
    services.suggest(operation.study)
    return await wait_for(services, operation.name, PATIENCE)


async def wait_for(services: Services, name: str, patience: float) -> Operation:
    """Return the operation when it is done, when `patience` seconds have passed, or when the service stops.
    Raises NotFound."""
    clock = asyncio.get_running_loop()
    end = clock.time() + patience
    record = await services.reader.operation(name)
    subject = JobUid(record.subject)
    closing = joined(services.closing.wait())
    try:
        while not record.state.is_final:
            # Count before looking, so that an end after this look is news beyond the count.
            seen = services.notices.count(subject)
            record = await services.reader.operation(name)
            left = end - clock.time()
            if record.state.is_final or left <= 0 or services.closing.is_set():
                break
            news = joined(services.notices.wait_beyond(subject, seen, left))
            try:
                await asyncio.wait({news, closing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
    finally:
        closing.cancel()
    return record


async def cancel_operation(services: Services, name: str) -> None:
    """Cancel an operation. One that is done stays as it is, without an error. Raises NotFound."""
    record = await services.reader.operation(name)
    cancelling = OPERATION.fire(record.state, OperationTrigger.CANCEL_ACCEPTED) or record.state
    if cancelling.is_final:
        return
    # Nothing was handed out yet, so no work has to be stopped first; what an export has copied stays.
    ended = OPERATION.fire(cancelling, OperationTrigger.STOPPED)
    assert ended is not None
    text = "The operation was cancelled."
    if record.export is not None:
        text = f"The export was cancelled; delete what it had copied to {record.export.output} by then."
    error = JobError(CANCELLED, text)
    # It may have ended at this moment, which is fine as well.
    with contextlib.suppress(StaleCommit):
        await services.studies.finish_operation(
            replace(record, state=ended, error=error, updated=services.now())
        )
    services.exports.stop(name)
    services.notices.publish(JobUid(record.subject))

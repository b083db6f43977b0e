"""Carries out the operations of studies: suggestions, and checks whether to stop a trial.

Operations of one study are carried out one after the other, so that two simultaneous clients receive
different points.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from trainshed.controller.measurements import curve_of
from trainshed.core.errors import NotFound
from trainshed.core.failure.messages import INTERNAL
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.changes import request_stop
from trainshed.core.study.records import MAX_TRIALS, Study, StudyState, StudyUid, Trial, TrialState
from trainshed.core.units import Nanos
from trainshed.eventloop.background import cancel_all, keep
from trainshed.store.notices import Notices
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.studies import Studies
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.studies.port import trial_data

log = logging.getLogger(__name__)

_NOT_FOUND = 5
_RETRY_INTERVAL = 1.0
"""Seconds before a failed operation is tried again."""
_MAX_TRIES = 5


class StudyOperations:
    """Carries out the operations of studies. Each study has a task of its own."""

    def __init__(
        self, studies: Studies, advisor: ProcessAdvisor, notices: Notices, now: Callable[[], int]
    ) -> None:
        self._studies = studies
        self._advisor = advisor
        self._notices = notices
        self._now = now
        self._busy: dict[StudyUid, asyncio.Task[None]] = {}
        self._again: set[StudyUid] = set()
        self._closing = False

    async def start(self) -> None:
        """Continue with unfinished operations of an earlier service."""
        for operation in await self._studies.running_operations():
            if operation.study:
                self.wake(operation.study)

    def wake(self, study: StudyUid) -> None:
        """Carry out the waiting operations of a study."""
        if self._closing:
            return
        if study in self._busy:
            self._again.add(study)
        else:
            self._busy[study] = keep(partial(self._drain, study), f"study {study}: its operations")

    async def close(self) -> None:
        """Stop. Unfinished operations stay stored."""
        self._closing = True
        await cancel_all(self._busy.values())

    async def _drain(self, uid: StudyUid) -> None:
        self._again.add(uid)
        while uid in self._again:
            self._again.discard(uid)
            for operation in await self._studies.running_operations(uid):
                await self._until_done(operation)
        del self._busy[uid]

    async def _until_done(self, operation: Operation) -> None:
        failure: Exception | None = None
        for _ in range(_MAX_TRIES):
            try:
                await self._carry_out(operation)
            except StaleCommit:
                # A client changed a trial in the meantime. Try again, unless the client cancelled the
                # operation or deleted the study.
                if operation not in await self._studies.running_operations(operation.study):
                    return
            except Exception as caught:
                log.warning("%s failed: %s; retrying in a second", operation.name, caught)
                failure = caught
                await asyncio.sleep(_RETRY_INTERVAL)
            else:
                return
        text = f"The operation failed {_MAX_TRIES} times: {failure or 'its trials changed each time'}."
        with contextlib.suppress(StaleCommit):  # The operation was already finished or deleted.
            await self._finish(_fail(operation, INTERNAL, text, self._now()))

    async def _carry_out(self, operation: Operation) -> None:
        try:
            study = await self._studies.study_by_uid(operation.study)
            if operation.kind is OperationKind.SUGGEST:
                await self._suggest(study, operation)
            else:
                await self._check(study, operation)
        except NotFound as missing:
            await self._finish(_fail(operation, _NOT_FOUND, str(missing), self._now()))

    async def _suggest(self, study: Study, operation: Operation) -> None:
        """Assign first the client's own active trials, then requested trials without a client, then new
        points."""
        history = await self._studies.history((study.uid,))
        own = [
            trial
            for trial in history
            if trial.state is TrialState.ACTIVE and trial.client == operation.client
        ][: operation.count]
        waiting = [trial for trial in history if trial.state is TrialState.REQUESTED]
        handed_out = [trial.number for trial in waiting[: operation.count - len(own)]]
        new = await self._new(study, operation, history, operation.count - len(own) - len(handed_out))
        done = replace(
            operation,
            state=OperationState.SUCCEEDED,
            updated=self._now(),
            trials=tuple(trial.number for trial in own),
        )
        await self._finish(done, handed_out, new)

    async def _new(
        self, study: Study, operation: Operation, history: tuple[Trial, ...], count: int
    ) -> list[Trial]:
        count = min(count, MAX_TRIALS - len(history))
        if count <= 0:
            return []
        shown = [trial_data(trial) for trial in history]
        suggestions = await self._advisor.suggest(study.spec, shown, count, study.uid)
        is_over = suggestions.exhausted and not suggestions.parameters
        if is_over and study.state is StudyState.ACTIVE:
            reason = "every point of the search space was tried"
            completed = replace(study, state=StudyState.COMPLETED, inactive_reason=reason)
            await self._studies.change(study.name, lambda _: completed)
        now = self._now()
        return [
            Trial(
                study=study.uid,
                number=0,
                state=TrialState.ACTIVE,
                parameters=parameters,
                created=now,
                started=now,
                client=operation.client,
            )
            for parameters in suggestions.parameters[:count]
        ]

    async def _check(self, study: Study, operation: Operation) -> None:
        checked = await self._studies.trial(study.uid, operation.trial)
        stop = checked.state is TrialState.STOPPING or (
            not checked.state.is_over and await self._should_stop(study, checked)
        )
        if stop:
            # The trial is changed before the operation is done, so that the client finds the state STOPPING.
            trial = await self._studies.change_trial(
                study.uid,
                operation.trial,
                lambda trial, _: trial if trial.state.is_over else request_stop(trial),
            )
            stop = not trial.state.is_over
        done = replace(operation, state=OperationState.SUCCEEDED, updated=self._now(), should_stop=stop)
        await self._finish(done)

    async def _should_stop(self, study: Study, checked: Trial) -> bool:
        trials = {trial.number: trial for trial in await self._studies.history((study.uid,))}
        measured = await self._studies.measurements(study.uid)
        curves = [
            curve_of(trials[number], points)
            for number, points in measured.items()
            if number in trials and trials[number].state is not TrialState.INFEASIBLE
        ]
        if all(curve.number != checked.number for curve in curves):
            return False  # Without a curve, the trial continues.
        (verdict,) = await self._advisor.should_stop(study.spec, curves, (checked.number,))
        return verdict.should_stop

    async def _finish(
        self, operation: Operation, assigned: Sequence[int] = (), suggested: Sequence[Trial] = ()
    ) -> None:
        await self._studies.finish_operation(operation, assigned=assigned, suggested=suggested)
        self._notices.publish(operation.subject)


def _fail(operation: Operation, code: int, message: str, now: Nanos) -> Operation:
    return replace(operation, state=OperationState.FAILED, updated=now, error=JobError(code, message))

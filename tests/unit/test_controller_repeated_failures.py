"""The controller fails a tuning job or a pipeline whose steps fail repeatedly, as it fails a job whose events
cannot be applied."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.sim.parents import parent_stores
from tests.sim.tuning_jobs import tuning
from tests.unit.jobs import CREATED
from tests.unit.test_controller_tuning import TuningHouse
from trainshed.controller import parents
from trainshed.controller.parents import Parents
from trainshed.core.errors import Unavailable
from trainshed.core.failure.messages import INTERNAL
from trainshed.core.lifecycle.events import CancelCause, CancelRequested, Event
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import TrialState
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.port import LiveJob
from trainshed.store.sqlite.database import Store
from trainshed.store.steps import Next


class Broken:
    """A step that always fails with the given exception."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def __call__(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        raise self.failure


class FailingSteps:
    """Failing steps of one tuning job or pipeline in a store."""

    def __init__(self, store: Store, uid: JobUid, failure: Exception) -> None:
        self._store, self._uid = store, uid
        self._epoch = asyncio.run(store.ledger.acquire("test"))
        broken = Broken(failure)
        self.woken: list[JobUid] = []
        self._parents = Parents(
            parent_stores(store, lambda: CREATED),
            {TuningJob: broken, Pipeline: broken},
            commit=lambda commit: store.ledger.commit(self._epoch, commit),
            wake=self.woken.append,
            set_alarm=lambda uid, deadlines: None,
        )

    def run_step(self) -> None:
        async def once() -> None:
            live = await self._store.ledger.load(self._uid)
            assert live is not None
            await self._parents.apply(live, ())

        asyncio.run(once())

    def work(self, uid: JobUid | None = None) -> Work:
        return asyncio.run(self._store.reader.job_by_uid(uid or self._uid))[0]

    def cancels(self, uid: JobUid) -> list[CancelCause]:
        live = asyncio.run(self._store.ledger.load(uid))
        assert live is not None
        wishes = [intent.event for intent in live.intents]
        return [wish.cause for wish in wishes if isinstance(wish, CancelRequested)]


def test_tuning_job_whose_steps_fail_repeatedly_fails_with_the_cause() -> None:
    house = TuningHouse(tuning(trials=4, parallel=2))
    house.run_step()
    children = [house.trial(number).job for number in (1, 2)]
    steps = FailingSteps(house.store, house.uid, ValueError("the record makes no sense"))
    for _ in range(parents.MAX_FAILURES - 1):
        with pytest.raises(ValueError, match="makes no sense"):
            steps.run_step()
        assert not steps.work().state.is_final
    steps.run_step()
    job = steps.work()
    assert isinstance(job, TuningJob) and job.state is JobState.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.reason) == (INTERNAL, "the record makes no sense")
    assert not job.running
    for number, child in enumerate(children, start=1):
        assert house.trial(number).state is TrialState.INFEASIBLE
        assert steps.cancels(child) == [CancelCause.PARENT]
        assert child in steps.woken


@pytest.mark.parametrize(
    "failure", [OSError("no space left"), Unavailable("the disk is full")], ids=lambda f: type(f).__name__
)
def test_temporary_machine_failure_does_not_end_a_tuning_job(failure: Exception) -> None:
    house = TuningHouse(tuning(trials=4, parallel=2))
    steps = FailingSteps(house.store, house.uid, failure)
    for _ in range(3 * parents.MAX_FAILURES):
        with pytest.raises(type(failure)):
            steps.run_step()
    assert not steps.work().state.is_final

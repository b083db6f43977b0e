"""A tuning job or a pipeline whose looks fail each time is given up, like a job whose events cannot be
applied."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.sim.parents import parent_stores
from tests.sim.tuning_jobs import tuning
from tests.unit.jobs import CREATED
from tests.unit.test_controller_tuning import House
from trainshed.controller import parents
from trainshed.controller.parents import Next, Parents
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


class Broken:
    """Looks that fail, for a reason of their own or of the machine's."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def __call__(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        raise self.failure


class Looks:
    """Looks at one work of a store that fail."""

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

    def look(self) -> None:
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


def test_a_tuning_job_whose_looks_fail_each_time_ends_with_the_cause() -> None:
    house = House(tuning(trials=4, parallel=2))
    house.look()
    children = [house.trial(number).job for number in (1, 2)]
    looks = Looks(house.store, house.uid, ValueError("the record makes no sense"))
    for _ in range(parents.MAX_FAILURES - 1):
        with pytest.raises(ValueError, match="makes no sense"):
            looks.look()
        assert not looks.work().state.is_final
    looks.look()
    job = looks.work()
    assert isinstance(job, TuningJob) and job.state is JobState.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.reason) == (INTERNAL, "the record makes no sense")
    assert not job.running
    for number, child in enumerate(children, start=1):
        assert house.trial(number).state is TrialState.INFEASIBLE
        assert looks.cancels(child) == [CancelCause.PARENT]
        assert child in looks.woken


@pytest.mark.parametrize(
    "failure",
    [OSError("no space left"), Unavailable("the disk is full")],
    ids=lambda f: type(f).__name__,
)
def test_what_the_machine_lacks_for_a_while_ends_nothing(failure: Exception) -> None:
    house = House(tuning(trials=4, parallel=2))
    looks = Looks(house.store, house.uid, failure)
    for _ in range(3 * parents.MAX_FAILURES):
        with pytest.raises(type(failure)):
            looks.look()
    assert not looks.work().state.is_final

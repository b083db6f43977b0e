"""What the controller does for operations whose clients change their minds (spec/tuning#studies)."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from tests.inline_store import open_inline
from tests.sim.parents import CountingAdvisor
from tests.sim.tuning_jobs import study
from tests.unit.jobs import CREATED
from trainshed.controller.study_operations import StudyOperations
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.spec import StudySpec
from trainshed.store.notices import Notices
from trainshed.store.records import Operation, OperationKind
from trainshed.studies.port import Proposals, Seen


def test_a_cancelled_operation_is_not_computed_again() -> None:
    """It was cancelled while its suggestions were computed: nothing is handed out, and nobody computes for
    nothing."""
    store, subject = open_inline(), study()
    operation = Operation(
        name=f"{subject.name}/operations/1",
        kind=OperationKind.SUGGEST,
        target=str(subject.name),
        created=CREATED,
        updated=CREATED,
        state=OperationState.RUNNING,
        study=subject.uid,
        client="c",
        count=1,
    )

    class Cancelling(CountingAdvisor):
        calls = 0

        async def suggest(
            self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int
        ) -> Proposals:
            self.calls += 1
            if self.calls == 1:
                cancelled = replace(operation, state=OperationState.CANCELLED)
                await store.studies.finish_operation(cancelled)
            return await super().suggest(spec, trials, count, seed)

    async def play(advisor: Cancelling) -> None:
        await store.studies.create_study(subject)
        await store.studies.begin_operation(operation)
        notices = Notices()
        suggesting = StudyOperations(store.studies, advisor, notices, lambda: CREATED, 0)
        suggesting.wake(subject.uid)
        async with asyncio.timeout(60):
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    advisor = Cancelling()
    asyncio.run(play(advisor))
    assert advisor.calls == 1
    assert asyncio.run(store.reader.operation(operation.name)).state is OperationState.CANCELLED
    assert asyncio.run(store.studies.history((subject.uid,))) == ()

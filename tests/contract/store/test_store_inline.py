"""What holds for the store of simulations beyond the contract: hooks at each commit."""

import pytest
from msgspec.structs import replace

from tests.contract.store.study_samples import (
    child,
    make_trial,
    make_tuning,
    make_version,
    measured,
)
from tests.inline_store import open_inline
from trainshed.core.errors import NotFound
from trainshed.store.port import Commit, NewWork, StaleCommit


class Crash(BaseException):
    """The process is gone."""


def crash(what: str) -> None:
    raise Crash(what)


async def test_a_step_with_its_trials_jobs_and_model_is_one() -> None:
    """spec/invariants#durability: a crash before the commit leaves nothing of a step, one after it all of
    it."""
    store = open_inline()
    tuning, model = make_tuning(1), make_version("m", 1, "default")
    await store.intake.create_job(tuning, [])
    epoch = await store.ledger.acquire("a")
    commit = Commit(
        replace(tuning, next_trial=2),
        1,
        trials=(make_trial(1, 1),),
        measurements=((1, measured(1, 0.5)),),
        made=(NewWork(child(tuning, 2, 1)),),
        model=model,
    )

    async def stored() -> list[int]:
        try:
            models = 1 if await store.models.version(model.name, "") else 0
        except NotFound:
            models = 0
        return [
            len(await store.studies.history([tuning.study])),
            len(await store.studies.measurements(tuning.study)),
            len(await store.reader.children(tuning.uid)),
            models,
        ]

    store.before_commit = crash
    with pytest.raises(Crash, match="commit"):
        await store.ledger.commit(epoch, commit)
    assert await stored() == [0, 0, 0, 0]
    store.before_commit, store.after_commit = None, crash
    with pytest.raises(Crash, match="commit"):
        await store.ledger.commit(epoch, commit)
    store.after_commit = None
    assert await stored() == [1, 1, 1, 1]
    with pytest.raises(StaleCommit):
        await store.ledger.commit(epoch, commit)

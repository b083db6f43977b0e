"""Links to the shells of trials that run, in both APIs (facts/resources: `webAccessUris` of trials)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api import test_tuning_jobs
from tests.contract.api.house import START
from tests.contract.api.shelling import ADDRESS, Shelled
from tests.unit.specs_requests import custom_job
from trainshed.core.names import JobUid
from trainshed.core.study.records import Trial, TrialState
from trainshed.core.tuning.records import RunningTrial, TuningJob

HOUSE = Shelled
RUNNING = (RunningTrial(1, JobUid(71)), RunningTrial(2, JobUid(72)))


async def trying(house: Shelled, name: str) -> None:
    """Trial 1 runs, trial 2 has not begun."""
    work, _ = await house.store.reader.find(name.rpartition("/")[2])
    assert isinstance(work, TuningJob)

    def trial(number: int) -> Trial:
        job = JobUid(70 + number)
        return Trial(work.study, number, TrialState.ACTIVE, (), START, job=job)

    trials = (replace(trial(1), started=START), trial(2))
    await house.become(name, {"trials": trials}, running=RUNNING, next_trial=3)


def links(trials: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [trial.get("webAccessUris", {}) for trial in trials]


@pytest.mark.parametrize("asked_for", [True, False])
async def test_of_a_tuning_job(house: Shelled, asked_for: bool) -> None:
    spec = custom_job(enableWebAccess=asked_for)["jobSpec"]
    name = await test_tuning_jobs.created(
        house, trialJobSpec=test_tuning_jobs.tuning_job()["trialJobSpec"] | _bare(spec)
    )
    await trying(house, name)
    first, second = links((await house.result("GET", f"/v1/{name}"))["trials"])
    assert second == {}
    assert list(first) == (["workerpool0-0"] if asked_for else [])
    if asked_for:
        assert first["workerpool0-0"].startswith(f"{ADDRESS}/shell/#job=71&")


def _bare(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key == "enableWebAccess"}

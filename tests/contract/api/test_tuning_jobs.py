"""`aiplatform` v1 tuning jobs over REST against a real store; the test acts as the controller
(spec/tuning, facts/resources#tuning-jobs)."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.violations import violations
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState

JOBS = f"{LOCATION}/hyperparameterTuningJobs"
PARAMETERS = (("x", 0.25), ("n", 3), ("opt", "a"))


async def create_tuning_job(service: ApiService, **changes: Any) -> str:
    return (await service.result("POST", JOBS, tuning_job(**changes)))["name"]


async def store_trials(service: ApiService, name: str) -> None:
    """Store three trials: 1 succeeded with two measurements, 2 had no result, 3 is running."""
    study = StudyUid(int(name.rpartition("/")[2]))

    def trial(number: int, state: TrialState, **more: Any) -> Trial:
        job = JobUid(70 + number)
        return Trial(study, number, state, PARAMETERS, START, job=job, **more)

    last = Measurement((("loss", 0.5),), 20, 3 * SECOND // 2)
    times = {"started": START + SECOND, "ended": START + 3 * SECOND}
    trials = (
        trial(1, TrialState.SUCCEEDED, final=last, **times),
        trial(2, TrialState.INFEASIBLE, infeasible_reason="no metric"),
        trial(3, TrialState.ACTIVE),
    )
    measurements = ((1, last), (1, Measurement((("loss", 0.75),), 10, SECOND)))
    commit = {"trials": trials, "measurements": measurements}
    await service.update_job(name, commit, state=JobState.RUNNING, next_trial=4)


async def test_trials_are_shown_in_order_with_their_measurements(service: ApiService) -> None:
    """facts/resources#trials: each trial has its parameters, its ordered measurements, its final
    measurement and its custom job."""
    name = await create_tuning_job(service)
    await store_trials(service, name)
    first, second, third = (await service.result("GET", f"/v1/{name}"))["trials"]
    metrics = [{"metricId": "loss", "value": 0.5}]
    measured = {"stepCount": "20", "elapsedDuration": "1.500s", "metrics": metrics}
    assert first == {
        "name": "projects/p1/locations/us-central1/studies/1000/trials/1",
        "id": "1",
        "state": "SUCCEEDED",
        "parameters": [
            {"parameterId": "n", "value": 3},
            {"parameterId": "opt", "value": "a"},
            {"parameterId": "x", "value": 0.25},
        ],
        "finalMeasurement": measured,
        "measurements": [
            {"stepCount": "10", "elapsedDuration": "1s", "metrics": [{"metricId": "loss", "value": 0.75}]},
            measured,
        ],
        "startTime": "2025-10-09T08:53:21Z",
        "endTime": "2025-10-09T08:53:23Z",
        "customJob": "projects/p1/locations/us-central1/customJobs/71",
    }
    assert (second["id"], second["state"]) == ("2", "INFEASIBLE")
    assert second["infeasibleReason"] == "no metric"
    assert "finalMeasurement" not in second
    assert (third["id"], third["state"]) == ("3", "ACTIVE")
    assert "startTime" not in third


@pytest.mark.parametrize("text", ["stall-after=soon", "ports=a-6006_", "ports=a-65536", "ports=a-1_a-2"])
async def test_invalid_trainshed_label_is_rejected(service: ApiService, text: str) -> None:
    label, _, value = text.partition("=")
    answer = await service.call("POST", JOBS, tuning_job(labels={f"trainshed-{label}": value}))
    assert list(violations(answer)) == [f"labels.trainshed-{label}"]

"""`aiplatform` v1 tuning jobs over REST against a real store; the test plays the controller (spec/tuning,
facts/resources#tuning-jobs)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, SECOND, START, House
from tests.contract.api.refusals import violations
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState

JOBS = f"{LOCATION}/hyperparameterTuningJobs"
PARAMETERS = (("x", 0.25), ("n", 3), ("opt", "a"))


async def created(house: House, **changes: Any) -> str:
    return (await house.result("POST", JOBS, tuning_job(**changes)))["name"]


async def ended(house: House, name: str, state: JobState = JobState.SUCCEEDED) -> None:
    await house.become(name, state=state, started=START, ended=START + SECOND)


async def tried(house: House, name: str) -> None:
    """Trial 1 succeeded with two measurements, trial 2 had no result, trial 3 runs."""
    study = StudyUid(int(name.rpartition("/")[2]))

    def trial(number: int, state: TrialState, **more: Any) -> Trial:
        job = JobUid(70 + number)
        return Trial(study, number, state, PARAMETERS, START, job=job, **more)

    last = Measurement((("loss", 0.5),), 20, 3 * SECOND // 2)
    await house.become(
        name,
        {
            "trials": (
                trial(
                    1,
                    TrialState.SUCCEEDED,
                    started=START + SECOND,
                    ended=START + 3 * SECOND,
                    final=last,
                ),
                trial(2, TrialState.INFEASIBLE, infeasible_reason="no metric"),
                trial(3, TrialState.ACTIVE),
            ),
            "measurements": ((1, last), (1, Measurement((("loss", 0.75),), 10, SECOND))),
        },
        state=JobState.RUNNING,
        next_trial=4,
    )


async def test_create_answers_the_resource_and_get_answers_the_same(house: House) -> None:
    body = tuning_job(labels={"team": "a"}, maxFailedTrialCount=2)
    answer = await house.call("POST", JOBS, body)
    view = answer.json
    assert answer.status == 200, answer.body
    assert view["name"] == "projects/p1/locations/us-central1/hyperparameterTuningJobs/1000"
    assert view["state"] == "JOB_STATE_QUEUED"
    assert view["createTime"] == view["updateTime"] == "2025-10-09T08:53:20Z"
    assert {key: view[key] for key in body} == body
    assert "trials" not in view
    assert await house.result("GET", f"/v1/{view['name']}") == view
    assert house.woken == [1000]


async def test_trials_are_shown_in_the_order_of_their_numbers(house: House) -> None:
    """facts/resources#trials: each with its parameters, its measurements in their order, its final one, and
    its custom job."""
    name = await created(house)
    await tried(house, name)
    first, second, third = (await house.result("GET", f"/v1/{name}"))["trials"]
    metrics = [{"metricId": "loss", "value": 0.5}]
    measured = {"stepCount": "20", "elapsedDuration": "1.500s", "metrics": metrics}
    assert first == {
        "name": "projects/p1/locations/us-central1/studies/1000/trials/1",
        "id": "1",
        "state": "SUCCEEDED",
        "parameters": [
            {"parameterId": "x", "value": 0.25},
            {"parameterId": "n", "value": 3},
            {"parameterId": "opt", "value": "a"},
        ],
        "finalMeasurement": measured,
        "measurements": [
            {
                "stepCount": "10",
                "elapsedDuration": "1s",
                "metrics": [{"metricId": "loss", "value": 0.75}],
            },
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


async def test_lists_filter_and_page(house: House) -> None:
    names = [await created(house, displayName=f"job-{n}") for n in range(3)]
    other = await house.result("POST", f"{LOCATION}/customJobs", custom_job())
    await ended(house, names[0])
    page = await house.result("GET", f"{JOBS}?pageSize=2")
    assert [job["name"] for job in page["hyperparameterTuningJobs"]] == names[:0:-1]
    rest = await house.result("GET", f"{JOBS}?pageSize=2&pageToken={page['nextPageToken']}")
    assert [job["name"] for job in rest["hyperparameterTuningJobs"]] == names[:1]
    assert "nextPageToken" not in rest
    answer = await house.result("GET", f'{JOBS}?filter=state="JOB_STATE_SUCCEEDED"')
    assert [job["name"] for job in answer["hyperparameterTuningJobs"]] == names[:1]
    customs = (await house.result("GET", f"{LOCATION}/customJobs"))["customJobs"]
    assert [job["name"] for job in customs] == [other["name"]]


@pytest.mark.parametrize(
    "text",
    ["stall-after=soon", "reduction-tls=yes", "ports=a-6006_", "ports=a-65536", "ports=a-1_a-2"],
)
async def test_a_label_that_would_not_work_is_refused(house: House, text: str) -> None:
    label, _, value = text.partition("=")
    answer = await house.call("POST", JOBS, tuning_job(labels={f"trainshed-{label}": value}))
    assert list(violations(answer)) == [f"labels.trainshed-{label}"]

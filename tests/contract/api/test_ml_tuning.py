"""`ml` v1 jobs with hyperparameters over REST against a real store; the test acts as the controller
(spec/tuning#parameters, facts/resources#ml, facts/tuning#ml)."""

from typing import Any

from tests.contract.api.api_service import SECOND, START, ApiService
from tests.contract.api.violations import fields
from tests.unit.specs_requests import ml_job
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, JobUid
from trainshed.core.study.records import Measurement, Trial, TrialState
from trainshed.core.tuning.records import TuningJob
from trainshed.core.tuning.trial_jobs import trial_spec
from trainshed.store.port import NewWork

JOBS = "/v1/projects/p1/jobs"
HYPERPARAMETERS: dict[str, Any] = {
    "goal": "MINIMIZE",
    "hyperparameterMetricTag": "loss",
    "maxTrials": 10,
    "maxParallelTrials": 2,
    "params": [{"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}],
}


async def create_job(service: ApiService, job_id: str = "census", **changes: Any) -> dict[str, Any]:
    answer = await request_job(service, job_id, **changes)
    assert answer.status == 200, answer.body
    return answer.json


async def request_job(service: ApiService, job_id: str = "census", **changes: Any) -> Any:
    body = ml_job(job_id=job_id, hyperparameters=HYPERPARAMETERS | changes)
    return await service.call("POST", JOBS, body)


async def record(service: ApiService, job_id: str = "census") -> TuningJob:
    work, _ = await service.store.reader.job(JobName.parse(f"projects/p1/jobs/{job_id}"))
    assert isinstance(work, TuningJob)
    return work


async def finish(service: ApiService, job_id: str = "census", **changes: Any) -> None:
    ended = {"state": JobState.SUCCEEDED, "started": START, "ended": START + SECOND}
    await service.update_job(f"projects/p1/jobs/{job_id}", **ended, **changes)


def trial_job(job: TuningJob, number: int, state: JobState, minutes: int) -> Job:
    parameters = (("rate", number / 10),)
    ended = START + minutes * 60 * SECOND
    return Job(
        uid=JobUid(job.uid + number),
        name=job.name.of_trial(number),
        display_name=f"census-trial-{number}",
        spec=trial_spec(job.spec.trial, number, parameters),
        public_json="{}",
        created=START,
        updated=ended,
        state=state,
        started=START,
        ended=ended if state.is_final else 0,
        parent=Parent(job.uid, job.name, number),
    )


def trial(job: TuningJob, number: int, state: TrialState, value: float | None) -> Trial:
    final = Measurement((("loss", value),), 10 * number) if value is not None else None
    return Trial(
        study=job.study,
        number=number,
        state=state,
        parameters=(("rate", number / 10), ("units", 64), ("opt", "adam")),
        created=START,
        started=START + SECOND,
        ended=START + 2 * SECOND if state.is_over else 0,
        final=final,
        job=JobUid(job.uid + number),
        stopped_early=number == 3,
    )


async def store_trials(service: ApiService) -> TuningJob:
    """Store trials: 1 to 3 measured 0.75, 0.25 and 0.5; 4 failed, 5 was cancelled, 6 is running."""
    job = await record(service)
    ended = {
        1: (JobState.SUCCEEDED, TrialState.SUCCEEDED, 0.75),
        2: (JobState.SUCCEEDED, TrialState.SUCCEEDED, 0.25),
        3: (JobState.CANCELLED, TrialState.SUCCEEDED, 0.5),
        4: (JobState.FAILED, TrialState.INFEASIBLE, None),
        5: (JobState.CANCELLED, TrialState.INFEASIBLE, None),
        6: (JobState.PREPARING, TrialState.ACTIVE, None),
    }
    await service.update_job(
        str(job.name),
        {
            "trials": tuple(trial(job, n, state, value) for n, (_, state, value) in ended.items()),
            "made": tuple(NewWork(trial_job(job, n, state, 60)) for n, (state, _, _) in ended.items()),
        },
        state=JobState.RUNNING,
        next_trial=7,
        succeeded=3,
    )
    return job


async def test_ml_job_with_hyperparameters_is_a_tuning_job(service: ApiService) -> None:
    view = await create_job(service)
    assert (view["jobId"], view["state"]) == ("census", "QUEUED")
    assert view["trainingOutput"] == {"isHyperparameterTuningJob": True, "hyperparameterMetricTag": "loss"}
    assert view["trainingInput"]["hyperparameters"]["maxTrials"] == 10
    assert await service.result("GET", f"{JOBS}/census") == view
    assert (await record(service)).spec.parallel_trials == 2
    again = await request_job(service)
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")


async def test_best_trials_are_listed_first_and_trials_without_result_last(service: ApiService) -> None:
    """facts/resources#ml: scripts treat the first trial as the best. Parameter values are strings."""
    await create_job(service)
    await store_trials(service)
    output = (await service.result("GET", f"{JOBS}/census"))["trainingOutput"]
    assert output["completedTrialCount"] == "3"
    assert [trial["trialId"] for trial in output["trials"]] == ["2", "3", "1", "4", "5", "6"]
    assert output["trials"][0] == {
        "trialId": "2",
        "hyperparameters": {"rate": "0.2", "units": "64", "opt": "adam"},
        "finalMetric": {"trainingStep": "20", "objectiveValue": 0.25},
        "state": "SUCCEEDED",
        "startTime": "2025-10-09T08:53:21Z",
        "endTime": "2025-10-09T08:53:22Z",
    }
    expected = ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED", "CANCELLED", "PREPARING"]
    assert [trial["state"] for trial in output["trials"]] == expected
    assert [trial["trialId"] for trial in output["trials"] if trial.get("isTrialStoppedEarly")] == ["3"]
    assert "finalMetric" not in output["trials"][3]


async def test_finished_tuning_job_reports_the_ml_units_that_its_trials_consumed(service: ApiService) -> None:
    """facts/machines#ml-units: a trial of one second costs ten node-minutes, in lists too."""
    await create_job(service)
    await store_trials(service)
    await finish(service, next_trial=7)
    view = await service.result("GET", f"{JOBS}/census")
    # Trial 6 started at the moment at which the search ended.
    assert view["trainingOutput"]["consumedMLUnits"] == 0.3
    assert (await service.result("GET", JOBS))["jobs"][0]["trainingOutput"]["consumedMLUnits"]


async def test_trial_jobs_can_be_read_and_cancelled_but_are_not_listed(service: ApiService) -> None:
    await create_job(service)
    await store_trials(service)
    listed = (await service.result("GET", JOBS))["jobs"]
    assert [job["jobId"] for job in listed] == ["census"]
    assert len(listed[0]["trainingOutput"]["trials"]) == 6
    assert (await service.result("GET", f"{JOBS}/census.6"))["state"] == "PREPARING"
    assert await service.result("POST", f"{JOBS}/census.6:cancel") == {}
    assert service.woken[-1] == (await record(service)).uid + 6


async def test_tuning_job_resumes_an_earlier_tuning_job(service: ApiService) -> None:
    """facts/tuning#ml, spec/tuning#resuming: resumePreviousJobId."""
    await create_job(service)
    await finish(service, next_trial=11)
    await create_job(service, "more", resumePreviousJobId="census")
    first, more = await record(service), await record(service, "more")
    assert more.spec.resumed == (first.study,)
    assert (more.spec.first_trial, more.next_trial) == (11, 11)
    await finish(service, "more", next_trial=21)
    await create_job(service, "most", resumePreviousJobId="more")
    assert (await record(service, "most")).spec.resumed == (first.study, more.study)
    # Omitted fields of the search keep the values of the earlier job: existing programs set only its ID.
    search = {"resumePreviousJobId": "census"}
    rest = ml_job(job_id="rest", hyperparameters=search, args=["x" * 1000] * 20)
    await service.result("POST", JOBS, rest)
    assert (await record(service, "rest")).spec.study == first.spec.study


async def test_resume_from_an_unsuitable_job_is_rejected(service: ApiService) -> None:
    """facts/tuning#ml; reported together with all other wrong fields (spec/submit#refusals)."""
    field = "hyperparameters.resume_previous_job_id"
    assert (await service.call("POST", JOBS, ml_job(job_id="plain"))).status == 200
    await create_job(service)
    for previous in ("none", "plain", "census"):
        answer = await request_job(service, "more", resumePreviousJobId=previous, maxParallelTrials=11)
        assert fields(answer) == {field, "hyperparameters.max_parallel_trials"}
    await finish(service)
    other = [{"parameterName": "rate", "type": "DOUBLE", "minValue": 0.2, "maxValue": 1}]
    for changes in ({"params": other}, {"goal": "MAXIMIZE"}, {"hyperparameterMetricTag": "x"}):
        answer = await request_job(service, "more", resumePreviousJobId="census", **changes)
        assert fields(answer) == {field}
    assert (await request_job(service, "more", resumePreviousJobId="census")).status == 200

"""Tuning jobs and pipelines in Trainshed's own API, over a real store and real log files; the test
acts as the controller (spec/tuning, spec/operations)."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.fake_advisor import SPEC
from tests.people import add_user
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_ml_tuning import tuned_job
from tests.unit.test_specs_pipeline import TUNING, inputs, pipeline, tuning_inputs
from tests.unit.test_specs_tuning import tuning_job
from trainshed.core.capacity import Waiting, WaitReason
from trainshed.core.job import JobError
from trainshed.core.lifecycle.records import Outcome
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial, TrialState
from trainshed.core.tuning import trial_jobs
from trainshed.core.tuning.machine import Transition
from trainshed.core.tuning.records import TuningJob
from trainshed.store.port import NewWork

OURS = "/trainshed/v1/jobs"


async def create_tuning_job(service: ApiService, **changes: Any) -> str:
    """Create a tuning job and return its name. Its uid is 1000 in a new service."""
    return (await service.result("POST", f"{LOCATION}/hyperparameterTuningJobs", tuning_job(**changes)))[
        "name"
    ]


async def start_trials(service: ApiService, name: str, *uids: int) -> list[str]:
    """Start one trial for each job uid, and return the names of the jobs."""
    work, _ = await service.store.reader.job(JobName.parse(name))
    assert isinstance(work, TuningJob)
    transition = Transition(work, service.clock)
    proposals = [((("x", uid / 1000), ("n", 3)), JobUid(uid)) for uid in uids]
    made = trial_jobs.start_trials(transition, proposals, exhausted=False)
    stepped = transition.step().job
    works = tuple(NewWork(work, (entry,)) for work, entry in made)
    await service.update_job(
        name,
        {"trials": tuple(transition.trials.values()), "made": works},
        next_trial=stepped.next_trial,
        running=stepped.running,
    )
    return [str(work.name) for work, _ in made]


async def store_measurements(
    service: ApiService, name: str, trial: Trial, *points: Measurement, over: bool = False
) -> None:
    """Store measurements of a trial. If `over`, the last one is its final measurement."""

    commit: dict[str, Any] = {"trials": (trial,)}
    commit["measurements"] = tuple((trial.number, point) for point in points)
    changes: dict[str, Any] = {"updated": service.clock}
    if over:
        commit["trials"] = (
            replace(trial, state=TrialState.SUCCEEDED, final=points[-1], started=START, ended=service.clock),
        )
        work, _ = await service.store.reader.job(JobName.parse(name))
        assert isinstance(work, TuningJob)
        changes |= {
            "running": tuple(running for running in work.running if running.number != trial.number),
            "succeeded": work.succeeded + 1,
            "best": trial.number,
            "best_value": points[-1].metrics[0][1],
        }
    await service.update_job(name, commit, **changes)


async def trial_of(service: ApiService, uid: int, number: int) -> Trial:
    return await service.store.studies.trial(StudyUid(uid), number)


def loss(step: int, value: float) -> Measurement:
    return Measurement((("loss", value),), step, step * SECOND)


async def list_jobs(service: ApiService, query: str) -> list[dict[str, Any]]:
    return (await service.result("GET", f"{OURS}?{query}"))["jobs"]


async def test_outlook_is_returned_only_for_a_tuning_job_whose_trials_the_caller_can_read(
    service: ApiService,
) -> None:
    await start_trials(service, await create_tuning_job(service), 71)
    path = f"{OURS}/1000/outlook?parameter=x"
    assert "measured 0 so far" in (await service.result("GET", path))["reason"]
    refused = await service.call("GET", f"{OURS}/71/outlook?parameter=x")
    assert "not a tuning job" in refused.error["message"]
    study = await service.result("POST", f"{LOCATION}/studies", {"displayName": "s", "studySpec": SPEC})
    path = f"{OURS}/{quote(study['name'], safe='')}/outlook?parameter=rate"
    assert "measured 0 so far" in (await service.result("GET", path))["reason"]
    for project, status in (("p1", 200), ("p2", 403)):
        token = add_user(service.tokens, f"g@{project}.example", project=project)
        assert (await service.call("GET", path, token=token)).status == status


async def test_metric_filter_uses_the_best_trial_of_a_tuning_job_or_the_job_of_a_pipeline(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.api.trainshed_v1.jobs._METRIC_TIME_LIMIT", 60.0)
    name = await create_tuning_job(service)
    await start_trials(service, name, 71)
    await store_measurements(service, name, await trial_of(service, 1000, 1), loss(3, 0.25), over=True)
    body = pipeline(trainingTaskInputs=inputs())
    piped = await service.result("POST", f"{LOCATION}/trainingPipelines", body)
    uid = str(int(piped["name"].rpartition("/")[2]) + 1)
    await service.run(f"{LOCATION}/customJobs/{uid}".removeprefix("/v1/"))
    service.write_log(int(uid), "workerpool0-0", (START, "epoch 1/3 loss: 0.5 - val_accuracy: 0.75"))

    async def list_trends(bound: str) -> list[tuple[str, str, list[float]]]:
        jobs = await list_jobs(service, f"project=p1&trend=true&metric={quote(bound)}")
        return [(job["kind"], job["trend"]["measure"], job["trend"]["values"]) for job in jobs]

    best = ("tuning", "loss", [0.25])
    assert await list_trends("loss<1") == [("pipeline", "loss", [0.5]), best]
    assert await list_trends("loss<0.3") == [best]
    assert await list_trends("val_accuracy>0.5") == [("pipeline", "accuracy", [0.75])]
    await service.update_job(name, best=9)  # Use a trial that does not exist, as if it had been deleted.
    assert [kind for kind, *_ in await list_trends("loss<1")] == ["pipeline"]


async def test_job_list_contains_top_level_jobs_or_children_of_a_parent(service: ApiService) -> None:
    name = await create_tuning_job(service)
    jobs = await start_trials(service, name, 71, 72, 73)
    assert (await service.call("POST", f"{LOCATION}/customJobs", custom_job())).status == 200
    body = pipeline(trainingTaskInputs=inputs())
    assert (await service.call("POST", f"{LOCATION}/trainingPipelines", body)).status == 200
    top = await list_jobs(service, "project=p1")
    expected = [("pipeline", ""), ("custom", ""), ("tuning", "")]
    assert [(job["kind"], job["parent"]) for job in top] == expected
    below = await list_jobs(service, f"parent={quote(name, safe='')}")
    assert [(job["name"], job["parent"], job["trial"]) for job in below] == [
        (job, name, number) for number, job in reversed(list(enumerate(jobs, 1)))
    ]
    path = f"{OURS}?parent={quote(name, safe='')}&limit=2"
    page = await service.result("GET", path)
    rest = await service.result("GET", f"{path}&pageToken={page['nextPageToken']}")
    assert [job["trial"] for job in page["jobs"] + rest["jobs"]] == [3, 2, 1]
    assert rest["nextPageToken"] == ""
    for other in ("search=trial", "displayName=other", "state=running"):
        body = await service.call("GET", f"{path}&{other}&pageToken={page['nextPageToken']}")
        assert (body.status, "page" in body.error["message"].lower()) == (400, True)
    # Both values are states of jobs: a pipeline that waits for its job is PREPARING.
    assert top[0]["state"] == "PREPARING"
    assert [job["kind"] for job in await list_jobs(service, "project=p1&state=preparing")] == ["pipeline"]


async def test_describe_shows_the_search_and_its_trials(service: ApiService) -> None:
    name = await create_tuning_job(service, labels={"team": "a"})
    first, second = await start_trials(service, name, 71, 72)
    await service.run(first)
    service.write_log(71, "workerpool0-0", (START, "epoch 1/3 loss: 0.5"))
    printed = (await service.result("GET", f"{OURS}/1000/curves"))["curves"]
    assert [(curve["job"], curve["trial"], curve["tag"]) for curve in printed] == [(first, 1, "loss")]
    service.clock = START + 9 * SECOND
    curve = [loss(step, 1 / step) for step in range(1, 101)]
    await store_measurements(service, name, await trial_of(service, 1000, 1), *curve, over=True)
    view = await service.result("GET", f"{OURS}/1000")
    assert (view["kind"], view["labels"]) == ("tuning", {"team": "a"})
    assert view["tuning"] == {
        "metric": "loss",
        "goal": "MINIMIZE",
        "algorithm": "DEFAULT",
        "maxTrials": 12,
        "parallelTrials": 4,
        "firstTrial": 1,
        "replicas": 1,
        "succeeded": 1,
        "infeasible": 0,
        "failed": 0,
        "running": 1,
        "best": 1,
        "bestValue": 0.01,
        "exhausted": False,
        "stopping": "",
    }
    succeeded, active = view["trials"]
    points = succeeded.pop("curve")
    assert (len(points), points[0], points[-1]) == (60, [1, 1.0], [100, 0.01])
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert succeeded == {
        "number": 1,
        "state": "SUCCEEDED",
        "parameters": {"x": 0.071, "n": 3},
        "value": 0.01,
        "step": 100,
        "metrics": {"loss": 0.01},
        "createTime": "2025-10-09T08:53:20.000000Z",
        "startTime": "2025-10-09T08:53:20.000000Z",
        "endTime": "2025-10-09T08:53:29.000000Z",
        "job": first,
        "jobState": "RUNNING",
        "stoppedEarly": False,
        "reason": "",
    }
    shown = [active[key] for key in ("state", "value", "job", "jobState", "curve")]
    assert shown == ["ACTIVE", None, second, "QUEUED", []]
    assert [trial["id"] for trial in view["resource"]["trials"]] == ["1", "2"]


async def test_describe_shows_why_the_first_trial_waits(service: ApiService) -> None:
    name = await create_tuning_job(service)
    assert (await service.result("GET", f"{OURS}/1000"))["waits"] == [
        "Waiting for the next trial suggestion."
    ]
    first, _ = await start_trials(service, name, 71, 72)
    await service.run(first)
    reason = Waiting(WaitReason.QUOTA, "needs 8 CPUs", "try 4")
    service.capacity.reasons[JobUid(72)] = reason
    view = await service.result("GET", f"{OURS}/1000")
    assert view["waits"] == ["Trial 2: needs 8 CPUs", "try 4"]
    assert view["waiting"]["reason"] == "quota"


async def test_describe_shows_causes_of_a_failed_search_and_its_trial(service: ApiService) -> None:
    name = await create_tuning_job(service)
    await start_trials(service, name, 71)
    trial = await trial_of(service, 1000, 1)
    error = JobError(3, "Trial 1 failed.", cause="trials", reason="no metric")

    over = replace(trial, state=TrialState.INFEASIBLE, infeasible_reason="no metric", ended=START)
    await service.update_job(
        name,
        {"trials": (over,)},
        state=JobState.FAILED,
        running=(),
        infeasible=1,
        failed=1,
        outcome=Outcome(JobState.FAILED, "too_many_failed_trials", error, START),
        error=error,
        ended=START,
    )
    view = await service.result("GET", f"{OURS}/1000")
    assert (view["rule"], view["error"]) == (
        "too_many_failed_trials",
        {"code": 3, "message": "Trial 1 failed.", "reason": "no metric"},
    )
    assert (view["failure"]["cause"], view["failure"]["reason"]) == ("trials", "no metric")
    assert (view["trials"][0]["state"], view["trials"][0]["reason"]) == ("INFEASIBLE", "no metric")
    # The tuning job has a timeline, and a cancel after its end is rejected.
    timeline = await service.result("GET", f"{OURS}/1000/timeline")
    assert timeline["entries"][0]["kind"] == "created"
    rest = await service.result("GET", f"{OURS}/1000/timeline?skip=1")
    assert (rest["skipped"], rest["entries"]) == (1, timeline["entries"][1:])
    assert (await service.result("GET", f"{OURS}/1000/timeline?skip=99"))["entries"] == []
    assert (await service.call("POST", f"{OURS}/1000:cancel")).status == 400


async def test_ml_tuning_job_shows_its_trials_as_ml_jobs(service: ApiService) -> None:
    answer = await service.result("POST", "/v1/projects/p1/jobs", tuned_job(maxTrials=3))
    job_id = answer["jobId"]
    await start_trials(service, f"projects/p1/jobs/{job_id}", 71)
    view = await service.result("GET", f"{OURS}/{job_id}")
    assert view["trials"][0]["job"] == f"projects/p1/jobs/{job_id}.1"
    assert view["resource"]["trainingOutput"]["isHyperparameterTuningJob"] is True
    child = await service.result("GET", f"{OURS}/{job_id}.1")
    assert (child["parent"], child["trial"]) == (f"projects/p1/jobs/{job_id}", 1)


async def test_watch_sends_a_tuning_job_after_each_change_of_the_job_or_its_trials(
    service: ApiService,
) -> None:
    name = await create_tuning_job(service)
    async with service.stream(f"{OURS}/1000/watch") as lines:
        assert (await lines.next())["trials"] == []
        (job,) = await start_trials(service, name, 71)
        view = await lines.next()
        assert [trial["jobState"] for trial in view["trials"]] == ["QUEUED"]
        # The trial's job advances without a commit of the tuning job.
        await service.run(job)
        while view["trials"][0]["jobState"] != "RUNNING":
            view = await lines.next()
        trial = await trial_of(service, 1000, 1)
        await store_measurements(service, name, trial, loss(1, 0.5))
        # The stream can contain a state that was read during a change.
        while view["trials"][0]["curve"] != [[1, 0.5]]:
            view = await lines.next()
        await store_measurements(service, name, trial, loss(2, 0.25), over=True)
        while (view["tuning"]["best"], view["trials"][0]["value"]) != (1, 0.25):
            view = await lines.next()
        # The values are added beside the resource and are not part of it.
        assert "resource" not in view
        await service.update_job(name, state=JobState.SUCCEEDED, ended=START)
        while view["state"] != "SUCCEEDED":
            view = await lines.next()
        assert await lines.next() is None


@pytest.mark.parametrize(("method", "path"), [("POST", ":drill"), ("GET", "/resumeReport"), ("GET", "/logs")])
async def test_replica_command_on_tuning_job_suggests_a_trials_job(
    service: ApiService, method: str, path: str
) -> None:
    """spec/operations#drills: only jobs with replicas of their own support drills."""
    name = await create_tuning_job(service)
    answer = await service.call(method, f"{OURS}/1000{path}", {"kind": "kill"})
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert "No trial has started yet" in answer.error["message"]
    (job,) = await start_trials(service, name, 71)
    answer = await service.call(method, f"{OURS}/1000{path}", {"kind": "kill"})
    assert f"{job}, the job of trial 1" in answer.error["message"]
    if method == "GET":
        assert (await service.call(method, f"{OURS}/71{path}")).status == 200


async def test_replica_commands_on_a_pipeline_use_its_custom_job(service: ApiService) -> None:
    """spec/operations: the SDK shows the pipeline's ID, so commands with this ID apply to the
    replicas of the pipeline's job."""
    tunes = pipeline(trainingTaskDefinition=TUNING, trainingTaskInputs=tuning_inputs())
    for body in (pipeline(trainingTaskInputs=inputs()), tunes):
        await service.result("POST", f"{LOCATION}/trainingPipelines", body)
    report = await service.call("GET", f"{OURS}/1000/resumeReport")
    assert report.json["name"].endswith("customJobs/1001")
    refused = await service.call("GET", f"{OURS}/1002/resumeReport")
    assert "is a tuning job" in refused.error["message"]


async def test_explain_method_for_a_tuning_job_describes_a_single_trial(service: ApiService) -> None:
    """spec/submit#preflight."""
    jobs: Sequence[tuple[str, Any]] = (("vertex", tuning_job()), ("ml", tuned_job(maxTrials=3)))
    for api, job in jobs:
        body = {"api": api, "project": "p1", "location": "us-central1", "job": job}
        answer = await service.result("POST", f"{OURS}:explain", body)
        assert answer["machines"][0]["replicas"] == 1
        assert answer["notices"][0].startswith("This is a tuning job.")
    bad = {"api": "vertex", "project": "p1", "location": "us-central1"}
    refused = await service.call("POST", f"{OURS}:explain", {**bad, "job": tuning_job(maxTrialCount=0)})
    assert "max_trial_count" in refused.error["message"]
    assert await list_jobs(service, "project=p1") == []


async def test_pipeline_watch_and_logs_follow_its_job(service: ApiService) -> None:
    body = pipeline(trainingTaskInputs=inputs())
    made = (await service.result("POST", f"{LOCATION}/trainingPipelines", body))["name"]
    path = f"{OURS}/{quote(made, safe='')}"
    async with service.stream(f"{path}/watch") as lines:
        view = await lines.next()
        assert (view["kind"], view["state"], view["pipeline"]["task"]) == (
            "pipeline",
            "PREPARING",
            "custom_task",
        )
        job = view["pipeline"]["job"]
        assert (view["child"]["name"], view["child"]["parent"]) == (job, made)
        assert "resource" not in view["child"]
        await service.run(job)
        while view["pipeline"]["jobState"] != "RUNNING":
            view = await lines.next()
        assert [replica["state"] for replica in view["child"]["replicas"]] == ["RUNNING"]
        service.write_log(int(view["child"]["uid"]), "workerpool0-0", (START, "hello"))
        async with service.stream(f"{path}/logs") as stream:
            assert [line["message"] async for line in stream] == ["hello"]

        await service.update_job(made, state=JobState.SUCCEEDED, ended=START, model="m@1")
        while view["state"] != "SUCCEEDED":
            view = await lines.next()
        assert view["pipeline"]["model"] == "m@1"


async def test_pipeline_with_tuning_job_shows_its_trials(service: ApiService) -> None:
    body = pipeline(trainingTaskDefinition=TUNING, trainingTaskInputs=tuning_inputs())
    answer = await service.result("POST", f"{LOCATION}/trainingPipelines", body)
    path = f"{OURS}/{quote(answer['name'], safe='')}"
    tuning = (await service.result("GET", path))["pipeline"]["job"]
    await start_trials(service, tuning, 71)
    view = await service.result("GET", path)
    assert [trial["number"] for trial in view["child"]["trials"]] == [1]
    refused = await service.call("POST", f"{path}:drill", {"kind": "kill"})
    assert "the job of trial 1" in refused.error["message"]

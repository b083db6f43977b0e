"""Pages of pipeline jobs and schedules: the graph, live updates, reruns, comparison and actions."""

from typing import Any
from urllib.parse import quote

from tests.console.browser import Browser, ConsoleService, text_of
from tests.contract.api.api_service import LOCATION, SECOND, START
from trainshed.api.registry import BUILT_IN
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed_pipelines.runs.records import Artifact, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.runs.table import write_task
from trainshed_pipelines.template.structures import ArtifactType

EVIL = "<img src=x onerror=alert(1)>"
RUNS, SCHEDULES = f"{LOCATION}/pipelineJobs", f"{LOCATION}/schedules"
PROGRAM = {"componentRef": {"name": "c"}}
TASKS = {
    "load": PROGRAM | {"taskInfo": {"name": "load"}},
    "train": PROGRAM | {"taskInfo": {"name": "train"}, "dependentTasks": ["load"]},
}
RATE = {"rate": {"parameterType": "NUMBER_DOUBLE", "defaultValue": 0.5}}
SPEC = {
    "schemaVersion": "2.1.0",
    "sdkVersion": "kfp-2.17.3",
    "pipelineInfo": {"name": "nightly"},
    "root": {"inputDefinitions": {"parameters": RATE}, "dag": {"tasks": TASKS}},
    "components": {"c": {"executorLabel": "e"}},
    "deploymentSpec": {"executors": {"e": {"container": {"image": "i", "command": ["true"]}}}},
}
RUN = {"pipelineSpec": SPEC, "runtimeConfig": {"gcsOutputDirectory": "gs://bucket/root"}}


def task(number: int, state: TaskState, **more: Any) -> TaskRun:
    """Return the root task (0), `load` (1) or `train` (2) of a pipeline job."""
    times: Any = {"created": START, "started": START, "ended": START + 5 * SECOND * state.is_final}
    kind = TaskKind.JOB if number else TaskKind.DAG
    name = ("", "load", "train")[number]
    return TaskRun(number=number, name=name, component="c", kind=kind, state=state, **times | more)


async def create_run(service: ConsoleService, **changes: Any) -> tuple[str, str]:
    """Create a pipeline job, and return its name and UID."""
    name = (await service.result("POST", RUNS, {"displayName": "night", **RUN, **changes}))["name"]
    target = quote(name, safe="")
    return name, (await service.result("GET", f"/trainshed/v1/jobs/{target}"))["uid"]


async def store(service: ConsoleService, name: str, uid: str, *tasks: TaskRun, **changes: Any) -> None:
    """Act as the reconciler: store tasks of a pipeline job and changes of its record."""
    writes = tuple(write_task(JobUid(int(uid)), task) for task in tasks)
    await service.update_job(name, {"writes": writes}, **changes)


async def failed_run(service: ConsoleService, accuracy: float = 0.75) -> tuple[str, str]:
    """Return the name and UID of a pipeline job whose second task has failed."""
    name, uid = await create_run(service)
    metadata = {"accuracy": accuracy, "note": EVIL}
    metrics = Artifact("", ArtifactType("system.Metrics"), "gs://bucket/root/m", metadata)
    outputs = Values({}, {"metrics": (metrics,)})
    error = JobError(3, f"{EVIL} Traceback (most recent call last):\n  line 1\nValueError: no labels")
    await store(
        service,
        name,
        uid,
        task(0, TaskState.FAILED),
        task(1, TaskState.SUCCEEDED, job=JobUid(77), failed_jobs=(JobUid(76),), outputs=outputs),
        task(2, TaskState.FAILED, job=JobUid(78), error=error),
        state=JobState.FAILED,
        error=error,
        ended=START + 5 * SECOND,
    )
    return name, uid


async def test_pipeline_job_page_shows_its_tasks_as_a_graph(
    service: ConsoleService, browser: Browser
) -> None:
    name, uid = await failed_run(service)
    page = await browser.get(f"/jobs/{uid}")
    html, text = page.body.decode(), text_of(page)
    assert "load Job Succeeded · 5.0s" in text and "train Job Failed · 5.0s" in text
    assert 'href="/jobs/77" aria-label="Job of load"' in html
    assert html.count('class="edge order"') == 1
    assert "Input rate" in text and "0.5" in text
    assert f'href="/jobs/{uid}?task=train" data-graph>train</a>' in html, "the cause is linked"
    alias = f"/jobs/p1/named/{name.rpartition('/')[2]}?region=us-central1"
    assert (await browser.get(alias)).headers["location"] == f"/jobs/{uid}"
    assert "night pipeline job" in text_of(await browser.get("/"))


async def test_selected_task_shows_its_artifacts_error_and_attempts(
    service: ConsoleService, browser: Browser
) -> None:
    _, uid = await failed_run(service)
    page = await browser.get(f"/jobs/{uid}?task=load")
    html, text = page.body.decode(), text_of(page)
    assert "Output metrics system.Metrics" in text and "accuracy 0.75" in text
    assert 'href="/buckets/bucket?prefix=root%2Fm%2F"' in html
    assert 'href="/jobs/76">76</a>' in html, "an earlier attempt"
    assert EVIL not in html
    assert "ValueError: no labels" in text_of(await browser.get(f"/jobs/{uid}?task=train"))
    wrong = await browser.get(f"/jobs/{uid}?task={quote(EVIL)}&open={quote(EVIL)}&page=x")
    assert wrong.status == 200 and EVIL not in wrong.body.decode()


async def test_graph_is_updated_live(service: ConsoleService, browser: Browser) -> None:
    name, uid = await create_run(service)
    async with service.events(f"/events/jobs/{uid}", browser.credentials) as events:
        first = (await events.next("parts"))["parts"]
        assert "Not started" in first["graph"] and "task" in first
        root, load = task(0, TaskState.RUNNING), task(1, TaskState.RUNNING)
        await store(service, name, uid, root, load, state=JobState.RUNNING)
        changed = (await events.next("parts"))["parts"]
        assert 'data-since="2025-10-09T08:53:20Z"' in changed["graph"]
        await store(service, name, uid, task(1, TaskState.SKIPPED))
        assert "Cached" in (await events.next("parts"))["parts"]["graph"]


async def test_rerun_creates_a_pipeline_job_that_reuses_successful_tasks(
    service: ConsoleService, browser: Browser
) -> None:
    name, uid = await failed_run(service)
    assert "Rerun from failed task" in text_of(await browser.get(f"/jobs/{uid}"))
    refused = await browser.post(f"/jobs/{uid}/retry", ("origin", "http://elsewhere.example"))
    assert refused.status == 403
    answer = await browser.post(f"/jobs/{uid}/retry")
    assert answer.status == 303, text_of(answer)
    again = answer.headers["location"]
    page = await browser.get(again)
    source = name.rpartition("/")[2]
    assert f"trainshed-retry-of={source}" in text_of(page)
    assert f"/compare?job={source}&amp;job={again.rpartition('/')[2]}" in page.body.decode()
    assert "Rerun" not in text_of(page), "the copy has not finished"
    assert (await browser.post(f"{again}/retry")).status == 400
    assert (await browser.post(f"{again}/cancel")).status == 303


async def test_rerun_of_a_pipeline_job_with_a_long_id_uses_its_uid(
    service: ConsoleService, browser: Browser
) -> None:
    made = await service.result("POST", f"{RUNS}?pipelineJobId={'a' * 100}", RUN)
    uid = (await service.result("GET", f"/trainshed/v1/jobs/{'a' * 100}"))["uid"]
    await store(service, made["name"], uid, state=JobState.CANCELLED)
    again = (await browser.post(f"/jobs/{uid}/retry")).headers["location"]
    assert f"trainshed-retry-of={uid}" in text_of(await browser.get(again))


async def test_comparison_of_pipeline_jobs_shows_parameters_metrics_and_tasks(
    service: ConsoleService, browser: Browser
) -> None:
    (_, first), (_, second) = await failed_run(service, 0.75), await failed_run(service, 0.875)
    text = text_of(await browser.get(f"/compare?job={first}&job={second}"))
    for shown in ("rate 0.5 0.5", "load accuracy 0.75 0.875", "train Failed, 5.0s Failed, 5.0s"):
        assert shown in text


async def test_schedule_can_be_paused_resumed_and_deleted(service: ConsoleService, browser: Browser) -> None:
    request = {"parent": LOCATION.removeprefix("/v1/"), "pipelineJob": RUN}
    body = {"displayName": f"night{EVIL}", "cron": "TZ=Europe/Berlin 0 2 * * *"}
    body |= {"maxConcurrentRunCount": "1", "createPipelineJobRequest": request}
    made = await service.result("POST", SCHEDULES, body)
    own = made["name"].rpartition("/")[2]
    page = await browser.get(f"/schedules?project=p1&schedule={own}")
    assert EVIL not in page.body.decode()
    for shown in ("Every day at 02:00 (Europe/Berlin)", "2025-10-10 00:00 UTC", "No run has started"):
        assert shown in text_of(page)
    for does, state in (("pause", "PAUSED"), ("resume", "ACTIVE")):
        action = f"/schedules/{own}/{does}?project=p1"
        assert action.encode() in (await browser.get(f"/schedules?project=p1&schedule={own}")).body
        assert (await browser.post(action)).headers["location"] == "/schedules?project=p1"
        assert (await service.result("GET", f"/v1/{made['name']}"))["state"] == state
    assert (await browser.post(f"/schedules/{own}/explode?project=p1")).status == 404
    assert (await browser.post(f"/schedules/{own}/delete?project=p1")).status == 303
    assert "No schedules yet" in text_of(await browser.get("/schedules?project=p1"))


async def test_service_without_pipelines_has_no_menu_entry_for_schedules(
    service: ConsoleService, browser: Browser
) -> None:
    assert 'href="/schedules"' in (await browser.get("/")).body.decode()
    service.registry = BUILT_IN
    service.new_console()
    plain = Browser(service)
    await plain.sign_in(token=service.token)
    assert 'href="/schedules"' not in (await plain.get("/")).body.decode()
    assert "trainshed[pipelines]" in text_of(await plain.get("/schedules"))

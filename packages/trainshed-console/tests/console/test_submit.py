"""The submit form: errors at their fields, and API requests of valid forms."""

import html
import json
import re
from typing import Any

import pytest

from tests.console.browser import Browser, ConsoleService, text_of
from tests.contract.api.api_service import Answer
from tests.unit.test_specs_pipeline import pipeline
from trainshed_console.pages.submit import draft_of

FORM = {
    "name": "mine",
    "kind": "script",
    "script": "print('<hello>')\r\nprint(2)",
    "image": "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest",
    "machine": "n1-standard-4",
    "replicas": "3",
    "env": "A=1\nB=two words",
    "labels": "team=vision",
    "project": "p1",
    "region": "us-central1",
}


def fault(page: str, name: str) -> str:
    """Return the error at a field."""
    result = re.search(rf'id="fault-{name}"[^>]*>([^<]*)<', page)
    assert result is not None, name
    return result[1].strip()


def test_submit_form_is_converted_to_a_custom_job() -> None:
    body = draft_of(FORM).body
    assert body is not None
    first, second = body["jobSpec"]["workerPoolSpecs"]
    assert (first["replicaCount"], second["replicaCount"]) == ("1", "2")
    assert first["containerSpec"]["command"][-1] == "print('<hello>')\nprint(2)"
    assert first["containerSpec"]["env"][1] == {"name": "B", "value": "two words"}


def test_submit_form_with_a_parameter_sweep_is_converted_to_a_tuning_job() -> None:
    form = {**FORM, **SWEEP, "kind": "file", "file": "gs://b/task.py", "framework": "pytorch"}
    body = draft_of({**form, "accelerator": "NVIDIA_L4", "tune": "lr=1e-4..1e-1:log"}).body or {}
    assert body["studySpec"]["parameters"][0]["scaleType"] == "UNIT_LOG_SCALE"
    container = body["trialJobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    assert container["command"] == ["python3", "-u", "/gcs/b/task.py"]
    assert "pytorch-gpu" in container["imageUri"]
    assert draft_of({**form, "tune": "lr=1", "file": "task.py"}).faults.keys() == {"tune", "program"}


async def test_submit_form_creates_the_job_and_redirects_to_its_page(
    service: ConsoleService, browser: Browser
) -> None:
    form = await browser.get("/submit")
    assert form.status == 200
    assert b'<option value="NVIDIA_TESLA_T4">' in form.body  # The nodes have this type.
    answer = await browser.post("/submit", **FORM)
    assert answer.status == 303
    page = text_of(await browser.get(answer.headers["location"]))
    assert "mine" in page
    assert "team=vision" in page


async def test_submit_form_can_be_edited_as_json(service: ConsoleService, browser: Browser) -> None:
    answer = await browser.post("/submit/json", **FORM)
    assert json_to_edit(answer)["labels"] == {"team": "vision"}
    assert fault((await browser.post("/submit/json", **{**FORM, "env": "A"})).body.decode(), "env")


async def test_submit_form_errors_are_shown_at_their_fields(
    service: ConsoleService, browser: Browser
) -> None:
    wrong = {**FORM, "machine": "n1-standard-5", "labels": "Team", "replicas": "none"}
    page = (await browser.post("/submit/check", **wrong)).body.decode()
    assert "Team" in fault(page, "labels")
    assert "whole number" in fault(page, "replicas")
    assert fault(page, "image") == ""
    answer = await browser.post("/submit/check", **{**FORM, "machine": "n1-standard-5"})
    assert "n1-standard-5" in fault(answer.body.decode(), "machine")
    stored = await browser.post("/submit", **wrong)
    assert stored.status == 400
    assert "No jobs yet" in text_of(await browser.get("/"))


SPEC: dict[str, Any] = (draft_of(FORM).body or {})["jobSpec"]
SWEEP = {"runs": "sweep", "tune": "rate=0.1..1", "metric": "accuracy", "goal": "maximize"}
SEARCH: dict[str, Any] = {
    **(draft_of({**FORM, **SWEEP, "name": "search", "trials": "4"}).body or {}),
    "trialJobSpec": SPEC,
}
PIPELINE = pipeline(trainingTaskInputs=SPEC)
OF_ML: dict[str, Any] = {
    "jobId": "first",
    "labels": {"a_b": "c_d"},
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "masterConfig": {"imageUri": FORM["image"], "containerCommand": ["true"]},
        "region": "us-central1",
    },
}
KINDS = {
    "hyperparameterTuningJobs": SEARCH,
    "trainingPipelines": PIPELINE,
    "jobs": OF_ML,
    "customJobs": {"displayName": "own", "jobSpec": SPEC},
}


def json_to_edit(answer: Answer) -> dict[str, Any]:
    """Return the JSON in the editor of the page."""
    result = re.search(r'<textarea name="job"[^>]*>(.*?)</textarea>', answer.body.decode(), re.DOTALL)
    assert result is not None
    return json.loads(html.unescape(result[1]))


@pytest.mark.parametrize("collection", KINDS)
async def test_job_of_any_kind_can_be_cloned_and_edited_as_json(
    service: ConsoleService, browser: Browser, collection: str
) -> None:
    place = "/v1/projects/p1" + ("" if collection == "jobs" else "/locations/us-central1")
    made = await service.result("POST", f"{place}/{collection}", KINDS[collection])
    old = made.get("jobId") or made["name"].rpartition("/")[2]
    page = await browser.get(f"/jobs/{old}")
    uid = re.search(r"/submit/json\?from=(\d+)", page.body.decode())
    assert uid is not None, "the job's page links to the editor"
    body = json_to_edit(await browser.get(f"/submit/json?from={uid[1]}"))
    assert {**body, "jobId": 0} == {**KINDS[collection], "jobId": 0}, (
        "the editor contains exactly the request"
    )
    assert body.get("jobId") != OF_ML["jobId"], "an ID of an `ml` job can be used only once"
    body["labels"] = {"edited": "yes"}
    form = {"job": json.dumps(body), "project": "p1", "region": "us-central1"}
    text = text_of(await browser.post("/submit/json/check", **form))
    assert "Would start now" in text
    assert ("gcloud" in text) is (collection != "trainingPipelines")
    answer = await browser.post("/submit/json", **form)
    assert answer.status == 303, text_of(answer)
    page = await browser.get(answer.headers["location"] + "/spec")
    assert '"edited": "yes"' in html.unescape(page.body.decode())
    listed = await service.result("GET", f"{place}/{collection}")
    assert len(listed[collection]) == 2


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "Line 1, column 1"),
        ('{"a": 1,\n2}', "Line 2, column 1"),
        ("[]", "starts with {"),
        ("[" * 100_000, "not valid JSON"),
        (json.dumps({**SEARCH, "maxTrialCount": 0, "displayName": ""}), "max_trial_count"),
        (json.dumps({**PIPELINE, "trainingTaskInputs": {"workerPoolSpecs": 1}}), "training_task_inputs"),
        (json.dumps({**OF_ML, "trainingInput": {"nothing": 1}}), "nothing"),
        ('{"displayName": "\\ud800"}', "not valid JSON"),
    ],
)
async def test_invalid_job_json_shows_an_error(browser: Browser, text: str, output: str) -> None:
    form = {"job": text, "project": "p1", "region": "us-central1"}
    for path in ("/submit/json/check", "/submit/json"):
        answer = await browser.post(path, **form)
        assert answer.status == (200 if path.endswith("check") else 400)
        message = text_of(answer).partition("Not ready yet")[2]
        assert output in message, message
    assert "No jobs yet" in text_of(await browser.get("/"))


async def test_tuning_job_page_shows_charts(service: ConsoleService, browser: Browser) -> None:
    path = "/v1/projects/p1/locations/us-central1/hyperparameterTuningJobs"
    made = await service.result("POST", path, SEARCH)
    uid = made["name"].rpartition("/")[2]
    overview = text_of(await browser.get(f"/jobs/{uid}"))
    assert "0 of 4" in overview and "No trial has reported a value yet" in overview
    assert "No trial has started yet" in text_of(await browser.get(f"/jobs/{uid}/trials"))

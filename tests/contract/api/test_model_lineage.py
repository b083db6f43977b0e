"""Which job, which data and which parameters made a model, as `/trainshed/v1/models` says it
(facts/models#lineage)."""

import json
from typing import Any

from tests.contract.api import test_datasets
from tests.contract.api.house import LOCATION, START, House
from tests.contract.api.refusals import fields
from tests.contract.api.test_models import MODELS, uploaded
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import MODEL, inputs, pipeline
from trainshed.access.job_tokens import JobClaims
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, ModelName
from trainshed.core.pipelines import ModelVersion

OURS = "/trainshed/v1/models"
QUERY = "project=p1&region=us-central1"


async def described(house: House, model: str = "m1") -> list[dict[str, Any]]:
    return (await house.result("GET", f"{OURS}/{model}?{QUERY}"))["versions"]


async def job_made(house: House, output: str, location: str = LOCATION, **spec: Any) -> str:
    body = custom_job(baseOutputDirectory={"outputUriPrefix": output}, **spec)
    return (await house.result("POST", f"{location}/customJobs", body))["name"]


async def origin(house: House, uri: str, model: str) -> dict[str, Any]:
    await uploaded(house, MODEL | {"artifactUri": uri}, modelId=model)
    (version,) = await described(house, model)
    return version["origin"]


async def test_what_lies_in_a_jobs_output_directory_was_made_by_it(house: House) -> None:
    outer = await job_made(house, "gs://bucket/runs")
    inner = await job_made(house, "gs://bucket/runs/7/")
    await job_made(house, "gs://bucket/runs/8", LOCATION.replace("/p1/", "/p2/"))
    await job_made(house, "gs://bucket")
    for number, (uri, job) in enumerate(
        (
            ("gs://bucket/runs/7/model", inner),
            ("gs://bucket/runs/7", inner),
            ("gs://bucket/runs/70/model", outer),
            ("gs://bucket/runs/8/model/", outer),
            ("gs://bucket/other/model", ""),
            ("gs://bucket/run", ""),
        )
    ):
        assert (await origin(house, uri, f"m{number}"))["job"] == job, uri
    again = await job_made(house, "gs://bucket/runs/7")
    made_by = await origin(house, "gs://bucket/runs/7/model", "later")
    assert (made_by["job"], made_by["state"], made_by["pipeline"]) == (again, "QUEUED", "")


async def test_a_job_that_was_deleted_is_still_named(house: House) -> None:
    job = await job_made(house, "gs://bucket/out")
    await uploaded(house, MODEL | {"artifactUri": "gs://bucket/out/model"}, modelId="m1")
    await house.happen(job, CancelRequested(CancelCause.USER, START))
    await house.result("DELETE", f"/v1/{job}")
    (version,) = await described(house)
    assert (version["origin"]["job"], version["origin"]["state"]) == (job, "")
    assert (await origin(house, "gs://bucket/out/model", "m2"))["job"] == ""


async def test_a_program_that_uploads_a_model_is_what_made_it(house: House) -> None:
    job = await job_made(house, "gs://bucket/out")
    uid = (await house.store.reader.job(JobName.parse(job)))[0].uid
    token, _ = house.jobs.mint(JobClaims(uid, 1, "workerpool0-0", "p1", "a@b"))
    for model, uri in (("m1", "gs://bucket/else"), ("m2", "")):
        body = {"model": MODEL | ({"artifactUri": uri} if uri else {}), "modelId": model}
        await house.result("POST", f"{MODELS}:upload", body, token=token)
        (version,) = await described(house, model)
        assert version["origin"]["job"] == job
        assert version["origin"]["arguments"] == []


async def test_a_pipelines_model_names_its_job_and_its_data(house: House) -> None:
    dataset = (await test_datasets.made(house)).removeprefix("/v1/")
    data = {
        "datasetId": dataset.rpartition("/")[2],
        "gcsDestination": {"outputUriPrefix": "gs://bucket/data/"},
    }
    body = pipeline(trainingTaskInputs=inputs(), modelToUpload=MODEL, inputDataConfig=data)
    view = await house.result("POST", f"{LOCATION}/trainingPipelines", body)
    await house.become(view["name"], {"model": version_of(view["name"])}, state=JobState.SUCCEEDED)
    (version,) = await described(house)
    job = view["trainingTaskMetadata"]["backingCustomJob"]
    origin = version["origin"]
    assert (origin["pipeline"], origin["job"]) == (view["name"], job)
    assert origin["dataset"] == dataset


async def test_what_is_asked_wrongly_is_told(house: House) -> None:
    assert fields(await house.call("GET", f"{OURS}/none")) == {"project", "region"}
    assert (await house.call("GET", f"{OURS}/none?{QUERY}")).status == 404
    await uploaded(house, modelId="m1")
    assert (await house.call("GET", f"{OURS}/m1?project=p2&region=us-central1")).status == 404


def version_of(name: str) -> ModelVersion:
    return ModelVersion(
        name=ModelName("p1", "us-central1", "m1"),
        version=1,
        display_name="model",
        public_json=json.dumps(MODEL),
        artifact_uri="gs://bucket/out/model",
        created=START,
        updated=START,
        aliases=("default",),
        pipeline=name,
    )

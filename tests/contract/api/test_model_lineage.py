"""The job that created an uploaded model (facts/models#lineage)."""

from typing import Any

from tests.contract.api.house import LOCATION, START, House
from tests.contract.api.test_models import MODELS, uploaded
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import MODEL
from trainshed.access.job_tokens import JobClaims
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.names import JobName


async def maker(house: House, uri: str, model: str) -> str:
    """Upload a model at `uri` and return the job that created it, according to its metadata."""
    await uploaded(house, MODEL | ({"artifactUri": uri} if uri else {}), modelId=model)
    return await made_by(house, model)


async def made_by(house: House, model: str) -> str:
    versions = (await house.result("GET", f"{MODELS}/{model}:listVersions"))["models"]
    return versions[0].get("metadata", {}).get("job", "")


async def job_made(house: House, output: str, location: str = LOCATION, **spec: Any) -> str:
    body = custom_job(baseOutputDirectory={"outputUriPrefix": output}, **spec)
    return (await house.result("POST", f"{location}/customJobs", body))["name"]


async def test_model_in_a_jobs_output_directory_belongs_to_that_job(house: House) -> None:
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
        assert await maker(house, uri, f"m{number}") == job, uri
    again = await job_made(house, "gs://bucket/runs/7")
    assert await maker(house, "gs://bucket/runs/7/model", "later") == again


async def test_lineage_keeps_the_name_of_a_deleted_job(house: House) -> None:
    job = await job_made(house, "gs://bucket/out")
    await uploaded(house, MODEL | {"artifactUri": "gs://bucket/out/model"}, modelId="m1")
    await house.happen(job, CancelRequested(CancelCause.USER, START))
    await house.result("DELETE", f"/v1/{job}")
    assert await made_by(house, "m1") == job
    assert await maker(house, "gs://bucket/out/model", "m2") == ""


async def test_model_uploaded_by_a_program_belongs_to_its_job(house: House) -> None:
    job = await job_made(house, "gs://bucket/out")
    uid = (await house.store.reader.job(JobName.parse(job)))[0].uid
    token, _ = house.jobs.mint(JobClaims(uid, 1, "workerpool0-0", "p1", "a@b"))
    for model, uri in (("m1", "gs://bucket/else"), ("m2", "")):
        body = {"model": MODEL | ({"artifactUri": uri} if uri else {}), "modelId": model}
        await house.result("POST", f"{MODELS}:upload", body, token=token)
        assert await made_by(house, model) == job


async def test_uploaded_metadata_is_not_replaced_by_lineage(house: House) -> None:
    await job_made(house, "gs://bucket/out")
    own = {"artifactUri": "gs://bucket/out/model", "metadata": {"framework": "torch"}}
    await uploaded(house, MODEL | own, modelId="m1")
    model = await house.result("GET", f"{MODELS}/m1")
    assert model["metadata"] == own["metadata"]

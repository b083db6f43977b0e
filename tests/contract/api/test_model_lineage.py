"""The job that created an uploaded model (facts/models#lineage)."""

from typing import Any

from tests.contract.api.api_service import LOCATION, START, ApiService
from tests.contract.api.test_models import MODELS, upload_model
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import MODEL
from trainshed.access.job_tokens import JobClaims
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.core.names import JobName


async def upload_and_read_creator(service: ApiService, uri: str, model: str) -> str:
    """Upload a model at `uri` and return the job that created it, according to its metadata."""
    await upload_model(service, MODEL | ({"artifactUri": uri} if uri else {}), modelId=model)
    return await creator_of(service, model)


async def creator_of(service: ApiService, model: str) -> str:
    versions = (await service.result("GET", f"{MODELS}/{model}:listVersions"))["models"]
    return versions[0].get("metadata", {}).get("job", "")


async def job_made(service: ApiService, output: str, location: str = LOCATION, **spec: Any) -> str:
    body = custom_job(baseOutputDirectory={"outputUriPrefix": output}, **spec)
    return (await service.result("POST", f"{location}/customJobs", body))["name"]


async def test_model_in_a_jobs_output_directory_belongs_to_that_job(service: ApiService) -> None:
    outer = await job_made(service, "gs://bucket/runs")
    inner = await job_made(service, "gs://bucket/runs/7/")
    await job_made(service, "gs://bucket/runs/8", LOCATION.replace("/p1/", "/p2/"))
    await job_made(service, "gs://bucket")
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
        assert await upload_and_read_creator(service, uri, f"m{number}") == job, uri
    again = await job_made(service, "gs://bucket/runs/7")
    assert await upload_and_read_creator(service, "gs://bucket/runs/7/model", "later") == again


async def test_lineage_keeps_the_name_of_a_deleted_job(service: ApiService) -> None:
    job = await job_made(service, "gs://bucket/out")
    await upload_model(service, MODEL | {"artifactUri": "gs://bucket/out/model"}, modelId="m1")
    await service.apply_events(job, CancelRequested(CancelCause.USER, START))
    await service.result("DELETE", f"/v1/{job}")
    assert await creator_of(service, "m1") == job
    assert await upload_and_read_creator(service, "gs://bucket/out/model", "m2") == ""


async def test_model_uploaded_by_a_program_belongs_to_its_job(service: ApiService) -> None:
    job = await job_made(service, "gs://bucket/out")
    uid = (await service.store.reader.job(JobName.parse(job)))[0].uid
    token, _ = service.jobs.mint(JobClaims(uid, 1, "workerpool0-0", "p1", "a@b"))
    for model, uri in (("m1", "gs://bucket/else"), ("m2", "")):
        body = {"model": MODEL | ({"artifactUri": uri} if uri else {}), "modelId": model}
        await service.result("POST", f"{MODELS}:upload", body, token=token)
        assert await creator_of(service, model) == job


async def test_uploaded_metadata_is_not_replaced_by_lineage(service: ApiService) -> None:
    await job_made(service, "gs://bucket/out")
    own = {"artifactUri": "gs://bucket/out/model", "metadata": {"framework": "torch"}}
    await upload_model(service, MODEL | own, modelId="m1")
    model = await service.result("GET", f"{MODELS}/m1")
    assert model["metadata"] == own["metadata"]

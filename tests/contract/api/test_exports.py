"""Exports of models and datasets over a real store: files, rejected requests, and a service restart
during the export (facts/models#export)."""

from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.test_datasets import create_dataset, import_body
from tests.contract.api.test_models import MODELS, PLACE, get_model, upload_model
from tests.contract.api.violations import fields
from tests.unit.test_specs_pipeline import MODEL
from trainshed.core.environment import service_agent
from trainshed.datasets.port import DataRefused, DataUnwritten

OUTPUT = "gs://bucket/out/model-export-my-model--1--2025-10-09T08:53:20.000Z/"
TREE = {"gs://bucket/m/model.pt": b"weights", "gs://bucket/m/variables/v-0": b"more"}
WHERE = "output_config.artifact_destination.output_uri_prefix"


async def prepare_model(service: ApiService) -> None:
    service.files.buckets.objects = {**TREE, "gs://bucket/m-old/model.pt": b"another one"}
    model = MODEL | {"displayName": "my model/(1)", "artifactUri": "gs://bucket/m"}
    await upload_model(service, model, modelId="m1")


async def start(service: ApiService, model: str = "m1", **config: Any) -> dict[str, Any]:
    config = {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}} | config
    return await service.result("POST", f"{MODELS}/{model}:export", {"outputConfig": config})


def export_body(**config: Any) -> dict[str, Any]:
    return {"exportConfig": {"gcsDestination": {"outputUriPrefix": "gs://bucket/out"}} | config}


async def wait_for_end(service: ApiService, operation: dict[str, Any]) -> dict[str, Any]:
    done = await service.result("POST", f"/v1/{operation['name']}:wait?timeout=20s")
    assert done["done"] is True
    return done


async def table(service: ApiService) -> str:
    service.files.buckets.objects["gs://bucket/a.csv"] = b"id,x\n1,a\n2,b\n"
    return await create_dataset(service)


async def test_only_model_with_artifacts_has_an_export_format(service: ApiService) -> None:
    await prepare_model(service)
    await upload_model(service, modelId="bare")
    (format_,) = (await get_model(service, "m1"))["supportedExportFormats"]
    assert format_ == {"id": "custom-trained", "exportableContents": ["ARTIFACT"]}
    assert "supportedExportFormats" not in await get_model(service, "bare")
    body = {"outputConfig": {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}}}
    answer = await service.call("POST", f"{MODELS}/bare:export", body)
    assert answer.error["status"] == "FAILED_PRECONDITION"
    for missing in ("none", "bare@7"):
        answer = await service.call("POST", f"{MODELS}/{missing}:export", body)
        assert answer.error["status"] == "NOT_FOUND", missing


async def test_model_export_copies_the_models_files(service: ApiService) -> None:
    await prepare_model(service)
    service.files.gate.clear()
    running = await start(service, "m1@default", exportFormatId="custom-trained")
    assert "done" not in running
    assert running["metadata"]["@type"].endswith("v1.ExportModelOperationMetadata")
    assert running["metadata"]["outputInfo"] == {"artifactOutputUri": OUTPUT}
    service.files.gate.set()
    done = await wait_for_end(service, running)
    assert done["response"]["@type"].endswith("v1.ExportModelResponse")
    assert done["metadata"]["outputInfo"] == {"artifactOutputUri": OUTPUT}
    objects = service.files.buckets.objects
    copied = {uri: objects[uri] for uri in objects if uri.startswith("gs://bucket/out")}
    assert copied == {f"{OUTPUT}model.pt": b"weights", f"{OUTPUT}variables/v-0": b"more"}
    (account,) = service.files.accounts
    assert (account.project, account.email) == ("p1", service_agent("p1"))


async def test_simultaneous_exports_use_separate_directories(service: ApiService) -> None:
    await prepare_model(service)
    operations = [await start(service) for _ in range(3)]
    outputs = {operation["metadata"]["outputInfo"]["artifactOutputUri"] for operation in operations}
    assert len(outputs) == 3
    for operation in operations:
        assert "error" not in await wait_for_end(service, operation)


async def test_export_continues_after_a_service_restart(service: ApiService) -> None:
    await prepare_model(service)
    service.files.gate.clear()
    running = await start(service)
    await service.files.waits.wait()
    await service.exports.close()
    assert "done" not in await service.result("GET", f"/v1/{running['name']}")
    service.files.gate.set()
    later = service.export_worker()
    await later.start()
    assert "error" not in await wait_for_end(service, running)
    assert service.files.buckets.objects[f"{OUTPUT}model.pt"] == b"weights"
    await later.close()


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (DataRefused("gs://bucket/m/model.pt: access denied"), 3, "access denied"),
        (DataUnwritten("The buckets do not answer"), 14, "do not answer"),
        (ValueError("a fault of the service"), 13, "Internal error"),
    ],
)
async def test_failed_export_reports_its_cause(
    service: ApiService, failure: Exception, code: int, text: str
) -> None:
    await prepare_model(service)
    service.files.failure = failure
    error = (await wait_for_end(service, await start(service)))["error"]
    assert error["code"] == code
    assert f"{PLACE}/models/m1@1 was not exported: " in error["message"]
    assert text in error["message"]


async def test_export_fails_when_its_files_were_deleted(service: ApiService) -> None:
    await prepare_model(service)
    service.files.buckets.objects.clear()
    error = (await wait_for_end(service, await start(service)))["error"]
    assert (error["code"], "No objects exist at gs://bucket/m/" in error["message"]) == (3, True)


async def test_cancelled_export_stops_copying(service: ApiService) -> None:
    await prepare_model(service)
    service.files.gate.clear()
    running = await start(service)
    await service.files.waits.wait()
    path = f"/v1/{running['name']}"
    assert (await service.call("DELETE", path)).error["status"] == "FAILED_PRECONDITION"
    await service.result("POST", f"{path}:cancel")
    done = await wait_for_end(service, running)
    assert done["error"]["code"] == 1
    assert OUTPUT in done["error"]["message"]
    service.files.gate.set()
    await service.exports.close()
    assert f"{OUTPUT}model.pt" not in service.files.buckets.objects
    await service.result("DELETE", path)
    assert (await service.call("GET", path)).status == 404


async def test_all_wrong_fields_of_an_export_are_reported(service: ApiService) -> None:
    await prepare_model(service)
    config = {
        "exportFormatId": "tf-saved-model",
        "imageDestination": {"outputUri": "us-docker.pkg.dev/p/r/i"},
        "artifactDestination": {"outputUriPrefix": "gs://bucket/m/below"},
    }
    answer = await service.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
    others = {"output_config.export_format_id", "output_config.image_destination"}
    assert fields(answer) == {WHERE} | others
    for prefix in ("", "out", "gs://nowhere/out", "gs://theirs/out", "gs://bucket/m"):
        config = {"artifactDestination": {"outputUriPrefix": prefix}}
        answer = await service.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
        assert fields(answer) == {WHERE}, prefix
    assert fields(await service.call("POST", f"{MODELS}/m1:export", {})) == {WHERE}
    assert "operations" not in await service.result("GET", f"{LOCATION}/operations?filter=done=false")


async def test_dataset_export_without_splits_writes_a_single_set_of_files(service: ApiService) -> None:
    path = await table(service)
    service.files.gate.clear()
    running = await service.result("POST", f"{path}:export", export_body())
    assert "done" not in running
    directory = running["metadata"]["gcsOutputDirectory"]
    assert directory.startswith("gs://bucket/out/dataset-")
    service.files.gate.set()
    done = await wait_for_end(service, running)
    assert done["response"]["exportedFiles"] == [f"{directory}/data-00000.csv"]
    assert done["response"]["dataStats"]["trainingDataItemsCount"] == "2"
    objects = service.files.buckets.objects
    assert objects[f"{directory}/data-00000.csv"] == b"id,x\n1,a\n2,b\n"
    assert not [uri for uri in objects if "/test-" in uri]


async def test_dataset_is_exported_by_splits(service: ApiService) -> None:
    path = await table(service)
    split = {"trainingFraction": 1.0}
    done = await wait_for_end(
        service, await service.result("POST", f"{path}:export", export_body(fractionSplit=split))
    )
    names = [uri.rpartition("/")[2] for uri in done["response"]["exportedFiles"]]
    assert names == ["training-00000.csv", "validation-00000.csv", "test-00000.csv"]


async def test_invalid_dataset_export_is_rejected(service: ApiService) -> None:
    path, images = await table(service), await create_dataset(service, "image")
    nowhere: dict[str, Any] = {"exportConfig": {}}
    theirs: dict[str, Any] = {"exportConfig": {"gcsDestination": {"outputUriPrefix": "gs://theirs/x"}}}
    destination = "export_config.gcs_destination"
    for of, wrong, field in (
        (path, nowhere, destination),
        (path, theirs, f"{destination}.output_uri_prefix"),
        (path, export_body(filterSplit={}), "export_config.filter_split"),
        (path, export_body(savedQueryId="1"), "export_config.saved_query_id"),
        (path, export_body(exportUse="CUSTOM_CODE_TRAINING"), "export_config.fraction_split"),
        (path, export_body(annotationSchemaUri="x"), "export_config.annotation_schema_uri"),
        (images, export_body(), "export_config"),
    ):
        assert field in fields(await service.call("POST", f"{of}:export", wrong)), wrong


async def test_imported_items_are_exported_in_googles_format(service: ApiService) -> None:
    path = await create_dataset(service, "image")
    service.files.buckets.objects["gs://bucket/photos.csv"] = b"gs://bucket/1.jpg,daisy\n"
    await service.result("POST", f"{path}:import", import_body(["gs://bucket/photos.csv"]))
    done = await wait_for_end(service, await service.result("POST", f"{path}:export", export_body()))
    (uri,) = done["response"]["exportedFiles"]
    assert b'"displayName": "daisy"' in service.files.buckets.objects[uri]

"""Exports of models and datasets over a real store: files, rejected requests, and a service restart
during the export (facts/models#export)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.refusals import fields
from tests.contract.api.test_datasets import import_body, made
from tests.contract.api.test_models import MODELS, PLACE, shown, uploaded
from tests.unit.test_specs_pipeline import MODEL
from trainshed.core.environment import service_agent
from trainshed.datasets.port import DataRefused, DataUnwritten

OUTPUT = "gs://bucket/out/model-export-my-model--1--2025-10-09T08:53:20.000Z/"
TREE = {"gs://bucket/m/model.pt": b"weights", "gs://bucket/m/variables/v-0": b"more"}
WHERE = "output_config.artifact_destination.output_uri_prefix"


async def prepare_model(house: House) -> None:
    house.files.buckets.objects = {**TREE, "gs://bucket/m-old/model.pt": b"another one"}
    model = MODEL | {"displayName": "my model/(1)", "artifactUri": "gs://bucket/m"}
    await uploaded(house, model, modelId="m1")


async def start(house: House, model: str = "m1", **config: Any) -> dict[str, Any]:
    config = {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}} | config
    return await house.result("POST", f"{MODELS}/{model}:export", {"outputConfig": config})


def export_body(**config: Any) -> dict[str, Any]:
    return {"exportConfig": {"gcsDestination": {"outputUriPrefix": "gs://bucket/out"}} | config}


async def ended(house: House, operation: dict[str, Any]) -> dict[str, Any]:
    done = await house.result("POST", f"/v1/{operation['name']}:wait?timeout=20s")
    assert done["done"] is True
    return done


async def table(house: House) -> str:
    house.files.buckets.objects["gs://bucket/a.csv"] = b"id,x\n1,a\n2,b\n"
    return await made(house)


async def test_only_model_with_artifacts_has_an_export_format(house: House) -> None:
    await prepare_model(house)
    await uploaded(house, modelId="bare")
    (format_,) = (await shown(house, "m1"))["supportedExportFormats"]
    assert format_ == {"id": "custom-trained", "exportableContents": ["ARTIFACT"]}
    assert "supportedExportFormats" not in await shown(house, "bare")
    body = {"outputConfig": {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}}}
    answer = await house.call("POST", f"{MODELS}/bare:export", body)
    assert answer.error["status"] == "FAILED_PRECONDITION"
    for missing in ("none", "bare@7"):
        answer = await house.call("POST", f"{MODELS}/{missing}:export", body)
        assert answer.error["status"] == "NOT_FOUND", missing


async def test_model_export_copies_the_models_files(house: House) -> None:
    await prepare_model(house)
    house.files.gate.clear()
    running = await start(house, "m1@default", exportFormatId="custom-trained")
    assert "done" not in running
    assert running["metadata"]["@type"].endswith("v1.ExportModelOperationMetadata")
    assert running["metadata"]["outputInfo"] == {"artifactOutputUri": OUTPUT}
    house.files.gate.set()
    done = await ended(house, running)
    assert done["response"]["@type"].endswith("v1.ExportModelResponse")
    assert done["metadata"]["outputInfo"] == {"artifactOutputUri": OUTPUT}
    objects = house.files.buckets.objects
    copied = {uri: objects[uri] for uri in objects if uri.startswith("gs://bucket/out")}
    assert copied == {f"{OUTPUT}model.pt": b"weights", f"{OUTPUT}variables/v-0": b"more"}
    (account,) = house.files.accounts
    assert (account.project, account.email) == ("p1", service_agent("p1"))


async def test_simultaneous_exports_use_separate_directories(house: House) -> None:
    await prepare_model(house)
    operations = [await start(house) for _ in range(3)]
    outputs = {operation["metadata"]["outputInfo"]["artifactOutputUri"] for operation in operations}
    assert len(outputs) == 3
    for operation in operations:
        assert "error" not in await ended(house, operation)


async def test_export_continues_after_a_service_restart(house: House) -> None:
    await prepare_model(house)
    house.files.gate.clear()
    running = await start(house)
    await house.files.waits.wait()
    await house.exports.close()
    assert "done" not in await house.result("GET", f"/v1/{running['name']}")
    house.files.gate.set()
    later = house.export_worker()
    await later.start()
    assert "error" not in await ended(house, running)
    assert house.files.buckets.objects[f"{OUTPUT}model.pt"] == b"weights"
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
    house: House, failure: Exception, code: int, text: str
) -> None:
    await prepare_model(house)
    house.files.failure = failure
    error = (await ended(house, await start(house)))["error"]
    assert error["code"] == code
    assert f"{PLACE}/models/m1@1 was not exported: " in error["message"]
    assert text in error["message"]


async def test_export_fails_when_its_files_were_deleted(house: House) -> None:
    await prepare_model(house)
    house.files.buckets.objects.clear()
    error = (await ended(house, await start(house)))["error"]
    assert (error["code"], "No objects exist at gs://bucket/m/" in error["message"]) == (3, True)


async def test_cancelled_export_stops_copying(house: House) -> None:
    await prepare_model(house)
    house.files.gate.clear()
    running = await start(house)
    await house.files.waits.wait()
    path = f"/v1/{running['name']}"
    assert (await house.call("DELETE", path)).error["status"] == "FAILED_PRECONDITION"
    await house.result("POST", f"{path}:cancel")
    done = await ended(house, running)
    assert done["error"]["code"] == 1
    assert OUTPUT in done["error"]["message"]
    house.files.gate.set()
    await house.exports.close()
    assert f"{OUTPUT}model.pt" not in house.files.buckets.objects
    await house.result("DELETE", path)
    assert (await house.call("GET", path)).status == 404


async def test_all_wrong_fields_of_an_export_are_reported(house: House) -> None:
    await prepare_model(house)
    config = {
        "exportFormatId": "tf-saved-model",
        "imageDestination": {"outputUri": "us-docker.pkg.dev/p/r/i"},
        "artifactDestination": {"outputUriPrefix": "gs://bucket/m/below"},
    }
    answer = await house.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
    others = {"output_config.export_format_id", "output_config.image_destination"}
    assert fields(answer) == {WHERE} | others
    for prefix in ("", "out", "gs://nowhere/out", "gs://theirs/out", "gs://bucket/m"):
        config = {"artifactDestination": {"outputUriPrefix": prefix}}
        answer = await house.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
        assert fields(answer) == {WHERE}, prefix
    assert fields(await house.call("POST", f"{MODELS}/m1:export", {})) == {WHERE}
    assert "operations" not in await house.result("GET", f"{LOCATION}/operations?filter=done=false")


async def test_dataset_is_exported_as_one_set_of_files(house: House) -> None:
    path = await table(house)
    house.files.gate.clear()
    running = await house.result("POST", f"{path}:export", export_body())
    assert "done" not in running
    directory = running["metadata"]["gcsOutputDirectory"]
    assert directory.startswith("gs://bucket/out/dataset-")
    house.files.gate.set()
    done = await ended(house, running)
    assert done["response"]["exportedFiles"] == [f"{directory}/data-00000.csv"]
    assert done["response"]["dataStats"]["trainingDataItemsCount"] == "2"
    objects = house.files.buckets.objects
    assert objects[f"{directory}/data-00000.csv"] == b"id,x\n1,a\n2,b\n"
    assert not [uri for uri in objects if "/test-" in uri]


async def test_dataset_is_exported_by_splits(house: House) -> None:
    path = await table(house)
    split = {"trainingFraction": 1.0}
    done = await ended(
        house, await house.result("POST", f"{path}:export", export_body(fractionSplit=split))
    )
    names = [uri.rpartition("/")[2] for uri in done["response"]["exportedFiles"]]
    assert names == ["training-00000.csv", "validation-00000.csv", "test-00000.csv"]


async def test_invalid_dataset_export_is_rejected(house: House) -> None:
    path, images = await table(house), await made(house, "image")
    nowhere: dict[str, Any] = {"exportConfig": {}}
    theirs: dict[str, Any] = {
        "exportConfig": {"gcsDestination": {"outputUriPrefix": "gs://theirs/x"}}
    }
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
        assert field in fields(await house.call("POST", f"{of}:export", wrong)), wrong


async def test_imported_items_are_exported_in_googles_format(house: House) -> None:
    path = await made(house, "image")
    house.files.buckets.objects["gs://bucket/photos.csv"] = b"gs://bucket/1.jpg,daisy\n"
    await house.result("POST", f"{path}:import", import_body(["gs://bucket/photos.csv"]))
    done = await ended(house, await house.result("POST", f"{path}:export", export_body()))
    (uri,) = done["response"]["exportedFiles"]
    assert b'"displayName": "daisy"' in house.files.buckets.objects[uri]

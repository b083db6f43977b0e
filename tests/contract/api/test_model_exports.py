"""Exports of models over a real store: what is copied where, what is refused, and what outlives a service
(facts/models#export)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.refusals import fields
from tests.contract.api.test_models import MODELS, PLACE, shown, uploaded
from tests.unit.test_specs_pipeline import MODEL
from trainshed.core.errors import PermissionDenied, RequestError, Unavailable

OUTPUT = "gs://bucket/out/model-export-my-model--1--2025-10-09T08:53:20.000Z/"
TREE = {"gs://bucket/m/model.pt": b"weights", "gs://bucket/m/variables/v-0": b"more"}


async def exportable(house: House) -> None:
    house.copies.content = {**TREE, "gs://bucket/m-old/model.pt": b"another one"}
    model = MODEL | {"displayName": "my model/(1)", "artifactUri": "gs://bucket/m"}
    await uploaded(house, model, modelId="m1")


async def begun(house: House, model: str = "m1", **config: Any) -> dict[str, Any]:
    config = {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}} | config
    return await house.result("POST", f"{MODELS}/{model}:export", {"outputConfig": config})


async def ended(house: House, operation: dict[str, Any]) -> dict[str, Any]:
    answer = await house.call("POST", f"/v1/{operation['name']}:wait?timeout=20s")
    assert answer.json["done"] is True, answer.body
    return answer.json


async def test_a_model_with_artifacts_says_that_it_can_be_exported(house: House) -> None:
    await exportable(house)
    await uploaded(house, modelId="bare")
    (format_,) = (await shown(house, "m1"))["supportedExportFormats"]
    assert format_ == {"id": "custom-trained", "exportableContents": ["ARTIFACT"]}
    assert "supportedExportFormats" not in await shown(house, "bare")


async def test_an_export_copies_the_model_and_says_where_to(house: House) -> None:
    await exportable(house)
    house.copies.gate.clear()
    running = await begun(house, "m1@default", exportFormatId="custom-trained")
    assert "done" not in running
    metadata = running["metadata"]
    assert metadata["@type"].endswith("v1.ExportModelOperationMetadata")
    assert metadata["outputInfo"] == {"artifactOutputUri": OUTPUT}
    house.copies.gate.set()
    done = await ended(house, running)
    assert done["response"]["@type"].endswith("v1.ExportModelResponse")
    assert done["metadata"]["outputInfo"] == {"artifactOutputUri": OUTPUT}
    copied = {uri: body for uri, body in house.copies.content.items() if uri.startswith(OUTPUT)}
    assert copied == {f"{OUTPUT}model.pt": b"weights", f"{OUTPUT}variables/v-0": b"more"}
    (export,) = house.copies.opened
    assert (export.project, export.email) == ("p1", "owner@trainshed.local")


async def test_an_export_outlives_its_service(house: House) -> None:
    await exportable(house)
    house.copies.gate.clear()
    running = await begun(house)
    await house.copies.waits.wait()
    await house.exports.close()
    assert "done" not in await house.result("GET", f"/v1/{running['name']}")
    house.copies.gate.set()
    another = house.new_worker()
    await another.start()
    assert "error" not in await ended(house, running)
    assert house.copies.copied == [f"{OUTPUT}model.pt", f"{OUTPUT}variables/v-0"]
    await another.close()


@pytest.mark.parametrize(
    ("failure", "code"),
    [(PermissionDenied("that bucket is not yours"), 7), (Unavailable("the buckets restart"), 14)],
)
async def test_an_export_that_cannot_be_made_says_why(
    house: House, failure: RequestError, code: int
) -> None:
    await exportable(house)
    house.copies.faults[f"{OUTPUT}model.pt"] = [failure]
    error = (await ended(house, await begun(house)))["error"]
    assert error["code"] == code
    assert f"{PLACE}/models/m1@1 was not exported: {failure}" in error["message"]


@pytest.mark.parametrize("change", ["overwritten", "deleted"])
async def test_a_model_that_changes_meanwhile_is_told(house: House, change: str) -> None:
    await exportable(house)
    house.copies.gate.clear()
    running = await begun(house)
    await house.copies.waits.wait()
    house.copies.content["gs://bucket/m/model.pt"] = b"another generation"
    if change == "deleted":
        del house.copies.content["gs://bucket/m/model.pt"]
    house.copies.gate.set()
    error = (await ended(house, running))["error"]
    assert error["code"] == 9
    assert f"the copy at {OUTPUT} is not whole" in error["message"]
    assert house.copies.copied == []


async def test_a_model_whose_artifacts_are_gone_is_told(house: House) -> None:
    await exportable(house)
    house.copies.content.clear()
    error = (await ended(house, await begun(house)))["error"]
    assert (error["code"], "nothing at gs://bucket/m/ any more" in error["message"]) == (9, True)


async def test_a_cancelled_export_copies_nothing_more(house: House) -> None:
    await exportable(house)
    house.copies.gate.clear()
    running = await begun(house)
    assert (await house.call("DELETE", f"/v1/{running['name']}")).error["status"] == (
        "FAILED_PRECONDITION"
    )
    assert (await house.call("POST", f"/v1/{running['name']}:cancel")).status == 200
    done = await ended(house, running)
    assert done["error"]["code"] == 1
    assert OUTPUT in done["error"]["message"]
    house.copies.gate.set()
    await house.exports.close()
    assert house.copies.copied == []
    assert (await house.call("DELETE", f"/v1/{running['name']}")).status == 200
    assert (await house.call("GET", f"/v1/{running['name']}")).status == 404


async def test_every_fault_of_an_export_is_named(house: House) -> None:
    await exportable(house)
    config = {
        "exportFormatId": "tf-saved-model",
        "imageDestination": {"outputUri": "us-docker.pkg.dev/p/r/i"},
        "artifactDestination": {"outputUriPrefix": "gs://bucket/m/below"},
    }
    answer = await house.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
    where = "output_config.artifact_destination.output_uri_prefix"
    assert fields(answer) == {
        where,
        "output_config.export_format_id",
        "output_config.image_destination",
    }
    for prefix in ("", "out", "gs://nowhere/out", "gs://theirs/out"):
        config = {"artifactDestination": {"outputUriPrefix": prefix}}
        answer = await house.call("POST", f"{MODELS}/m1:export", {"outputConfig": config})
        assert fields(answer) == {where}, prefix
    assert fields(await house.call("POST", f"{MODELS}/m1:export", {})) == {where}


async def test_what_has_no_artifacts_or_is_not_there_is_not_exported(house: House) -> None:
    await uploaded(house, modelId="bare")
    body = {"outputConfig": {"artifactDestination": {"outputUriPrefix": "gs://bucket/out"}}}
    answer = await house.call("POST", f"{MODELS}/bare:export", body)
    assert answer.error["status"] == "FAILED_PRECONDITION"
    for missing in ("none", "bare@7"):
        answer = await house.call("POST", f"{MODELS}/{missing}:export", body)
        assert answer.error["status"] == "NOT_FOUND", missing
    listed = await house.result("GET", f"{LOCATION}/operations?filter=done=false")
    assert "operations" not in listed

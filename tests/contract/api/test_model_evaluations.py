"""Evaluations of models: import, get, list, and rejected requests (facts/models#evaluations)."""

from typing import Any

from tests.contract.api.api_service import Answer, ApiService
from tests.contract.api.test_models import MODELS, PLACE, upload_model
from tests.contract.api.violations import fields
from tests.unit.test_specs_pipeline import MODEL

SCHEMA = "gs://google-cloud-aiplatform/schema/modelevaluation/classification_metrics_1.0.0.yaml"
EVALUATION: dict[str, Any] = {
    "displayName": "holdout",
    "metricsSchemaUri": SCHEMA,
    "metrics": {"auPrc": 0.875, "classes": ["a", None, {"recall": [0.5, 1]}], "empty": {}},
    "metadata": {"pipeline_job_id": 7},
    "sliceDimensions": ["annotationSpec"],
}


async def import_evaluation(service: ApiService, model: str = "m1", **change: Any) -> dict[str, Any]:
    body = {"modelEvaluation": EVALUATION | change}
    return await service.result("POST", f"{MODELS}/{model}/evaluations:import", body)


async def list_evaluations(service: ApiService, model: str, query: str = "") -> list[str]:
    answer = await service.result("GET", f"{MODELS}/{model}/evaluations{query}")
    return [evaluation["displayName"] for evaluation in answer.get("modelEvaluations", [])]


async def test_imported_evaluation_is_returned_unchanged(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    view = await import_evaluation(service)
    assert {key: view[key] for key in EVALUATION} == EVALUATION
    assert view["name"].startswith(f"{PLACE}/models/m1/evaluations/")
    assert view["createTime"] == "2025-10-09T08:53:20Z"
    assert await service.result("GET", f"/v1/{view['name']}") == view


async def test_evaluations_belong_to_one_model_version(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    model = MODEL | {"versionAliases": ["new"]}
    await upload_model(service, model, parentModel=f"{PLACE}/models/m1")
    for name, parent in (("first", "m1"), ("second", "m1@1"), ("third", "m1@new")):
        await import_evaluation(service, parent, displayName=name)
    assert (
        await list_evaluations(service, "m1")
        == await list_evaluations(service, "m1@1")
        == ["second", "first"]
    )
    assert await list_evaluations(service, "m1@2") == ["third"]
    page = await service.result("GET", f"{MODELS}/m1/evaluations?pageSize=1")
    token = page["nextPageToken"]
    assert await list_evaluations(service, "m1", f"?pageSize=1&pageToken={token}") == ["first"]
    answer = await service.call("GET", f"{MODELS}/m1@2/evaluations?pageToken={token}")
    assert fields(answer) == {"page_token"}
    await service.call("DELETE", f"{MODELS}/m1")
    assert (await service.call("GET", f"/v1/{page['modelEvaluations'][0]['name']}")).status == 404
    await upload_model(service, modelId="m1")
    assert await list_evaluations(service, "m1") == []


async def test_wrong_fields_of_an_evaluation_are_reported(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    path = f"{MODELS}/m1/evaluations:import"
    answer = await service.call("POST", path, {"modelEvaluation": {"displayName": "x" * 129}})
    assert fields(answer) == {"model_evaluation.display_name"}
    long = await service.call("POST", path, {"modelEvaluation": {"metrics": "y" * 1_000_000}})
    assert "1,000,000 bytes as JSON" in str(long.error)
    assert fields(await service.call("GET", f"{MODELS}/m1/evaluations?filter=size=3")) == {"filter"}


async def test_missing_models_and_evaluations_are_not_found(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    name = (await import_evaluation(service))["name"]
    body = {"modelEvaluation": EVALUATION}
    other = name.replace("projects/p1", "projects/p2")
    calls: list[Answer] = [
        await service.call("POST", f"{MODELS}/none/evaluations:import", body),
        await service.call("POST", f"{MODELS}/m1@2/evaluations:import", body),
        await service.call("GET", f"{MODELS}/none/evaluations"),
        await service.call("GET", f"{MODELS}/m1/evaluations/9"),
        await service.call("GET", f"/v1/{other}"),
    ]
    assert {(answer.status, answer.error["status"]) for answer in calls} == {(404, "NOT_FOUND")}
    assert fields(await service.call("GET", f"{MODELS}/m1/evaluations/x")) == {"name"}

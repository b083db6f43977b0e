"""Models by the Vertex SDK, unmodified, over gRPC with TLS (facts/models)."""

from typing import Any

import pytest

from tests.e2e.running import Service, seen_by_sdk

_PROGRAM = """
model = aiplatform.Model.upload(
    display_name="kept",
    artifact_uri="gs://trainshed/weights",
    serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
)
seen = {}
copy = model.copy(destination_location="europe-west4", destination_model_id="copy")
seen["copy"] = [copy.resource_name, copy.uri, copy.gca_resource.original_model_info.model]
client = model.api_client.select_version("v1")
for number in (1, 2):
    evaluation = aiplatform.gapic.ModelEvaluation(
        display_name=f"e{number}", metrics_schema_uri="gs://x/m.yaml", metrics={"auPrc": number / 4}
    )
    imported = client.import_model_evaluation(
        parent=model.versioned_resource_name, model_evaluation=evaluation
    )
seen["evaluations"] = [dict(each.metrics) for each in model.list_model_evaluations()]
seen["first"] = dict(model.get_model_evaluation().metrics)
seen["by id"] = dict(model.get_model_evaluation(imported.name.rpartition("/")[2]).metrics)
seen["model"] = model.name
print("SEEN", json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(service: Service) -> dict[str, Any]:
    service.put("trainshed", "weights/model.pt", b"weights")
    return seen_by_sdk(service, _PROGRAM)


def test_a_model_is_copied_to_another_location(seen: dict[str, Any]) -> None:
    """spec/clients#surface"""
    name, uri, original = seen["copy"]
    assert name.endswith("/locations/europe-west4/models/copy")
    assert uri == "gs://trainshed/weights"
    assert original.endswith(f"/locations/us-central1/models/{seen['model']}@1")


def test_evaluations_are_read_back(seen: dict[str, Any]) -> None:
    """facts/models#evaluations"""
    assert seen["evaluations"] == [{"auPrc": 0.5}, {"auPrc": 0.25}]
    assert seen["first"] == seen["by id"] == {"auPrc": 0.5}

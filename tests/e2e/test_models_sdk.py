"""Models by the Vertex SDK, unmodified, over gRPC with TLS and over REST (facts/models)."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import PROJECT, ByTransport, Service, given_by_env, running, seen_by, start

_PROGRAM = """
import json, sys
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

transport, endpoint, token = sys.argv[1:]
aiplatform.init(
    project="trainshed",
    location="us-central1",
    api_endpoint=endpoint,
    api_transport=transport,
    credentials=Credentials(token),
)
model = aiplatform.Model.upload(
    display_name=f"kept {transport}",
    artifact_uri="gs://trainshed/weights",
    serving_container_image_uri="us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
)
formats = {key: [each.name for each in kinds] for key, kinds in model.supported_export_formats.items()}
seen = {"formats": formats}
for sync in (True, False):
    told = model.export_model(
        "custom-trained", artifact_destination=f"gs://trainshed/out/{transport}", sync=sync
    )
    seen.setdefault("outputs", []).append(told["artifactOutputUri"])
try:
    model.export_model("custom-trained", artifact_destination="gs://nowhere/out")
except Exception as refused:
    seen["refused"] = str(refused)
copy = model.copy(destination_location="europe-west4", destination_model_id=f"copy-{transport}")
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
transports = pytest.mark.parametrize(
    "transport", ["grpc", pytest.param("rest", marks=pytest.mark.soak)]
)
"""REST: test_pipelines.py, and every call of it tests/contract/api/test_models.py."""
MODELS = "/v1/projects/trainshed/locations/us-central1/models"


@pytest.fixture(scope="module")
def seen(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    service.put("trainshed", "weights/model.pt", b"weights")
    service.put("trainshed", "weights/variables/0", b"more")
    path = tmp_path_factory.mktemp("models") / "program.py"
    path.write_text(_PROGRAM)
    endpoints = {"grpc": str(service.extra["grpc_tls"]), "rest": service.rest}

    def run(transport: str) -> Any:
        given = (transport, endpoints[transport], service.token)
        return seen_by(path, *given, variables=given_by_env(service))

    return ByTransport(run)


@transports
def test_a_model_is_exported_whole(seen: dict[str, Any], service: Service, transport: str) -> None:
    """facts/models#export"""
    assert seen[transport]["formats"] == {"custom-trained": ["ARTIFACT"]}
    first, second = seen[transport]["outputs"]
    assert first != second
    prefix = f"gs://trainshed/out/{transport}/model-export-kept-{transport}-"
    for output in (first, second):
        assert output.startswith(prefix)
        directory = service.data / "buckets" / output.removeprefix("gs://")
        assert (directory / "model.pt").read_bytes() == b"weights"
        assert (directory / "variables" / "0").read_bytes() == b"more"
    assert "nowhere" in seen[transport]["refused"]


@transports
def test_a_model_is_copied_to_another_location(seen: dict[str, Any], transport: str) -> None:
    """spec/clients#surface"""
    name, uri, original = seen[transport]["copy"]
    assert name.endswith(f"/locations/europe-west4/models/copy-{transport}")
    assert uri == "gs://trainshed/weights"
    assert original.endswith(f"/locations/us-central1/models/{seen[transport]['model']}@1")


@transports
def test_evaluations_are_read_back(seen: dict[str, Any], transport: str) -> None:
    """facts/models#evaluations"""
    told = seen[transport]
    assert told["evaluations"] == [{"auPrc": 0.5}, {"auPrc": 0.25}]
    assert told["first"] == told["by id"] == {"auPrc": 0.5}


@pytest.mark.soak  # tests/contract/api/test_model_exports.py: it outlives its service.
def test_an_export_goes_on_after_a_kill(tmp_path: Path) -> None:
    """spec/invariants#durability: an operation that was acknowledged comes to its end, and whole."""
    count, data = 400, tmp_path / "data"
    service = start(data)
    for number in range(count):
        service.put("trainshed", f"many/{number:03}", b"x" * number)
    model = {"displayName": "many", "artifactUri": "gs://trainshed/many"}
    service.call("POST", f"{MODELS}:upload", {"model": model, "modelId": "many"})
    body = {"outputConfig": {"artifactDestination": {"outputUriPrefix": "gs://trainshed/out"}}}
    operation = service.call("POST", f"{MODELS}/many@1:export", body)
    output = operation["metadata"]["outputInfo"]["artifactOutputUri"].removeprefix("gs://")
    directory = data / "buckets" / output
    end = time.monotonic() + 30
    while not directory.is_dir() or len(list(directory.iterdir())) < 5:
        assert time.monotonic() < end
    service.kill()
    assert len(list(directory.iterdir())) < count, "it was over before the kill"
    with running(data) as again:
        done = again.call("POST", f"/v1/{operation['name']}:wait?timeout=60s")
        assert done["done"] and "error" not in done, json.dumps(done)
        names = {path.name: path.stat().st_size for path in directory.iterdir()}
        assert names == {f"{number:03}": number for number in range(count)}


@pytest.mark.gcloud
@needs_gcloud
@pytest.mark.soak  # For all clients: tests/contract/api/test_models.py.
def test_gcloud_keeps_models(service: Service, tmp_path: Path) -> None:
    """What `gcloud ai models` has of it."""
    gcloud = Gcloud(service, tmp_path)
    service.put("trainshed", "by-gcloud/model.pt", b"weights")
    region = "--region=us-central1"
    gcloud.run(
        *("ai", "models", "upload", region, "--display-name=g", "--model-id=by-gcloud"),
        "--artifact-uri=gs://trainshed/by-gcloud",
        "--container-image-uri=us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest",
        "--version-aliases=gold",
    )
    shown = gcloud.run("ai", "models", "describe", "by-gcloud@gold", region, "--format=json")
    model = json.loads(shown.stdout)
    assert set(model["versionAliases"]) == {"default", "gold"}
    assert model["supportedExportFormats"] == [
        {"id": "custom-trained", "exportableContents": ["ARTIFACT"]}
    ]
    listed = gcloud.run("ai", "models", "list-version", "by-gcloud", region, "--format=json")
    assert [each["versionId"] for each in json.loads(listed.stdout)] == ["1"]
    model_name = f"projects/{PROJECT}/locations/us-central1/models/by-gcloud"
    targets = f"--source-model={model_name}", f"--destination-parent-model={model_name}"
    gcloud.run("ai", "models", "copy", region, *targets)
    gcloud.run("ai", "models", "delete", "by-gcloud", region, "--quiet")
    service.call("GET", f"{MODELS}/by-gcloud", expect=404)

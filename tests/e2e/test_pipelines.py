"""Training pipelines with the Vertex SDK's training jobs and the generated client: programs in, models out
(spec/submit, facts/resources#pipelines).

The SDK's jobs run in a separate program, over REST, in parallel.
"""

import json
from typing import Any

import pytest

from tests.e2e.packages import source_package, upload
from tests.e2e.running import SKLEARN, Service, seen_by_sdk
from tests.e2e.tuning_programs import BUCKET, bucket
from tests.isolation import needs_view

pytestmark = needs_view
SERVING = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-6:latest"

SAVE_ARGUMENTS = """
import json, os, pathlib, sys
directory = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
directory.mkdir(parents=True)
(directory / "model.json").write_text(json.dumps(sys.argv[1:]))
"""
"""Saves its arguments as its model."""

_PROGRAM = """
scratch, image, serving, package, program = arguments
script = pathlib.Path(scratch, "script.py")
script.write_text(program)

def wanted(kind, **more):
    return {
        "machine_type": "n1-standard-4",
        "base_output_dir": f"gs://trainshed/models/sdk/{kind}",
        "sync": False,
        **more,
    }

def told(model):
    return {
        "name": model.resource_name,
        "version": model.version_id,
        "aliases": sorted(model.version_aliases),
        "display_name": model.display_name,
        "uri": model.uri,
        "image": model.container_spec.image_uri,
        "labels": dict(model.labels),
    }

scripted = aiplatform.CustomTrainingJob(
    display_name="script",
    script_path=str(script),
    container_uri=image,
    model_serving_container_image_uri=serving,
)
contained = aiplatform.CustomContainerTrainingJob(
    display_name="container",
    container_uri=image,
    command=["python3", "-c", program],
    model_serving_container_image_uri=serving,
)
empty = aiplatform.CustomContainerTrainingJob(
    display_name="empty",
    container_uri=image,
    command=["python3", "-c", "print('no model')"],
    model_serving_container_image_uri=serving,
)
first = scripted.run(
    **wanted("script", args=["--epochs", "3"], model_display_name="first", model_labels={"kind": "script"})
)
second = contained.run(**wanted("container", model_id="named"))
nothing = empty.run(**wanted("empty"))
seen = {}
for model in (first, second):
    model.wait()
seen["script"], seen["container"] = told(first), told(second)
seen["states"] = [scripted.state.name, contained.state.name]
seen["get_model"] = scripted.get_model().resource_name == first.resource_name
try:
    empty.wait()
    seen["empty"] = "no error"
except RuntimeError as error:
    seen["empty"] = str(error)

# A new version of the first model.
packaged = aiplatform.CustomPythonPackageTrainingJob(
    display_name="package",
    python_package_gcs_uri=package,
    python_module_name="trainer.task",
    container_uri=image,
    model_serving_container_image_uri=serving,
)
better = packaged.run(
    **wanted(
        "package",
        args=["--depth", 2],
        replica_count=2,
        parent_model=first.resource_name,
        is_default_version=False,
        model_version_aliases=["candidate"],
        model_version_description="deeper",
    )
)
better.wait()
seen["package"] = told(better)
versions = aiplatform.Model(first.resource_name).versioning_registry.list_versions()
seen["versions"] = [[each.version_id, sorted(each.version_aliases)] for each in versions]
seen["default"] = aiplatform.Model(first.resource_name).uri
seen["candidate"] = aiplatform.Model(first.resource_name, version="candidate").uri
print("SEEN " + json.dumps(seen))
"""


@pytest.fixture(scope="module")
def ran(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the program's view."""
    scratch = tmp_path_factory.mktemp("pipelines")
    package = upload(service, "pipelines/pkg-1.0.tar.gz", source_package(PACKAGE_TASK))
    arguments = (str(scratch), SKLEARN, SERVING, package, SAVE_ARGUMENTS)
    return seen_by_sdk(service, _PROGRAM, *arguments, transport="rest")


PACKAGE_TASK = SAVE_ARGUMENTS.replace(
    "directory.mkdir", 'if "-workerpool1-" in os.environ["HOSTNAME"]: sys.exit()\ndirectory.mkdir'
)


def read_model(service: Service, uri: str) -> Any:
    """Return the model that a program saved at `uri`."""
    path = bucket(service).parent / uri.removeprefix("gs://") / "model.json"
    return json.loads(path.read_text())


def test_script_and_container_pipelines_register_models(ran: dict[str, Any], service: Service) -> None:
    """`.run()` returns a Model whose artifacts are in AIP_MODEL_DIR."""
    assert ran["states"] == ["PIPELINE_STATE_SUCCEEDED"] * 2
    assert ran["get_model"]
    script, container = ran["script"], ran["container"]
    assert script["display_name"] == "first"
    assert (script["version"], script["aliases"]) == ("1", ["default"])
    assert script["labels"] == {"kind": "script"}
    assert (script["image"], container["image"]) == (SERVING, SERVING)
    assert script["uri"].rstrip("/") == f"gs://{BUCKET}/models/sdk/script/model"
    assert read_model(service, script["uri"]) == ["--epochs", "3"]
    assert container["name"].endswith("/models/named")
    assert read_model(service, container["uri"]) == []


def test_package_pipeline_registers_a_second_version(ran: dict[str, Any], service: Service) -> None:
    """facts/resources#pipelines: parentModel creates a version instead of a model, and the default version is
    explicit.
    """
    package = ran["package"]
    assert package["name"] == ran["script"]["name"]
    assert (package["version"], package["aliases"]) == ("2", ["candidate"])
    assert read_model(service, package["uri"]) == ["--depth", "2"]
    assert sorted(ran["versions"]) == [["1", ["default"]], ["2", ["candidate"]]]
    assert (ran["default"], ran["candidate"]) == (ran["script"]["uri"], package["uri"])


def test_program_without_a_model_fails_its_pipeline(ran: dict[str, Any]) -> None:
    """The existence of artifacts is checked, and the error contains a remedy."""
    job = ran["empty"]
    assert f"gs://{BUCKET}/models/sdk/empty/model contains no model" in job
    assert "AIP_MODEL_DIR" in job

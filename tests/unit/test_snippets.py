"""The same job for other clients: what is printed says all of it, in words that those clients take."""

import ast
import json
import shlex
from typing import Any

import pytest

from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet

PACKAGE: dict[str, Any] = {
    "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
    "packageUris": ["gs://b/p.whl"],
    "pythonModule": "trainer.task",
    "args": ["--epochs", "3"],
}
POOL: dict[str, Any] = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "pythonPackageSpec": PACKAGE,
}


def custom(**spec: Any) -> dict[str, Any]:
    return {"displayName": "first try", "jobSpec": {"workerPoolSpecs": [POOL], **spec}}


def gcloud(api: Api, job: dict[str, Any]) -> list[str]:
    return shlex.split(snippet(SnippetForm.GCLOUD, api, "p", "r", job).replace("\\\n", ""))


def test_a_plain_job_is_one_command_of_gcloud() -> None:
    words = gcloud(Api.VERTEX, custom(serviceAccount="me@p"))
    assert words == [
        *("gcloud", "ai", "custom-jobs", "create", "--region=r", "--display-name=first try"),
        "--service-account=me@p",
        "--worker-pool-spec=machine-type=n1-standard-4,replica-count=1,"
        "executor-image-uri=us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest,"
        "python-module=trainer.task",
        "--python-package-uris=gs://b/p.whl",
        "--args=--epochs,3",
    ]


def test_words_that_hold_commas_are_parted_by_something_else() -> None:
    pool = {"containerSpec": {"imageUri": "i", "command": ["sh", "-c", "echo a,b; exit"]}}
    words = gcloud(Api.VERTEX, {"jobSpec": {"workerPoolSpecs": [pool]}})
    assert words[-1] == "--command=^|^sh|-c|echo a,b; exit"


@pytest.mark.parametrize(
    "spec",
    [
        {"scheduling": {"timeout": "60s"}},
        {"workerPoolSpecs": [POOL, {**POOL, "pythonPackageSpec": {**PACKAGE, "args": ["x"]}}]},
        {"workerPoolSpecs": [{**POOL, "diskSpec": {"bootDiskSizeGb": 200}}]},
        {"workerPoolSpecs": [{"containerSpec": {"imageUri": "i", "env": [{"name": "A"}]}}]},
    ],
)
def test_what_gcloud_has_no_flags_for_goes_into_its_file(spec: dict[str, Any]) -> None:
    job = custom(**spec)
    text = snippet(SnippetForm.GCLOUD, Api.VERTEX, "p", "r", job)
    head, _, rest = text.partition("\n")
    assert head == "cat > job.json <<'END'"
    content, _, command = rest.partition("\nEND\n")
    assert json.loads(content) == job["jobSpec"]
    assert "--config=job.json" in command


def test_a_job_of_ml_is_a_command_of_gcloud() -> None:
    training = {
        "scaleTier": "BASIC_GPU",
        "region": "us-east1",
        "packageUris": ["gs://b/p.whl"],
        "pythonModule": "trainer.task",
        "args": ["--epochs", "3"],
        "jobDir": "gs://b/out",
    }
    assert gcloud(Api.ML, {"jobId": "one", "trainingInput": training}) == [
        *("gcloud", "ai-platform", "jobs", "submit", "training", "one", "--region=us-east1"),
        *("--job-dir=gs://b/out", "--module-name=trainer.task", "--packages=gs://b/p.whl"),
        *("--scale-tier=basic-gpu", "--", "--epochs", "3"),
    ]


def called(text: str, function: str) -> dict[str, Any]:
    """The arguments that a Python program gives to a function, those that are values."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            return {
                keyword.arg or "": ast.literal_eval(keyword.value)
                for keyword in node.keywords
                if not isinstance(keyword.value, ast.Name)
            }
    raise AssertionError(f"{function} is not called in:\n{text}")


def test_a_plain_job_is_the_sdks_own_class() -> None:
    job = {**custom(baseOutputDirectory={"outputUriPrefix": "gs://b/o"}), "labels": {"aB": "c"}}
    text = snippet(SnippetForm.PYTHON, Api.VERTEX, "p", "r", job)
    given = called(text, "aiplatform.CustomJob")
    assert given["display_name"] == "first try"
    assert given["base_output_dir"] == "gs://b/o"
    assert given["labels"] == {"aB": "c"}
    (pool,) = given["worker_pool_specs"]
    assert pool["replica_count"] == 1
    assert pool["python_package_spec"]["package_uris"] == ["gs://b/p.whl"]
    assert called(text, "job.submit") == {}


def test_what_the_sdks_class_has_no_words_for_goes_to_its_client() -> None:
    job = custom(scheduling={"timeout": "60s", "disableRetries": True})
    text = snippet(SnippetForm.PYTHON, Api.VERTEX, "p", "r", job)
    given = called(text, "client.create_custom_job")
    assert given["parent"] == "projects/p/locations/r"
    assert given["custom_job"]["job_spec"]["scheduling"] == {
        "timeout": {"seconds": 60},
        "disable_retries": True,
    }


def test_texts_are_the_same_in_python() -> None:
    """A character beyond the first plane was two halves, which no client can encode."""
    name = 'naïve "\U0001f680" \\ \n\x7f'
    text = snippet(SnippetForm.PYTHON, Api.VERTEX, "p", "r", {**custom(), "displayName": name})
    assert called(text, "aiplatform.CustomJob")["display_name"] == name


def test_json_is_the_body_of_create() -> None:
    assert json.loads(snippet(SnippetForm.JSON, Api.VERTEX, "p", "r", custom())) == custom()

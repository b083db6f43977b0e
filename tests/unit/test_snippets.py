"""Code snippets that create the same job with other clients: complete, and accepted by these clients."""

import ast
import json
import shlex
from typing import Any

from tests.unit.specs_requests import custom_job, package
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet


def custom(**spec: Any) -> dict[str, Any]:
    return custom_job(package(packageUris=["gs://b/p.whl"], args=["--epochs", "3"]), **spec) | {
        "displayName": "first try"
    }


def test_code_snippet_of_an_ml_job_is_an_equivalent_gcloud_command() -> None:
    training = {
        "scaleTier": "BASIC_GPU",
        "region": "us-east1",
        "packageUris": ["gs://b/p.whl"],
        "pythonModule": "trainer.task",
        "args": ["--epochs", "3"],
        "jobDir": "gs://b/out",
    }
    job = {"jobId": "one", "trainingInput": training}
    text = snippet(SnippetForm.GCLOUD, Api.ML, "p", "r", job)
    assert shlex.split(text.replace("\\\n", "")) == [
        *("gcloud", "ai-platform", "jobs", "submit", "training", "one", "--region=us-east1"),
        *("--job-dir=gs://b/out", "--module-name=trainer.task", "--packages=gs://b/p.whl"),
        *("--scale-tier=basic-gpu", "--", "--epochs", "3"),
    ]


def test_python_code_snippet_creates_the_job_with_the_client_library() -> None:
    job = custom(scheduling={"timeout": "60s"}, serviceAccount="it'''s")
    tree = ast.parse(snippet(SnippetForm.PYTHON, Api.VERTEX, "p", "r", job))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (read,) = [call for call in calls if ast.unparse(call.func).endswith("CustomJob.from_json")]
    assert json.loads(ast.literal_eval(read.args[0])) == job


def test_code_snippet_of_a_custom_job_is_a_gcloud_command_with_a_file() -> None:
    job = custom(serviceAccount="me@p")
    head, _, rest = snippet(SnippetForm.GCLOUD, Api.VERTEX, "p", "r", job).partition("\n")
    assert head == "cat > job.json <<'END'"
    content, _, command = rest.partition("\nEND\n")
    assert json.loads(content) == job["jobSpec"]
    assert shlex.split(command.replace("\\\n", "")) == [
        *("gcloud", "ai", "custom-jobs", "create", "--region=r", "--display-name=first try"),
        "--config=job.json",
    ]

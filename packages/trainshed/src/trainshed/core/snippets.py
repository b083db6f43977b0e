"""Formats a job of either API as a gcloud command, as a program with the client libraries, and as JSON, for
use with other clients.

The job is the JSON that its API's create method accepts. The user of a snippet has configured their shell for
the service (`trainshed env`).
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

from trainshed.core.names import Api

_FILE = "job.json"


class SnippetForm(StrEnum):
    """The output format of a snippet."""

    GCLOUD = "gcloud"
    PYTHON = "python"
    JSON = "json"


def snippet(form: SnippetForm, api: Api, project: str, region: str, job: Mapping[str, Any]) -> str:
    """Return a snippet that creates the job. The text ends with a line end."""
    if form is SnippetForm.JSON:
        return _json(job) + "\n"
    if form is SnippetForm.GCLOUD:
        return _gcloud_ml(region, job) if api is Api.ML else _gcloud_vertex(region, job)
    return _python_ml(project, job) if api is Api.ML else _python_vertex(project, region, job)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


# gcloud


def _gcloud_vertex(region: str, job: Mapping[str, Any]) -> str:
    flags = [f"--region={region}", _flag("display-name", str(job.get("displayName", "job")))]
    if "trialJobSpec" not in job:
        words = ["gcloud ai custom-jobs create", *flags, *_labels(job)]
        return _with_file(words, job.get("jobSpec") or {})
    counts = {"maxTrialCount": "max-trial-count", "parallelTrialCount": "parallel-trial-count"}
    flags += [f"--{option}={job[key]}" for key, option in counts.items() if key in job]
    known = {"displayName", "labels", *counts}
    config = {key: value for key, value in job.items() if key not in known}
    return _with_file(["gcloud ai hp-tuning-jobs create", *flags, *_labels(job)], config)


def _gcloud_ml(region: str, job: Mapping[str, Any]) -> str:
    training: dict[str, Any] = {**(job.get("trainingInput") or {})}
    flags = [f"--region={training.pop('region', region)}"]
    for key, flag in (
        ("jobDir", "job-dir"),
        ("pythonModule", "module-name"),
        ("runtimeVersion", "runtime-version"),
        ("pythonVersion", "python-version"),
    ):
        if value := training.pop(key, None):
            flags.append(_flag(flag, str(value)))
    if packages := training.pop("packageUris", None):
        flags.append(_list_flag("packages", packages))
    arguments = [str(text) for text in cast(Sequence[Any], training.pop("args", None) or ())]
    words = [
        f"gcloud ai-platform jobs submit training {shlex.quote(str(job.get('jobId', 'job')))}",
        *flags,
        *_labels(job),
    ]
    last = ["-- " + shlex.join(arguments)] if arguments else []
    if training.keys() == {"scaleTier"}:
        tier = str(training["scaleTier"]).lower().replace("_", "-")
        return _command([*words, f"--scale-tier={tier}", *last])
    if training:
        return _with_file(words, {"trainingInput": training}, last)
    return _command([*words, *last])


def _labels(job: Mapping[str, Any]) -> list[str]:
    labels: dict[str, Any] = job.get("labels") or {}
    return [_list_flag("labels", [f"{k}={v}" for k, v in labels.items()])] if labels else []


def _flag(name: str, value: str) -> str:
    return f"--{name}={shlex.quote(value)}"


def _list_flag(name: str, texts: Sequence[Any]) -> str:
    """Return the flag for a list. If items contain commas, the flag declares another separator in gcloud's
    syntax."""
    items = [str(text) for text in texts]
    between = next((mark for mark in ",;|~:#" if not any(mark in item for item in items)), "\x1f")
    prefix = "" if between == "," and not items[0].startswith("^") else f"^{between}^"
    return _flag(name, prefix + between.join(items))


def _command(words: Sequence[str]) -> str:
    return " \\\n    ".join(words) + "\n"


def _with_file(words: Sequence[str], config: Any, last: Sequence[str] = ()) -> str:
    """Return shell lines that write a file with the options that have no flags, followed by the command that
    reads the file."""
    file = f"cat > {_FILE} <<'END'\n{_json(config)}\nEND\n"
    return file + _command([*words, f"--config={_FILE}", *last])


# Python


def _python_vertex(project: str, region: str, job: Mapping[str, Any]) -> str:
    tuning = "trialJobSpec" in job
    kind = "HyperparameterTuningJob" if tuning else "CustomJob"
    field = "hyperparameter_tuning_job" if tuning else "custom_job"
    return (
        "import os\nfrom google.cloud import aiplatform_v1\n\n"
        "client = aiplatform_v1.JobServiceClient(\n"
        '    transport="rest",\n'
        '    client_options={"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]},\n)\n'
        f"job = aiplatform_v1.{kind}.from_json({_quote(job)})\n"
        f'parent = "projects/{project}/locations/{region}"\n'
        f"print(client.create_{field}(parent=parent, {field}=job).name)\n"
    )


def _python_ml(project: str, job: Mapping[str, Any]) -> str:
    return (
        "import json\nimport os\nfrom google.api_core.client_options import ClientOptions\n"
        "from google.oauth2.credentials import Credentials\nfrom googleapiclient import discovery\n\n"
        'ml = discovery.build(\n    "ml",\n    "v1",\n    static_discovery=True,\n'
        '    client_options=ClientOptions(api_endpoint=os.environ["TRAINSHED_ENDPOINT"]),\n'
        '    credentials=Credentials(os.environ["TRAINSHED_TOKEN"]),\n)\n'
        f"job = json.loads({_quote(job)})\n"
        f'ml.projects().jobs().create(parent="projects/{project}", body=job).execute()\n'
    )


def _quote(job: Mapping[str, Any]) -> str:
    """Return the JSON of a job as a Python string literal over several lines."""
    text = _json(job).replace("'''", r"\u0027\u0027\u0027")
    return f"r'''{text}'''"

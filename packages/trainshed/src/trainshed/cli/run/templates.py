"""Builds compiled pipelines whose only task is a custom job: for schedules, and for arrays of jobs. Pure.

The task has the form of the component CustomTrainingJobOp of Google Cloud Pipeline Components. The service
carries out such tasks itself: it creates the custom job in the payload.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

Json = dict[str, Any]

RUN_ID: Final = "\0run\0"
"""In a text of a job: the ID of the pipeline job. No text of a valid job contains the character NUL."""
_INDEX: Final = "\0index\0"
_PLACEHOLDERS: Final = {RUN_ID: "{{$.pipeline_job_name}}", _INDEX: "{{$.inputs.parameters['index']}}"}
_IMAGE: Final = "gcr.io/ml-pipeline/google-cloud-pipeline-components:2.22.0"
_LAUNCHER: Final = "google_cloud_pipeline_components.container.v1.custom_job.launcher"
_OUTPUT: Final = "gcp_resources"
_MAX_INDICES: Final = 2_000
"""Maximum number of iterations of a loop."""
_IN_TEXT: Final = re.compile(r"\{\{index\}\}|\{index\}")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?", re.ASCII)
_LIMIT: Final = re.compile(r"[1-9]\d{0,5}", re.ASCII)
_PROGRAMS: Final = ("containerSpec", "container_spec", "pythonPackageSpec", "python_package_spec")
_DIRECTORIES: Final = ("outputUriPrefix", "output_uri_prefix")


@dataclass(frozen=True, slots=True)
class Array:
    """The indices of an array of jobs, in ascending order."""

    indices: tuple[int, ...]
    #: Maximum number of jobs that run at the same time; 0 = unlimited.
    parallel: int = 0

    @staticmethod
    def parse(text: str) -> "Array":
        """Parse `0-499`, `0-20:2`, `1,4,7` or `0-499%20`. Raises ValueError."""
        ranges, percent, limit = text.partition("%")
        if percent and not _LIMIT.fullmatch(limit):
            raise ValueError(f"{limit!r} after % is not a positive number")
        indices = set[int]()
        for part in ranges.split(","):
            match = _RANGE.fullmatch(part)
            if match is None:
                raise ValueError(f"{part!r} is neither an index nor a range")
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
            if not numbers:
                raise ValueError(f"the range {part} is empty")
            if len(indices) + len(numbers) > _MAX_INDICES:
                raise ValueError(f"at most {_MAX_INDICES:,} indices are allowed")
            indices.update(numbers)
        return Array(tuple(sorted(indices)), int(limit or 0))


def one_task_template(job: Mapping[str, Any], array: Array | None = None) -> Json:
    """Return a compiled pipeline whose only task runs a custom job.

    `job`: a CustomJob in JSON with a `displayName`. `array`: run the job once for each index, in a loop. Each
    job then has the variables TRAINSHED_ARRAY_INDEX and TRAINSHED_ARRAY_COUNT, its own output directory, and
    its index in place of `{index}` in its texts. `{{index}}` becomes the text `{index}`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", str(job["displayName"]).lower()).strip("-") or "job"
    task: Json = {"componentRef": {"name": "comp-job"}, "taskInfo": {"name": name}}
    component: Json = {"executorLabel": "exec-job"}
    component["outputDefinitions"] = {"parameters": {_OUTPUT: {"parameterType": "STRING"}}}
    if array is not None:
        job = _indexed(job, len(array.indices))
        index = {"index": {"parameterType": "NUMBER_INTEGER"}}
        component["inputDefinitions"] = {"parameters": index}
        raw = json.dumps(array.indices)
        task["parameterIterator"] = {"itemInput": "index", "items": {"raw": raw}}
        if array.parallel:
            task["iteratorPolicy"] = {"parallelismLimit": array.parallel}
    container = {
        "image": _IMAGE,
        "command": ["python3", "-u", "-m", _LAUNCHER],
        "args": [
            *("--type", "CustomJob", "--payload", _payload(job)),
            *("--project", "{{$.pipeline_google_cloud_project_id}}"),
            *("--location", "{{$.pipeline_google_cloud_location}}"),
            *("--gcp_resources", f"{{{{$.outputs.parameters['{_OUTPUT}'].output_file}}}}"),
        ],
    }
    return {
        "pipelineInfo": {"name": name},
        "schemaVersion": "2.1.0",
        "sdkVersion": "trainshed",
        "root": {"dag": {"tasks": {name: task}}},
        "components": {"comp-job": component},
        "deploymentSpec": {"executors": {"exec-job": {"container": container}}},
    }


def _payload(job: Mapping[str, Any]) -> str:
    """Return the JSON of a job. Texts of the user that look like placeholders are escaped."""
    text = json.dumps(job).replace("{{$", r"{{\u0024")
    for mark, placeholder in _PLACEHOLDERS.items():
        text = text.replace(json.dumps(mark)[1:-1], placeholder)
    return text


def _indexed(job: Mapping[str, Any], count: int) -> Json:
    """Return a job that contains `_INDEX` in place of its index."""
    variables = {"TRAINSHED_ARRAY_INDEX": _INDEX, "TRAINSHED_ARRAY_COUNT": str(count)}

    def convert(value: Any, key: str = "") -> Any:
        match value:
            case str():
                text = _IN_TEXT.sub(lambda m: _INDEX if m[0] == "{index}" else "{index}", value)
                is_shared = key in _DIRECTORIES and _INDEX not in text
                return f"{text.rstrip('/')}/{_INDEX}" if is_shared else text
            case dict():
                members = cast("Json", value)
                changed = {name: convert(member, name) for name, member in members.items()}
                if key in _PROGRAMS:
                    added = [{"name": name, "value": text} for name, text in variables.items()]
                    changed["env"] = [*changed.get("env", ()), *added]
                return changed
            case list():
                return [convert(element) for element in cast("Sequence[Any]", value)]
            case _:
                return value

    indexed: Json = convert(job)
    if _INDEX not in indexed["displayName"]:
        indexed["displayName"] += f"-{_INDEX}"
    return indexed

"""Builds the requests for new pipeline jobs from compiled pipelines."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import click

from trainshed.cli.client import Client
from trainshed.cli.run.job_files import JobFileError, documents
from trainshed.core.copies import RUN_INPUTS

Json = dict[str, Any]

_COMPILE: Final = "Compile it: kfp dsl compile --py pipeline.py --output pipeline.yaml"


def read_template(text: str, where: str) -> Json:
    """Return the pipeline job that a compiled pipeline, or a PipelineJob, in JSON or YAML contains. The
    service checks the compiled pipeline. `where`: the file's name. Raises click.ClickException."""
    try:
        content, *others = documents(text)
    except JobFileError as failure:
        raise click.ClickException(f"{where}: {failure}. {_COMPILE}") from None
    if not isinstance(content, dict):
        raise click.ClickException(f"{where} does not contain a compiled pipeline. {_COMPILE}")
    if any(others):
        raise click.ClickException(
            f"{where} has a second YAML document. Settings of platforms such as Kubernetes are not "
            "supported. Remove the calls of kfp.kubernetes, and compile the pipeline again."
        )
    document = cast(Json, content)
    job: Json = document if "pipelineSpec" in document else {"pipelineSpec": document}
    return {name: job[name] for name in RUN_INPUTS if name in job}


def parameter_values(texts: Sequence[str], spec: Mapping[str, Any]) -> Json:
    """Return the parameters from texts `NAME=VALUE`. If the template `spec` declares another type than text,
    a value is parsed as JSON if possible. Raises click.UsageError."""
    declared = spec.get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    values: Json = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"-p: {name!r} has no value. Write NAME=VALUE.")
        definition = declared.get(name, {})
        kind = definition.get("parameterType") or definition.get("type") or "STRING"
        values[name] = value if kind == "STRING" else _json_or_text(value, kind)
    return values


def _json_or_text(text: str, kind: str) -> Any:
    try:
        # Requests cannot contain NaN and Infinity. They remain texts, which the service rejects.
        return json.loads(text.lower() if kind == "BOOLEAN" else text, parse_constant=str)
    except ValueError:
        return text


def with_caching(spec: Mapping[str, Any], *, enabled: bool) -> Json:
    """Return a template whose tasks all have this setting of the cache, as with `enable_caching` of the
    SDK."""
    changed: Json = json.loads(json.dumps(spec))
    for component in (changed.get("root", {}), *changed.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {"enableCache": enabled}
    return changed


def collection(place: Mapping[str, str], name: str = "pipelineJobs") -> str:
    """Return the path of a collection in a project and region."""
    project, region = (quote(place[key], safe="") for key in ("project", "region"))
    return f"/v1/projects/{project}/locations/{region}/{name}"


def create(client: Client, path: str, job: Mapping[str, Any], job_id: str | None = None) -> str:
    """Create a pipeline job, and return its full name. `path`: the collection. `job_id`: None = the service
    chooses the ID. Raises RequestError, Unreachable."""
    query = f"?{urlencode({'pipelineJobId': job_id})}" if job_id else ""
    return str(client.post(f"{path}{query}", job)["name"])

"""`trainshed models`: lists the models of a project, and shows from what each version was made."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.connection import Endpoint, place_of, takes_endpoint
from trainshed.cli.groups import ListGroup
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import local_moment, parse_moment
from trainshed.cli.text.tables import Column, joined, pairs, table
from trainshed.wire.trainshed_v1.models import (
    ModelDescription,
    ModelList,
    ModelOrigin,
    ModelSummary,
    ModelVersion,
)
from trainshed.wire.trainshed_v1.record import read

_MODELS = "/trainshed/v1/models"
_INDENT = "  "

_project = click.option("--project", metavar="PROJECT", help="Project. Default: the service's.")
_region = click.option("--region", metavar="REGION", help="Region. Default: the service's.")


@click.group(cls=ListGroup)
def command() -> None:
    """Show the models of a project and what they were made of. Without a command: list them."""


@command.command("list")
@_project
@_region
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, region: str | None, form: str) -> None:
    """List models, the newest first, each with what made its default version."""
    answer = endpoint.client(raw=form == "json").get(_MODELS, **place_of(endpoint, project, region))
    if form == "json":
        print_data(answer["models"])
        return
    listed = read(answer, ModelList)
    where = f"{listed.project} in {listed.region}"
    if not listed.models:
        click.echo(f"There is no model of {where}.", err=True)
        return
    click.echo(faint(f"Models of {where}"))
    for line in model_table(listed.models):
        click.echo(line)
    if listed.more:
        click.echo("There are more, which are older.", err=True)


@command.command()
@click.argument("model")
@_project
@_region
@takes_form
@takes_endpoint
def describe(
    endpoint: Endpoint, *, model: str, project: str | None, region: str | None, form: str
) -> None:
    """Show the versions of MODEL, an id or a full name: the job, data and parameters that made each, and how
    good it is."""
    match model.partition("@")[0].split("/"):
        case ["projects", project, "locations", region, "models", model_id]:
            pass
        case parts:
            model_id = "/".join(parts)
    answer = endpoint.client(raw=form == "json").get(
        f"{_MODELS}/{quote(model_id, safe='')}", **place_of(endpoint, project, region)
    )
    if form == "json":
        print_data(answer)
        return
    for line in description(read(answer, ModelDescription)):
        click.echo(line)


def model_table(models: tuple[ModelSummary, ...]) -> list[str]:
    """Return the lines of a table of models."""
    columns = (
        Column("MODEL"),
        Column("NAME"),
        Column("VERSION", right=True),
        Column("CREATED"),
        Column("MADE BY"),
        Column("ARTIFACTS"),
    )
    rows = [
        (
            model.model_id,
            model.display_name,
            str(model.version),
            _moment(model.created),
            _short(model.made_by),
            model.artifact_uri,
        )
        for model in models
    ]
    header, *cells = table(columns, rows)
    return [faint(joined(header)), *map(joined, cells)]


def description(model: ModelDescription) -> Iterator[str]:
    """Yield the lines that describe a model and its versions."""
    facts = [("Model", model.name)]
    if model.description:
        facts.append(("Description", model.description))
    if model.labels:
        facts.append(("Labels", _assigned(model.labels)))
    yield from pairs(facts)
    for version in model.versions:
        yield ""
        others = [alias for alias in version.aliases if alias != "default"]
        default = "the default" if "default" in version.aliases else ""
        aliases = ", ".join(filter(None, (default, *others)))
        yield f"Version {version.version}" + (f" ({aliases})" if aliases else "")
        for line in pairs([fact for fact in _facts(version) if fact[1]]):
            yield _INDENT + line
    if model.more:
        yield ""
        yield "There are more versions, which are older."


def _facts(version: ModelVersion) -> Iterator[tuple[str, str]]:
    origin = version.origin
    yield "Name", version.display_name
    yield "Description", version.description
    yield "Created", _moment(version.created)
    yield "Artifacts", version.artifact_uri
    yield "Pipeline", _short(origin.pipeline)
    gone = "" if origin.state else " (deleted)"
    yield "Job", f"{_short(origin.job)}{gone}" if origin.job else ""
    yield "Data", _data(origin)
    yield "Arguments", " ".join(origin.arguments)
    if origin.trial:
        yield "Trial", f"{origin.trial}: {_assigned(origin.parameters)}"
        yield "Measured", _assigned(origin.metrics)
    for source in version.sources:
        yield "Read", " ".join(filter(None, (source.display_name, source.uri)))
    for run in version.runs:
        yield "Run", run.display_name
        yield "Parameters", _assigned(run.parameters)
        yield "Metrics", _assigned(run.metrics)
    for evaluation in version.evaluations:
        yield "Evaluation", f"{evaluation.display_name}: {_assigned(evaluation.metrics)}"


def _data(origin: ModelOrigin) -> str:
    if not origin.dataset:
        return ""
    named = origin.dataset_display_name or "deleted"
    split = f", split: {origin.split}" if origin.split else ""
    return f"dataset {_short(origin.dataset)} ({named}){split}"


def _assigned(values: Mapping[str, Any]) -> str:
    """Return values as text, such as `a=1, b=x`."""
    return ", ".join(f"{key}={_value(value)}" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _short(name: str) -> str:
    """Return the collection and the id of a resource's name, such as `customJobs/7`."""
    return "/".join(name.split("/")[-2:])


def _moment(text: str) -> str:
    return local_moment(parse_moment(text)) if text else ""

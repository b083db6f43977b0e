"""`trainshed datasets`: lists and describes the datasets of a project, and shows the splits that were written
for pipelines, through the public APIs.

The directory of a pipeline's splits is found by the pipeline's resource; the manifest in it says what they
hold (`datasets.port.Written`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint, takes_place
from trainshed.cli.groups import ListGroup
from trainshed.cli.output_format import print_data, takes_form, terminal_width
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import counted, local_moment, parse_moment
from trainshed.cli.text.printable import one_line
from trainshed.cli.text.tables import Column, pairs, titled
from trainshed.core.datasets.plans import SPLITS, is_of_time

_PAGE: Final = 1000
_SHOWN: Final = 10
"""Maximum files of a dataset, and pipelines, that are shown."""

_in_a_place = takes_place("datasets")


@click.group(cls=ListGroup)
def command() -> None:
    """List and describe datasets, and show what was split of them for jobs."""


@command.command("list")
@_in_a_place
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, region: str | None, form: str) -> None:
    """List the datasets, newest first."""
    place = _Place.of(endpoint, project, region)
    datasets = list(place.pages("datasets"))
    if form == "json":
        print_data(datasets)
        return
    if not datasets:
        click.echo(f"No datasets in {place.name}. How to make one: docs/datasets.md", err=True)
        return
    for line in dataset_table(datasets, terminal_width()):
        click.echo(line)


@command.command(short_help="Show a dataset: its kind, files and labels.")
@click.argument("dataset")
@_in_a_place
@takes_form
@takes_endpoint
def describe(
    endpoint: Endpoint, *, dataset: str, project: str | None, region: str | None, form: str
) -> None:
    """Show a dataset. DATASET is its full name, its id, or its display name."""
    place = _Place.of(endpoint, project, region)
    found = place.find("datasets", dataset)
    if found is None:
        raise click.ClickException(_unknown("dataset", dataset, place))
    if form == "json":
        print_data(found)
        return
    for line in description(found):
        click.echo(line)


@command.command(short_help="Show the rows, bytes and files of each split.")
@click.argument("name", metavar="DATASET|PIPELINE")
@_in_a_place
@takes_form
@takes_endpoint
def splits(
    endpoint: Endpoint, *, name: str, project: str | None, region: str | None, form: str
) -> None:
    """Show what was written for a training pipeline, or for the newest pipelines of a dataset. Either is
    given by its full name, its id, or its display name."""
    place = _Place.of(endpoint, project, region)
    found = [splitting(place.client, each) for each in _pipelines(place, name)]
    if form == "json":
        print_data([each.public for each in found])
        return
    for number, each in enumerate(found):
        if number:
            click.echo()
        for line in split_lines(each, terminal_width()):
            click.echo(line)


@dataclass(frozen=True, slots=True)
class Splitting:
    """A pipeline that reads a dataset, and the splits that were written for it."""

    #: The pipeline's public JSON.
    pipeline: Mapping[str, Any]
    #: gs:// URI of the splits' directory; "" = there is none yet.
    directory: str = ""
    #: The manifest's JSON; None = there is none.
    written: Mapping[str, Any] | None = None

    @property
    def public(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline["name"],
            "state": self.pipeline.get("state", ""),
            "directory": self.directory,
            "written": self.written,
        }


def splitting(client: Client, pipeline: Mapping[str, Any]) -> Splitting:
    """Find the splits that were written for a pipeline that reads a dataset. Raises Refused, Unreachable."""
    config: Mapping[str, Any] = pipeline["inputDataConfig"]
    prefix = config["gcsDestination"]["outputUriPrefix"].rstrip("/")
    bucket, _, path = f"{prefix}/dataset-{config['datasetId']}-".removeprefix("gs://").partition(
        "/"
    )
    at = parse_moment(pipeline["createTime"])
    token: str | None = None
    while True:
        page = client.get(
            f"/storage/v1/b/{quote(bucket, safe='')}/o",
            prefix=path,
            matchGlob="**/manifest.json",
            fields="nextPageToken,items(name)",
            pageToken=token,
        )
        for name in (each["name"] for each in page.get("items", ())):
            directory = name.removesuffix("/manifest.json")
            if is_of_time(directory, at):
                written = json.loads(client.download(bucket, name))
                return Splitting(pipeline, f"gs://{bucket}/{directory}", written)
        token = page.get("nextPageToken")
        if not token:
            return Splitting(pipeline)


def dataset_table(datasets: Sequence[Mapping[str, Any]], width: int | None) -> list[str]:
    """Return the lines of a table of datasets. `width`: maximum width of a line, None = unlimited."""
    columns = (
        Column("DATASET"),
        Column("NAME", flexible=True),
        Column("KIND"),
        Column("CREATED"),
    )
    rows = [
        (
            one_line(dataset["name"].rpartition("/")[2]),
            one_line(dataset.get("displayName", "")),
            _kind(dataset),
            local_moment(parse_moment(dataset["createTime"])),
        )
        for dataset in datasets
    ]
    return titled(columns, rows, width)


def description(dataset: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a dataset."""
    metadata: Mapping[str, Any] = dataset.get("metadata") or {}
    source: Mapping[str, Any] = metadata.get("inputConfig", {}).get("gcsSource", {})
    given = source.get("uri", [])
    uris: list[str] = [given] if isinstance(given, str) else list(given)
    files = [one_line(uri) for uri in uris[:_SHOWN]]
    if len(uris) > _SHOWN:
        files.append(f"and {counted(len(uris) - _SHOWN, 'file')} more (--format json)")
    labels = dataset.get("labels", {})
    facts = [
        ("Dataset", one_line(dataset["name"])),
        ("Name", one_line(dataset.get("displayName", ""))),
        ("Kind", _kind(dataset)),
        ("About", one_line(dataset.get("description", ""))),
        ("Labels", ", ".join(one_line(f"{key}={value}") for key, value in labels.items())),
        ("Created", local_moment(parse_moment(dataset["createTime"]))),
        ("Changed", local_moment(parse_moment(dataset["updateTime"]))),
        ("Files", "\n".join(files)),
    ]
    yield from pairs([(label, value) for label, value in facts if value])


def split_lines(found: Splitting, width: int | None) -> Iterator[str]:
    """Yield the lines that show a pipeline's splits: a heading and a table. `width`: maximum width of a line,
    None = unlimited."""
    pipeline, written = found.pipeline, found.written
    state = pipeline.get("state", "").removeprefix("PIPELINE_STATE_")
    began = local_moment(parse_moment(pipeline["createTime"]))
    name = one_line(pipeline.get("displayName", ""))
    yield faint(f"{pipeline['name'].rpartition('/')[2]} {name}, {state}, created {began}")
    if written is None:
        said = one_line(pipeline.get("error", {}).get("message", ""))
        yield f"Nothing is written{f': {said}' if said else ' yet, or it was removed.'}"
        return
    whole = sum(written[split]["rows"] for split in SPLITS) or 1
    columns = (
        Column("SPLIT"),
        Column("ROWS", right=True),
        Column("PART", right=True),
        Column("BYTES", right=True),
        Column("FILES", right=True),
        Column("WHERE", flexible=True),
    )
    rows = [
        (
            split.value,
            f"{written[split]['rows']:,}",
            f"{written[split]['rows'] / whole:.1%}",
            f"{written[split]['size']:,}",
            str(len(written[split]["shards"])),
            one_line(f"{found.directory}/{split}-*"),
        )
        for split in SPLITS
    ]
    yield from titled(columns, rows, width)
    if written.get("ignored"):
        yield f"{counted(written['ignored'], 'row')} went to no split."


def _pipelines(place: "_Place", name: str) -> list[Mapping[str, Any]]:
    """Return the pipelines that `name` means, newest first: the one of that name, or those that read the
    dataset of that name. Raises click.ClickException if there are none."""
    if (dataset := place.find("datasets", name)) is not None:
        dataset_id = dataset["name"].rpartition("/")[2]
        found = [
            each
            for each in place.pages("trainingPipelines")
            if each.get("inputDataConfig", {}).get("datasetId") == dataset_id
        ][:_SHOWN]
        if not found:
            raise click.ClickException(
                f"No pipeline has read the dataset {dataset_id} yet; a training job reads it by "
                "run(dataset=…)."
            )
        return found
    pipeline = place.find("trainingPipelines", name)
    if pipeline is None:
        raise click.ClickException(_unknown("dataset or pipeline", name, place))
    if not pipeline.get("inputDataConfig"):
        raise click.ClickException(f"The pipeline {name} reads no dataset.")
    return [pipeline]


@dataclass(frozen=True, slots=True)
class _Place:
    """A project and region of a service."""

    client: Client
    #: `projects/P/locations/L`.
    name: str

    @staticmethod
    def of(endpoint: Endpoint, project: str | None, region: str | None) -> "_Place":
        place = place_of(endpoint, project, region)
        client = endpoint.client(raw=True)
        return _Place(client, f"projects/{place['project']}/locations/{place['region']}")

    def pages(self, collection: str) -> Iterator[Mapping[str, Any]]:
        """Yield the resources of a collection, newest first."""
        token: str | None = None
        while True:
            page = self.client.get(f"/v1/{self.name}/{collection}", pageSize=_PAGE, pageToken=token)
            yield from page.get(collection, ())
            token = page.get("nextPageToken")
            if not token:
                return

    def find(self, collection: str, name: str) -> Mapping[str, Any] | None:
        """Return the resource with this full name or id, else the newest with this display name; None if
        there is none."""
        full = name if f"/{collection}/" in name else f"{self.name}/{collection}/{name}"
        if name.startswith("projects/") == (full == name):
            try:
                return self.client.get(f"/v1/{quote(full)}")
            except Refused as refused:
                if refused.status not in (400, 404):
                    raise
        return next(
            (each for each in self.pages(collection) if each.get("displayName") == name), None
        )


def _kind(dataset: Mapping[str, Any]) -> str:
    schema = dataset["metadataSchemaUri"].rpartition("/")[2]
    return one_line(schema.removesuffix("_1.0.0.yaml").replace("_", " "))


def _unknown(what: str, name: str, place: _Place) -> str:
    return (
        f"There is no {what} {name!r} in {place.name}; `trainshed datasets list` shows what there is, and "
        "--project and --region say where to look."
    )

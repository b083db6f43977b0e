"""The kinds of things for `trainshed list`, `describe` and `delete`. Each kind is a table in resources.toml.

The table specifies the columns of a list, and the URL paths of the records. The paths belong to a public API
if that API contains the records, otherwise to the service's own API. This module prints nothing.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from trainshed.cli.client import Client, RequestError
from trainshed.cli.text.moments import gibibytes, local_moment, parse_moment
from trainshed.cli.text.tables import Field

Json = dict[str, Any]

_OWN: Final = "/trainshed/v1"
_PUBLIC: Final = "/v1/projects/{project}/locations/{region}"
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing that can be listed or described."""

    name: str
    fields: tuple[Field, ...]
    #: URL path of the list, with `{project}` and `{region}`; "" = the kind has no list.
    list_path: str = ""
    #: The field of the response that contains the list; None = the kind's name.
    key: str | None = None
    #: Query parameters for the service's own API; `{project}` and `{region}` are replaced. `listing`:
    #: additional parameters of the list method.
    query: Mapping[str, str] | None = None
    listing: Mapping[str, str] | None = None
    #: The field with a record's name. The last part of the name is the record's ID.
    id: str = "name"
    #: URL path of one record, with `{id}`; "" = find the record in the list.
    path: str = ""
    #: Further parts of a described record. Key: the field to add. Value: HTTP method, path relative to the
    #: record's path, field of the response.
    parts: Mapping[str, tuple[str, str, str]] | None = None
    #: Adds a record's children to its description: the field to add, and the filter of the list method. In
    #: the filter, `{name}` is the record's full name.
    children: tuple[str, str] | None = None
    #: URL paths to delete a record, or one of its versions; None = impossible. If the path does not contain
    #: the version, the version is a query parameter.
    delete_path: str | None = None
    version_delete_path: str | None = None
    #: A record whose fields have these values is listed only with --all. None = always list all records.
    hidden_if: Mapping[str, Any] | None = None
    #: Without --all, only so many of the newest records are listed; 0 = all.
    newest: int = 0
    #: Whether the records come from `machine_type_records`, without a service.
    local: bool = False
    #: Advice if no record exists.
    none: str | None = None
    #: For a part of a job: the field of the job's view that identifies the job in requests. None = the kind
    #: is not part of a job.
    of_job: str | None = None

    @property
    def is_placed(self) -> bool:
        """Return whether the records belong to a project."""
        return bool(self.query) or self.list_path.startswith(_PUBLIC)


@dataclass(frozen=True, slots=True)
class Place:
    """A service, with the project and region whose things are listed, described or deleted."""

    client: Client
    project: str
    region: str

    def fill(self, template: str, name: str = "", version: str = "") -> str:
        """Return a template with its placeholders replaced by URL-encoded values."""
        values = {"project": self.project, "region": self.region, "id": name, "version": version}
        return template.format_map({key: quote(value, safe="") for key, value in values.items()})

    def records(self, kind: Kind, *, every: bool, wanted: Mapping[str, str] | None = None) -> list[Json]:
        """Return all records of a kind, in the service's order. Raises RequestError, Unreachable.

        `every`: include unused records. `wanted`: additional query parameters.
        """
        path, key = self.fill(kind.list_path), kind.key or kind.name
        query = {"all": "true"} if every and kind.hidden_if else {}
        try:
            query = {**query, **self._query(kind, path), **(kind.listing or {}), **(wanted or {})}
            limit = None if every else kind.newest or None
            records = list(islice(self._pages(path, key, query), limit))
        except RequestError as refused:
            # Return an empty list if the metadata store does not exist yet, because clients create the store
            # with the first experiment.
            if refused.status != 404 or "/metadataStores/" not in str(refused):
                raise
            return []
        if every or not kind.hidden_if:
            return records
        hidden = kind.hidden_if.items()
        return [r for r in records if any((r.get(name) or 0) != value for name, value in hidden)]

    def describe(self, kind: Kind, name: str) -> Json:
        """Return the record with this ID, full name or display name. Raises click.ClickException if it does
        not exist, and RequestError or Unreachable."""
        place, ident, version = self.split_name(kind, name)
        at_version = f"@{version}" if version else ""
        ident += at_version
        record: Json | None = None
        if kind.path:
            try:
                record = place.get(kind, ident)
            except RequestError as refused:
                # Search the list instead, because the name may be a display name, which is not always a valid
                # ID.
                if refused.status not in (400, 404) or not kind.path.startswith(_PUBLIC):
                    raise
        if record is None:
            records = place.records(kind, every=True)
            by_id = (entry for entry in records if short(str(entry.get(kind.id))) == ident)
            by_title = (entry for entry in records if entry.get("displayName") == ident)
            record = next(by_id, None) or next(by_title, None)
        if record is None:
            where, look = "", ""
            if kind.is_placed:
                where, look = (
                    f" of {place}",
                    ". Select another project or region with --project and --region",
                )
            raise click.ClickException(
                f"{name!r} does not exist among the {kind.name}{where}. List them: trainshed {kind.name} "
                f"list{look}."
            )
        for field, (method, path, key) in (kind.parts or {}).items():
            at = f"/v1/{record['name']}{at_version}{path}"
            if method == "POST":
                record[field] = place.client.post(at, {}).get(key, [])
            else:
                record[field] = list(place._pages(at, key, {}))
        if kind.children:
            field, wanted = kind.children
            query = {"filter": wanted.format(name=record["name"])}
            path, key = place.fill(kind.list_path), kind.key or kind.name
            record[field] = list(place._pages(path, key, query))
        # The fields that are columns of the list come first.
        first = [(field.path or "").partition(".")[0] for field in kind.fields]
        return {key: record[key] for key in dict.fromkeys((*first, *record)) if key in record}

    def get(self, kind: Kind, name: str) -> Json:
        """Return the record with this ID. If the response has several pages, their lists are joined. Raises
        RequestError, Unreachable."""
        record: Json = {}
        path = self.fill(kind.path, name)
        for answer in self.client.pages(path, **self._query(kind, path)):
            for key, value in answer.items():
                if isinstance(value, list) and key in record:
                    record[key] += value
                else:
                    record[key] = value
        record.pop("nextPageToken", None)
        return record

    def delete(self, kind: Kind, name: str) -> None:
        """Delete the record with this ID or full name. A name with `@` deletes only that version. Raises
        RequestError, Unreachable."""
        place, ident, version = self.split_name(kind, name)
        template = kind.version_delete_path if version else kind.delete_path
        assert template is not None, "commands accept only kinds that can be deleted"
        query = place._query(kind, template)
        if version and "{version}" not in template:
            query["version"] = version
        place.client.delete(place.fill(template, ident, version), **query)

    def split_name(self, kind: Kind, name: str) -> tuple["Place", str, str]:
        """Split a name into its project and region (a `Place`), ID and version; "" = no version."""
        whole, _, version = name.partition("@") if kind.version_delete_path else (name, "", "")
        match whole.split("/"):
            case ["projects", project, "locations", region, *collection, ident] if kind.list_path.endswith(
                f"/{'/'.join(collection)}"
            ):
                return replace(self, project=project, region=region), ident, version
            case _:
                return self, whole, version

    def _pages(self, path: str, key: str, query: Mapping[str, str]) -> Iterator[Json]:
        paged = {"pageSize": _PAGE} if path.startswith("/v1/") else {}
        for answer in self.client.pages(path, **{**paged, **query}):
            yield from answer.get(key, ())

    def _query(self, kind: Kind, path: str) -> dict[str, str]:
        if not path.startswith(_OWN):
            return {}
        values = {"{project}": self.project, "{region}": self.region}
        return {key: values.get(value, value) for key, value in (kind.query or {}).items()}

    def __str__(self) -> str:
        return f"{self.project} in {self.region}"


def short(name: str) -> str:
    """Return the ID at the end of a resource's name."""
    return name.rpartition("/")[2]


def _moment(text: str) -> str:
    return local_moment(parse_moment(text)) if text else ""


def _verb(method: str) -> str:
    """Shorten a method's full name: to `CreateCustomJob` for a public API, to `Quotas.Set` for the service's
    own API."""
    return ".".join(method.split(".")[-2 if method.startswith("trainshed.v1.") else -1 :])


def _detail(detail: Mapping[str, str | float | list[str]]) -> str:
    return "; ".join(
        f"{key} {', '.join(value) if isinstance(value, list) else value}"
        for key, value in detail.items()
        if value not in ("", [])
    )


def number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _format_usage(used: str, whole: str, text: Callable[[Any], str]) -> Callable[[Json], str]:
    return lambda record: f"{text(record.get(used) or 0)}/{text(record.get(whole) or 0)}"


def _format_other_usage(node: Json) -> str:
    """Return the resources of a node that other programs use, such as `2 CPUs, 4.0 GiB, 1 NVIDIA_L4`."""
    vcpus, size = node.get("othersVcpus") or 0, node.get("othersMemoryBytes") or 0
    parts = [f"{vcpus:g} CPU{'s' * (vcpus != 1)}"] if vcpus else []
    parts += [gibibytes(size)] if size else []
    parts += [
        f"{accelerator['usedByOthers']} {accelerator.get('type') or 'GPU'}"
        for accelerator in node.get("accelerators") or ()
        if accelerator.get("usedByOthers")
    ]
    return ", ".join(parts)


def _node_accelerators(kinds: Sequence[Json]) -> str:
    return ", ".join(f"{kind['used']}/{kind['count']} {kind['type']}" for kind in kinds)


def _metrics(metrics: Sequence[Json]) -> str:
    return ", ".join(f"{aim.get('goal', 'MAXIMIZE').lower()} {aim['metricId']}" for aim in metrics)


def _newest(versions: Sequence[Json]) -> str:
    return _moment(max((version.get("created") or "" for version in versions), default=""))


def _counts(accelerators: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(
        f"{kind.removeprefix('NVIDIA_').removeprefix('TESLA_')} ×{'|'.join(map(str, counts))}"
        for kind, counts in accelerators.items()
    )


def machine_type_records() -> list[Json]:
    from trainshed.core.catalog.machines import MachineType, allowed_accelerators, machine_types
    from trainshed.core.names import Api

    def accelerators(machine: MachineType) -> dict[str, list[int]]:
        if machine.accelerator_type:
            return {machine.accelerator_type: [machine.accelerator_count]}
        apis = [api for api in Api if api in machine.apis]
        return {kind: list(n) for api in apis for kind, n in allowed_accelerators(machine, api).items()}

    return [
        {
            "name": machine.name,
            "vcpus": machine.vcpus,
            "memoryBytes": machine.memory_bytes,
            "replicaMemoryBytes": machine.memory_limit_bytes,
            "apis": sorted(api.value for api in machine.apis),
            "accelerators": accelerators(machine),
        }
        for machine in machine_types().values()
    ]


_SHOWS: Final[Mapping[str, Callable[[Any], str]]] = {
    "text": str,
    "lower": str.lower,
    "id": short,
    "collection": lambda name: "/".join(name.split("/")[-2:]),  # For example, `customJobs/7`.
    "state": lambda state: state.removeprefix("PIPELINE_STATE_"),
    "schema": lambda uri: short(uri).removesuffix("_1.0.0.yaml").replace("_", " "),
    "verb": _verb,
    "refusal": lambda answer: "" if answer == "OK" else answer,
    "detail": _detail,
    "project": lambda project: "all" if project == "-" else project,
    "apis": lambda apis: " ".join(apis) or "scale tiers",
    "moment": _moment,
    "number": number,
    "digits": "{:g}".format,
    "hours": lambda value: f"{value:.2f}" if value else "",
    "share": "{:.0%}".format,
    "gibibytes": gibibytes,
    "count": lambda things: str(len(things)),
    "choices": _counts,
    "cpus": _format_usage("usedVcpus", "vcpus", "{:g}".format),
    "memory": _format_usage("usedMemoryBytes", "memoryBytes", gibibytes),
    "accelerators": _node_accelerators,
    "others": _format_other_usage,
    "versions": lambda versions: ", ".join(str(version["version"]) for version in versions),
    "newest": _newest,
    "metrics": _metrics,
}
"""Functions that format a cell, by their names in resources.toml."""


def _kind(name: str, columns: Sequence[Mapping[str, Any]] = (), **fields: Any) -> Kind:
    return Kind(name, tuple(_field(**column) for column in columns), **fields)


def _field(title: str, path: str | None = None, show: str = "text", **more: Any) -> Field:
    return Field(title, path, _SHOWS[show], **more)


KINDS: Final = {
    name: _kind(name, **table)
    for name, table in tomllib.loads(Path(__file__).with_name("resources.toml").read_text("utf-8")).items()
}
"""All kinds by name."""

"""What `trainshed list`, `describe` and `delete` know: a row of data for each kind of thing.

A kind says where its records are, and which of their fields are columns. The records are those of the public
APIs where these have them, else of the service's own one. Nothing here prints.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.text.moments import gibibytes, local_moment, parse_moment
from trainshed.cli.text.tables import Field

Json = dict[str, Any]

_OWN: Final = "/trainshed/v1"
_PUBLIC: Final = "/v1/projects/{project}/locations/{region}"
_PAGE: Final = 1000
_EXPERIMENTS: Final = 'schema_title="system.Experiment" AND NOT metadata.tensorboard_link:*'
_RUNS: Final = 'schema_title="system.ExperimentRun" AND parent_contexts:"{name}"'


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing that can be listed or described."""

    name: str
    fields: tuple[Field, ...]
    #: Path of the list, with `{project}` and `{region}`; "" = there is no list.
    listed: str = ""
    #: The list's field in the answer; "" = `name`.
    key: str = ""
    #: Query of requests to the service's own API; `{project}` and `{region}` are filled in. `listing`: more
    #: for the list.
    query: Mapping[str, str] | None = None
    listing: Mapping[str, str] | None = None
    #: The field by which a record is named; of a resource's name the last part counts.
    id: str = "name"
    #: Path of one record, with `{id}` as well; "" = it is looked up in the list.
    path: str = ""
    #: Further parts of a described record: field to (HTTP method, path below the record's own, field there).
    parts: Mapping[str, tuple[str, str, str]] | None = None
    #: The field of a described record with what lies below it, and the filter of `listed` that finds that;
    #: `{name}` is the record's full name.
    children: tuple[str, str] | None = None
    #: Path by which one is deleted, and one version of it, which is a query parameter if it stands nowhere
    #: in the path; "" = it cannot be.
    deleted: str = ""
    version_deleted: str = ""
    #: Tells which records are listed without --all; None = all.
    usual: Callable[[Json], bool] | None = None
    #: Makes the records without a service; None = the service has them.
    local: Callable[[], list[Json]] | None = None
    #: What is said if there are none.
    none: str = ""
    #: Of what belongs to a job: takes the job's view, returns the id of whom the service asks it.
    of_job: Callable[[Any], str] | None = None

    @property
    def is_placed(self) -> bool:
        """Whether it is of a project."""
        return bool(self.query) or self.listed.startswith(_PUBLIC)

    def made(self) -> list[Json]:
        """Return the records that need no service."""
        return self.local() if self.local else []


@dataclass(frozen=True, slots=True)
class Place:
    """A service, with the project and region whose things are meant."""

    client: Client
    project: str
    region: str

    def filled(self, template: str, name: str = "", version: str = "") -> str:
        """Return a path or a value with what its braces stand for, encoded."""
        values = {"project": self.project, "region": self.region, "id": name, "version": version}
        return template.format_map({key: quote(value, safe="") for key, value in values.items()})

    def records(
        self, kind: Kind, *, every: bool, wanted: Mapping[str, str] | None = None
    ) -> list[Json]:
        """Return all records of a kind, in the service's order. `every`: also those that are not usual.
        `wanted`: more for the query. Raises Refused, Unreachable."""
        path, key = self.filled(kind.listed), kind.key or kind.name
        query = {"all": "true"} if every and kind.usual else {}
        try:
            query = {**query, **self._query(kind, path), **(kind.listing or {}), **(wanted or {})}
            records = list(self._pages(path, key, query))
        except Refused as refused:
            # Clients make the store of experiments with the first one.
            if refused.status != 404 or "/metadataStores/" not in str(refused):
                raise
            return []
        return records if every or kind.usual is None else list(filter(kind.usual, records))

    def describe(self, kind: Kind, name: str) -> Json:
        """Return the record that `name` means: an id, a full name, or a display name. Raises
        click.ClickException if there is none; Refused, Unreachable."""
        place, ident, _ = self.of_name(kind, name)
        record: Json | None = None
        if kind.path:
            try:
                record = place.one(kind, ident)
            except Refused as refused:
                # A display name may not have the form of an id.
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
                where, look = f" of {place}", ", and --project and --region say where to look"
            raise click.ClickException(
                f"There is no {name!r} among the {kind.name}{where}: trainshed {kind.name} list shows those "
                f"there are{look}."
            )
        for field, (method, path, key) in (kind.parts or {}).items():
            at = f"/v1/{record['name']}{path}"
            if method == "POST":
                record[field] = place.client.post(at, {}).get(key, [])
            else:
                record[field] = list(place._pages(at, key, {}))
        if kind.children:
            field, wanted = kind.children
            query = {"filter": wanted.format(name=record["name"])}
            record[field] = list(place._pages(place.filled(kind.listed), kind.key, query))
        return _ordered(kind, record)

    def one(self, kind: Kind, name: str) -> Json:
        """Return the record with this id, with the lists in it whole. Raises Refused, Unreachable."""
        record: Json = {}
        path = self.filled(kind.path, name)
        for answer in self.client.pages(path, **self._query(kind, path)):
            for key, value in answer.items():
                if isinstance(value, list) and key in record:
                    record[key] += value
                else:
                    record[key] = value
        record.pop("nextPageToken", None)
        return record

    def delete(self, kind: Kind, name: str) -> None:
        """Delete what `name` means: an id or a full name, with `@` and the version if only that is meant.
        Raises Refused, Unreachable."""
        place, ident, version = self.of_name(kind, name)
        template = kind.version_deleted if version else kind.deleted
        query = place._query(kind, template)
        if version and "{version}" not in template:
            query["version"] = version
        place.client.delete(place.filled(template, ident, version), **query)

    def of_name(self, kind: Kind, name: str) -> tuple["Place", str, str]:
        """Split a name into its place, its id and its version; "" = none."""
        whole, _, version = name.partition("@") if kind.version_deleted else (name, "", "")
        match whole.split("/"):
            case ["projects", project, "locations", region, *collection, ident] if (
                kind.listed.endswith(f"/{'/'.join(collection)}")
            ):
                return replace(self, project=project, region=region), ident, version
            case _:
                return self, whole, version

    def _pages(self, path: str, key: str, query: Mapping[str, str]) -> Iterator[Json]:
        paged = {"pageSize": _PAGE} if path.startswith("/v1/") else {}
        for answer in self.client.pages(path, **paged, **query):
            yield from answer.get(key, ())

    def _query(self, kind: Kind, path: str) -> dict[str, str]:
        if not path.startswith(_OWN):
            return {}
        values = {"{project}": self.project, "{region}": self.region}
        return {key: values.get(value, value) for key, value in (kind.query or {}).items()}

    def __str__(self) -> str:
        return f"{self.project} in {self.region}"


def short(name: str) -> str:
    """Return the id at the end of a resource's name."""
    return name.rpartition("/")[2]


def _ordered(kind: Kind, record: Json) -> Json:
    """Return a record with the fields first that are columns."""
    first = [(field.path or "").partition(".")[0] for field in kind.fields]
    return {key: record[key] for key in dict.fromkeys((*first, *record)) if key in record}


def _moment(text: str) -> str:
    return local_moment(parse_moment(text)) if text else ""


def _verb(method: str) -> str:
    return method.removeprefix("trainshed.v1.").removeprefix("google.cloud.")


def _detail(detail: Mapping[str, str | float | list[str]]) -> str:
    return "; ".join(
        f"{key} {', '.join(value) if isinstance(value, list) else value}"
        for key, value in detail.items()
        if value not in ("", [])
    )


def _collection(name: str) -> str:
    """Return the collection and the id of a resource's name, such as `customJobs/7`."""
    return "/".join(name.split("/")[-2:])


def _schema(uri: str) -> str:
    return short(uri).removesuffix("_1.0.0.yaml").replace("_", " ")


def number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _hours(value: float) -> str:
    return f"{value:.2f}" if value else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _used(used: str, whole: str, text: Callable[[Any], str]) -> Callable[[Json], str]:
    return lambda record: f"{text(record.get(used) or 0)}/{text(record.get(whole) or 0)}"


def _others(node: Json) -> str:
    """Return what others than the service use of a node: `2 CPUs, 4.0 GiB, 1 NVIDIA_L4`."""
    vcpus, size = node.get("othersVcpus") or 0, node.get("othersMemoryBytes") or 0
    parts = [f"{vcpus:g} CPU{'s' * (vcpus != 1)}"] if vcpus else []
    parts += [gibibytes(size)] if size else []
    return ", ".join(
        parts
        + [
            f"{accelerator['usedByOthers']} {accelerator.get('type') or 'GPU'}"
            for accelerator in node.get("accelerators") or ()
            if accelerator.get("usedByOthers")
        ]
    )


def _node_accelerators(kinds: Sequence[Json]) -> str:
    return ", ".join(
        f"{accelerator['used']}/{accelerator['count']} {accelerator['type']}"
        for accelerator in kinds
    )


def _metrics(metrics: Sequence[Json]) -> str:
    return ", ".join(f"{metric['goal'].lower()} {metric['metricId']}" for metric in metrics)


def _versions(versions: Sequence[Json]) -> str:
    return ", ".join(str(version["version"]) for version in versions)


def _newest(field: str) -> Callable[[Sequence[Json]], str]:
    return lambda versions: _moment(
        max((version.get(field) or "" for version in versions), default="")
    )


def _counts(accelerators: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(
        f"{kind.removeprefix('NVIDIA_').removeprefix('TESLA_')} ×{'|'.join(map(str, counts))}"
        for kind, counts in accelerators.items()
    )


def _machine_types() -> list[Json]:
    from trainshed.core.catalog.machines import MachineType, allowed, machine_types
    from trainshed.core.names import Api

    def accelerators(machine: MachineType) -> dict[str, list[int]]:
        if machine.accelerator_type:
            return {machine.accelerator_type: [machine.accelerator_count]}
        apis = [api for api in Api if api in machine.apis]
        return {kind: list(n) for api in apis for kind, n in allowed(machine, api).items()}

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


_IN_PLACE: Final = {"project": "{project}", "region": "{region}"}
_CREATED: Final = Field("CREATED", "createTime", _moment)
_NAME: Final = Field("NAME", "displayName", flexible=True)

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(
            "audit",
            (
                Field("TIME", "time", _moment),
                Field("WHO", "who", flexible=True),
                Field("AS", "actingAs"),
                Field("METHOD", "method", _verb, flexible=True),
                Field("RESOURCE", "resource", flexible=True),
                Field("ANSWER", "answer"),
                Field("WHAT", "detail", _detail, flexible=True),
            ),
            id="seq",
            key="entries",
            listed=f"{_OWN}/audit",
            query={"project": "{project}"},
            none="Of all projects and of the service itself: --project -",
        ),
        Kind(
            "curves",
            (),
            path=f"{_OWN}/jobs/{{id}}/curves",
            of_job=lambda job: job.uid,
        ),
        Kind(
            "datasets",
            (
                Field("DATASET", "name", short),
                _NAME,
                Field("KIND", "metadataSchemaUri", _schema),
                _CREATED,
            ),
            listed=f"{_PUBLIC}/datasets",
            path=f"{_PUBLIC}/datasets/{{id}}",
            deleted=f"{_PUBLIC}/datasets/{{id}}",
            none="How to make one: docs/datasets.md",
        ),
        Kind(
            "experiments",
            (
                Field("EXPERIMENT", "name", short),
                _CREATED,
                Field("DESCRIPTION", "description", flexible=True),
            ),
            listed=f"{_PUBLIC}/metadataStores/default/contexts",
            key="contexts",
            listing={"filter": _EXPERIMENTS, "orderBy": "create_time desc"},
            path=f"{_PUBLIC}/metadataStores/default/contexts/{{id}}",
            children=("runs", _RUNS),
            none="How to log one: docs/experiments.md",
        ),
        Kind(
            "grants",
            (
                Field("PROJECT", "project", lambda project: "all" if project == "-" else project),
                Field("ROLE", "role"),
                Field("MEMBER", "member"),
            ),
            id="member",
            listed=f"{_OWN}/access",
            query={"project": "{project}"},
            none="Give a role: trainshed iam user:EMAIL ROLE",
        ),
        Kind(
            "machine-types",
            (
                Field("MACHINE TYPE", "name"),
                Field("VCPUS", "vcpus", "{:g}".format, right=True),
                Field("MEMORY", "memoryBytes", gibibytes, right=True),
                Field("A REPLICA GETS", "replicaMemoryBytes", gibibytes, right=True),
                Field("APIS", "apis", lambda apis: " ".join(apis) or "scale tiers"),
                Field("ACCELERATORS", "accelerators", _counts),
            ),
            local=_machine_types,
        ),
        Kind(
            "models",
            (
                Field("MODEL", "name", short),
                _NAME,
                Field("VERSION", "versionId", right=True),
                _CREATED,
                Field("MADE BY", "trainingPipeline", _collection, optional=True, spare=True),
                Field("ARTIFACTS", "artifactUri", flexible=True),
            ),
            listed=f"{_PUBLIC}/models",
            path=f"{_OWN}/models/{{id}}",
            query=_IN_PLACE,
            parts={"evaluations": ("GET", "/evaluations", "modelEvaluations")},
            deleted=f"{_PUBLIC}/models/{{id}}",
            version_deleted=f"{_PUBLIC}/models/{{id}}@{{version}}:deleteVersion",
        ),
        Kind(
            "nodes",
            (
                Field("NODE", "name"),
                Field("CONDITION", "condition"),
                Field("CPUS", None, _used("usedVcpus", "vcpus", "{:g}".format), right=True),
                Field(
                    "MEMORY", None, _used("usedMemoryBytes", "memoryBytes", gibibytes), right=True
                ),
                Field("ACCELERATORS", "accelerators", _node_accelerators, flexible=True),
                Field("OTHERS", None, _others, optional=True),
                Field("REPLICAS", "replicas", lambda replicas: str(len(replicas)), right=True),
                Field("WHY", "cause", flexible=True, optional=True),
            ),
            listed=f"{_OWN}/nodes",
        ),
        Kind(
            "projects",
            (Field("PROJECT", "projectId"), Field("NAME", "name", flexible=True)),
            id="projectId",
            listed="/v1/projects",
        ),
        Kind(
            "quotas",
            (
                Field("METRIC", "metric"),
                Field("OF", "user", flexible=True, optional=True),
                Field("USED", "used", number, right=True),
                Field("LIMIT", "limit", number, right=True),
                Field("WAITING", "waiting", number, right=True),
            ),
            id="metric",
            listed=f"{_OWN}/quotas",
            query=_IN_PLACE,
            usual=lambda quota: bool(
                quota.get("used") or quota.get("waiting") or quota.get("limit") != "unlimited"
            ),
            none="Those that are neither set nor used: trainshed quotas list --all",
        ),
        Kind(
            "secrets",
            (
                Field("SECRET", "name"),
                Field("VERSIONS", "versions", _versions),
                Field("CREATED", "versions", _newest("created")),
                Field("LAST USED", "versions", _newest("lastUsed")),
            ),
            listed=f"{_OWN}/secrets",
            query={"project": "{project}"},
            deleted=f"{_OWN}/secrets/{{id}}",
            version_deleted=f"{_OWN}/secrets/{{id}}",
            none="Store one: trainshed secrets set NAME",
        ),
        Kind(
            "studies",
            (
                Field("STUDY", "name", short),
                _NAME,
                Field("STATE", "state"),
                Field("METRICS", "studySpec.metrics", _metrics),
                Field("ALGORITHM", "studySpec.algorithm", str.lower),
                _CREATED,
            ),
            listed=f"{_PUBLIC}/studies",
            path=f"{_PUBLIC}/studies/{{id}}",
            parts={
                "optimalTrials": ("POST", "/trials:listOptimalTrials", "optimalTrials"),
                "trials": ("GET", "/trials", "trials"),
            },
            deleted=f"{_PUBLIC}/studies/{{id}}",
        ),
        Kind(
            "tokens",
            (
                Field("TOKEN", "id"),
                Field("OF", "email", flexible=True),
                Field("CREATED", "created", _moment),
                Field("EXPIRES", "expires", _moment),
                Field("LAST USED", "lastUsed", _moment),
                Field("NOTE", "note", flexible=True, optional=True, spare=True),
            ),
            id="id",
            listed=f"{_OWN}/tokens",
            deleted=f"{_OWN}/tokens/{{id}}",
            none="Make one: trainshed tokens create EMAIL --role ROLE",
        ),
        Kind(
            "usage",
            (
                Field("NAME", "name", flexible=True),
                Field("COST", "cost", _hours, right=True, optional=True),
                Field("GPU-HOURS", "gpuHours", _hours, right=True, optional=True),
                Field("AT WORK", "gpuShare", _share, right=True, optional=True),
                Field("CPU-HOURS", "cpuHours", _hours, right=True),
                Field("AT WORK", "cpuShare", _share, right=True, optional=True),
                Field("GB-HOURS", "gigabyteHours", _hours, right=True),
                Field("MACHINE-HOURS", "machineHours", _hours, right=True),
            ),
            listed=f"{_OWN}/usage",
            key="rows",
            query={"project": "{project}"},
            none="It counts from the beginning of the month: --since 90d",
            path=f"{_OWN}/jobs/{{id}}/usage",
            of_job=lambda job: job.program.uid,
        ),
    )
}
"""All kinds by name."""

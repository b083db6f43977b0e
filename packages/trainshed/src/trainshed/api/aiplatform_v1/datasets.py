"""`aiplatform` v1 DatasetService: datasets, imports of data (facts/datasets#kinds), and exports.

All methods except exports finish at once. A dataset only refers to files, which are read when the dataset is
used.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.kinds import Kind
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.aiplatform_v1.views import V1, message
from trainshed.api.calls.call import Call, camel_case
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.paging import Listing
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import set_micros
from trainshed.api.resources.submission import BucketUse, check_and_parse
from trainshed.core import patterns
from trainshed.core.datasets.plans import Export, SplitPlan
from trainshed.core.datasets.records import (
    FORMATS,
    KINDS_BY_SCHEMA,
    OTHERWISE,
    DataFiles,
    Dataset,
    DatasetKind,
    DatasetName,
)
from trainshed.core.errors import Aborted, InvalidRequest, Violation
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.input_data import read_export
from trainshed.core.specs.syntax import bucket_path_fault, check_texts, read_display_name, read_labels
from trainshed.core.units import Nanos
from trainshed.store.records import OperationKind
from trainshed.wire import json as wire_json

MAX_METADATA: Final = 200_000
"""Maximum size in bytes of a dataset's metadata as JSON."""
MAX_FILES: Final = 1_000
"""Maximum number of file names in a dataset. A file name with wildcards counts as one."""
UPDATABLE: Final = ("display_name", "description", "labels")
BIGQUERY_ADVICE: Final = (
    "BigQuery tables are not supported. Export the table with `bq extract --destination_format=CSV "
    "PROJECT:DATASET.TABLE 'gs://BUCKET/PATH/*.csv'`, and use these files as the gcs_source."
)


async def create(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    name = DatasetName(parent.project_id, parent.location, str(services.new_uid()))
    record = read_new(request.dataset, name, services.now())
    await require_files(services, parent.project_id, tuple(file_uses(record)))
    return await KIND.create(call, record)


async def update(call: Call, request: Any) -> Message:
    name = DatasetName.parse(request.dataset.name, of="dataset.name")
    fields = read_update_mask(request.update_mask.paths, UPDATABLE, request.dataset)
    now = call.services.now()
    changed = await call.services.datasets.change(
        name, lambda record: apply_update(record, request.dataset, fields, now)
    )
    return _view(call.services, changed)


async def import_(call: Call, request: Any) -> Message:
    """Add files to a dataset of any kind except tabular. The files are read when the dataset is used."""
    services = call.services
    name = DatasetName.parse(request.name)
    record = await services.datasets.get(name)
    if record.kind.is_table:
        text = (
            f"{name} is a {record.kind} dataset, whose files are listed in its metadata. Create another "
            "dataset with more files, or use a * in the file name."
        )
        raise InvalidRequest((Violation("name", text),))
    configs = read_imports(record, request.import_configs)
    file_uses = [
        (f"{path}.gcs_source.uris[{index}]", uri)
        for path, files in configs
        for index, uri in enumerate(files.uris)
    ]
    await require_files(services, name.project_id, tuple(file_uses))
    now = services.now()
    added = tuple(files for _, files in configs)

    def with_files(current: Dataset) -> Dataset:
        read_imports(current, request.import_configs)
        return replace(current, files=(*current.files, *added), updated=max(now, current.updated + 1000))

    return await KIND.change(
        call, name, with_files, OperationKind.IMPORT, lambda _: message("ImportDataResponse")
    )


async def export(call: Call, request: Any) -> Message:
    """Start an export, which writes the rows of a dataset to files. The operation's metadata contains the
    output directory."""
    services = call.services
    name = DatasetName.parse(request.name)
    dataset = await services.datasets.get(name)
    config = Section(wire_json.to_public(request), "", Faults()).section("exportConfig")

    def plan() -> SplitPlan:
        read = read_export(config, dataset, services.exports.moment())
        config.faults.refuse()
        assert read is not None, "a request without a plan has violations"
        return read

    prefix = request.export_config.gcs_destination.output_uri_prefix
    use = ("export_config.gcs_destination.output_uri_prefix", prefix)
    read = check_and_parse(plan, (use,), services.buckets, project=name.project_id)
    file_uses = tuple(("name", uri) for files in read.files for uri in files.uris)
    await require_files(services, name.project_id, file_uses)
    return await operations.export(services, name, str(name), Export(name.project_id, plan=read))


async def require_files(services: Services, project: str, file_uses: tuple[BucketUse, ...]) -> None:
    """Raise InvalidRequest unless all files in `file_uses` exist and the project's programs may read
    them."""
    check_and_parse(lambda: None, file_uses, services.buckets, project=project)
    faults = Faults()
    for field, uri in file_uses:
        if not await asyncio.to_thread(services.buckets.has_object, uri):
            faults.add(field, f"The object {uri!r} does not exist. Copy the file there first.")
    faults.refuse()


def _view(services: Services, record: Dataset) -> Message:
    public: dict[str, Any] = {
        "name": str(record.name),
        "displayName": record.display_name,
        "description": record.description,
        "metadataSchemaUri": record.kind.schema_uri,
        "etag": record.etag,
        "labels": dict(record.labels),
    }
    metadata = json.loads(record.metadata)
    if metadata is not None:
        public["metadata"] = metadata
    dataset: Any = wire_json.from_public(f"{V1}.Dataset", public)
    set_micros(dataset.create_time, record.created)
    set_micros(dataset.update_time, record.updated)
    return dataset


def read_new(dataset_message: Any, name: DatasetName, now: Nanos) -> Dataset:
    """Return the record of a new dataset. Raises InvalidRequest with all errors."""
    public = wire_json.to_public(dataset_message)
    dataset = Section(public, "dataset", Faults())
    display_name = read_display_name(dataset)
    labels = read_labels(dataset)
    check_texts(dataset, "description")
    kind = _read_kind(dataset)
    metadata = public.get("metadata")
    if kind is not None and kind.is_table:
        metadata = _in_camel_case(metadata)
    text = json.dumps(metadata)
    if len(text.encode()) > MAX_METADATA:
        dataset.fault("metadata", f"The metadata may have at most {MAX_METADATA} bytes.")
    files = _read_tables(dataset, metadata) if kind is not None and kind.is_table else ()
    if kind is not None and not kind.is_table and "inputConfig" in _mapping(metadata):
        dataset.fault("metadata", f"A {kind} dataset has no inputConfig. Add files with ImportData.")
    if dataset.is_set("encryptionSpec"):
        dataset.fault("encryptionSpec", "Keys of customers are not supported. Omit the field.")
    dataset.faults.refuse()
    assert kind is not None, "an unknown kind is a violation"
    return Dataset(
        name=name,
        kind=kind,
        display_name=display_name,
        created=now,
        updated=now,
        metadata=text,
        description=dataset_message.description,
        labels=labels,
        files=files,
    )


def _read_kind(dataset: Section) -> DatasetKind | None:
    uri = dataset.text("metadataSchemaUri")
    kind = KINDS_BY_SCHEMA.get(uri)
    if kind is None:
        fault = f"{uri!r} is not a known schema" if uri else "The schema must be set"
        dataset.fault("metadataSchemaUri", f"{fault}. Use one of {', '.join(KINDS_BY_SCHEMA)}. {OTHERWISE}")
    return kind


def _read_tables(dataset: Section, metadata: Any) -> tuple[DataFiles, ...]:
    config = _mapping(_mapping(metadata).get("inputConfig"))
    if "bigquerySource" in config:
        dataset.fault("metadata.inputConfig.bigquerySource", BIGQUERY_ADVICE)
    source = _mapping(config.get("gcsSource"))
    field = "metadata.inputConfig.gcsSource.uri"
    uri_value: Any = source.get("uri", [])
    if isinstance(uri_value, str):
        uri_value = [uri_value]
    if not isinstance(uri_value, list) or not all(
        isinstance(uri, str) for uri in cast("list[Any]", uri_value)
    ):
        dataset.fault(field, "The value must be a list of URIs such as gs://BUCKET/PATH.csv.")
        return ()
    uris = tuple(cast("list[str]", uri_value))
    _check_uris(dataset, field, uris)
    return (DataFiles(uris),) if uris else ()


def _check_uris(section: Section, field: str, uris: tuple[str, ...]) -> None:
    if len(uris) > MAX_FILES:
        section.fault(
            field, f"{len(uris)} file names exceed the limit of {MAX_FILES}. Use a * to match many files."
        )
    for index, uri in enumerate(uris):
        fault = bucket_path_fault(uri, needs_object=True)
        if not fault and patterns.count(uri) > patterns.MAX_WILDCARDS:
            fault = f"{uri!r} has more than {patterns.MAX_WILDCARDS} wildcards. Use fewer."
        if fault:
            section.faults.add(f"{section.path_of(field)}[{index}]", fault)


def _in_camel_case(metadata: Any) -> Any:
    """Return metadata with all names in camelCase, because some clients, such as Airflow, send snake_case."""
    if not isinstance(metadata, dict):
        return metadata
    members = cast("dict[str, Any]", metadata)
    return {camel_case(name): _in_camel_case(member) for name, member in members.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def file_uses(record: Dataset) -> Iterator[tuple[str, str]]:
    """Yield the URIs of a dataset's files. Each comes with the path of the field in the create request that
    contained the URI."""
    for files in record.files:
        for index, uri in enumerate(files.uris):
            yield f"dataset.metadata.inputConfig.gcsSource.uri[{index}]", uri


def read_imports(record: Dataset, configs: Iterable[Any]) -> tuple[tuple[str, DataFiles], ...]:
    """Return the files of an import request. Each entry also contains the path of the field that specifies
    the files, such as `import_configs[0]`. Raises InvalidRequest with all errors."""
    faults = Faults()
    imports: list[tuple[str, DataFiles]] = []
    for index, config in enumerate(configs):
        section = Section(wire_json.to_public(config), f"import_configs[{index}]", faults)
        source = section.section("gcsSource")
        uris = source.texts("uris")
        if not uris:
            source.fault("uris", "Set at least one file, gs://BUCKET/PATH.")
        _check_uris(source, "uris", uris)
        labels = read_labels(Section({"labels": section.values.get("dataItemLabels")}, section.path, faults))
        schema = section.text("importSchemaUri")
        file_format = FORMATS.get(schema)
        if file_format is None or file_format.kind is not record.kind:
            schemas = ", ".join(
                uri for uri, known_format in FORMATS.items() if known_format.kind is record.kind
            )
            fault = (
                f"{schema!r} is not an import schema of {record.kind} datasets"
                if schema
                else "The schema must be set"
            )
            section.fault("importSchemaUri", f"{fault}. Use one of {schemas}. {OTHERWISE}")
        imports.append((section.path, DataFiles(uris, schema, labels)))
    if not imports:
        faults.add("import_configs", "Set at least one import config.")
    count = sum(len(files.uris) for files in (*record.files, *(files for _, files in imports)))
    if count > MAX_FILES:
        faults.add(
            "import_configs", f"The dataset would have {count} file names. At most {MAX_FILES} are allowed."
        )
    faults.refuse()
    return tuple(imports)


def apply_update(record: Dataset, dataset_message: Any, fields: tuple[str, ...], now: Nanos) -> Dataset:
    """Return the dataset with the updated fields. Raises InvalidRequest with all errors, and Aborted for an
    outdated etag."""
    if dataset_message.etag not in ("", record.etag):
        raise Aborted(
            f"{record.name} changed after its etag {dataset_message.etag!r} was read; its etag is now "
            f"{record.etag!r}. Read the dataset again, and repeat the update with the new etag."
        )
    dataset = Section(wire_json.to_public(dataset_message), "dataset", Faults())
    labels = read_labels(dataset)
    check_texts(dataset, "description")
    name = read_display_name(dataset) if "display_name" in fields else ""
    dataset.faults.refuse()
    values = {"display_name": name, "description": dataset_message.description, "labels": labels}
    for field in fields:
        record = replace(record, **{field: values[field]})
    # Give each update a new time, because the etag is derived from the time.
    return replace(record, updated=max(now, record.updated + 1000))


KIND: Final = Kind(
    "DatasetService",
    "Dataset",
    DatasetName.parse,
    lambda services: services.datasets,
    _view,
    Listing[Dataset](
        "datasets",
        {
            "display_name": lambda record: record.display_name,
            "metadata_schema_uri": lambda record: record.kind.schema_uri,
        },
        {
            "display_name": lambda record: record.display_name,
            "create_time": lambda record: record.created,
            "update_time": lambda record: record.updated,
        },
        max_page=1_000,
    ),
)
"""Lists return the newest dataset first. Deleting a dataset does not delete its files. Pipelines that have
already started continue."""
HANDLERS: Final = KIND.handlers(
    CreateDataset=create, UpdateDataset=update, ImportData=import_, ExportData=export
)

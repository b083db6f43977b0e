"""Datasets: create, get, list, update, delete, import.

All of these are done at once, because a dataset only names files, which are read when they are needed.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.api.aiplatform_v1 import operations
from trainshed.api.aiplatform_v1.datasets.messages import (
    UPDATABLE,
    V1,
    message,
    read_imports,
    read_new,
    updated,
    uses,
    view,
)
from trainshed.api.aiplatform_v1.locations import known_location
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.paging import SCAN_LIMIT, page_of_records, page_size
from trainshed.api.calls.services import Services
from trainshed.api.calls.update_masks import read_update_mask
from trainshed.api.filters.matching import compile_filter, labels_or_texts
from trainshed.api.filters.syntax import Comparison, Term
from trainshed.api.resources.operations import done_at_once
from trainshed.api.resources.submission import BucketUse, checked
from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.store.records import OperationKind

SERVICE: Final = f"{V1}.DatasetService"
_PAGE: Final = 100
_LARGEST: Final = 1_000
DatasetTest = Callable[[Dataset], bool]
_ORDERS: Final[Mapping[str, Callable[[Dataset], Any]]] = {
    "display_name": lambda record: record.display_name,
    "create_time": lambda record: record.created,
    "update_time": lambda record: record.updated,
}
_TEXTS: Final[Mapping[str, Callable[[Dataset], str]]] = {
    "display_name": lambda record: record.display_name,
    "displayName": lambda record: record.display_name,
    "metadata_schema_uri": lambda record: record.kind.schema_uri,
    "metadataSchemaUri": lambda record: record.kind.schema_uri,
}


async def create(call: Call, request: Any) -> Message:
    parent = known_location(request.parent)
    services = call.services
    name = DatasetName(parent.project_id, parent.location, str(services.new_uid()))
    metadata = call.value_texts.get("dataset.metadata")

    record = read_new(request.dataset, metadata, name, services.now())
    await require_files(services, parent.project_id, tuple(uses(record)))
    done = done_at_once(services, name, OperationKind.CREATE, str(name), view(record))
    await services.datasets.create(record, done)
    return operations.finished(done)


async def get(call: Call, request: Any) -> Message:
    return view(await call.services.datasets.dataset(DatasetName.parse(request.name)))


async def list_(call: Call, request: Any) -> Message:
    """List datasets, newest first unless `order_by` says otherwise. At most SCAN_LIMIT datasets are ordered
    and filtered."""
    parent = known_location(request.parent)
    size = page_size(request.page_size, default=_PAGE, maximum=_LARGEST)
    passes: DatasetTest = compile_filter(request.filter, _leaf)
    datasets = await call.services.datasets.datasets(
        parent.project_id, parent.location, "", SCAN_LIMIT
    )
    page, token = await page_of_records(
        datasets, request, str(parent), passes=passes, orders=_ORDERS, size=size
    )
    return message(
        "ListDatasetsResponse", datasets=[view(record) for record in page], next_page_token=token
    )


async def update(call: Call, request: Any) -> Message:
    name = DatasetName.parse(request.dataset.name, of="dataset.name")
    fields = read_update_mask(request.update_mask.paths, UPDATABLE) or UPDATABLE
    now = call.services.now()
    return view(
        await call.services.datasets.change(
            name, lambda record: updated(record, request.dataset, fields, now)
        )
    )


async def delete(call: Call, request: Any) -> Message:
    """Delete a dataset. Its files stay where they are; pipelines and exports that began before go on with
    them."""
    name = DatasetName.parse(request.name)
    done = done_at_once(call.services, name, OperationKind.DELETE, str(name))
    await call.services.datasets.delete(name, done)
    return operations.finished(done)


async def import_(call: Call, request: Any) -> Message:
    """Add files to a dataset that is no table. They are read when they are needed."""
    services = call.services
    name = DatasetName.parse(request.name)
    record = await services.datasets.dataset(name)
    if record.kind.is_table:
        text = (
            f"{name} is a {record.kind} dataset: its files are those of its metadata. Make another dataset "
            "of more files, or name them with a *."
        )
        raise InvalidRequest((Violation("name", text),))
    configs = read_imports(record, request.import_configs)
    uses = [
        (f"{path}.gcs_source.uris[{index}]", uri)
        for path, files in configs
        for index, uri in enumerate(files.uris)
    ]
    await require_files(services, name.project_id, tuple(uses))
    now = services.now()
    added = tuple(files for _, files in configs)

    def with_files(current: Dataset) -> Dataset:
        read_imports(current, request.import_configs)
        return replace(
            current, files=(*current.files, *added), updated=max(now, current.updated + 1000)
        )

    done = done_at_once(
        services, name, OperationKind.IMPORT, str(name), message("ImportDataResponse")
    )
    await services.datasets.change(name, with_files, done)
    return operations.finished(done)


HANDLERS: Final[Handlers] = {
    f"{SERVICE}.CreateDataset": create,
    f"{SERVICE}.GetDataset": get,
    f"{SERVICE}.ListDatasets": list_,
    f"{SERVICE}.UpdateDataset": update,
    f"{SERVICE}.DeleteDataset": delete,
    f"{SERVICE}.ImportData": import_,
}


async def require_files(services: Services, project: str, uses: tuple[BucketUse, ...]) -> None:
    """Raise InvalidRequest unless all of these files exist and programs of the project may read them."""
    checked(lambda: None, uses, services.buckets, project=project)
    missing = await asyncio.to_thread(missing_files, services, uses)
    if missing:
        raise InvalidRequest(missing)


def missing_files(services: Services, uses: Iterable[BucketUse]) -> tuple[Violation, ...]:
    """Return a violation for each URI that no object matches. Blocks."""
    return tuple(
        Violation(field, f"There is no object {uri!r}; copy the file there first.")
        for field, uri in uses
        if not services.buckets.has_object(uri)
    )


def _leaf(leaf: Comparison | Term) -> DatasetTest:
    refusal = (
        f"datasets cannot be filtered by {leaf.name!r}; compare display_name or metadata_schema_uri, or "
        "ask for labels.KEY"
    )
    return labels_or_texts(leaf, _TEXTS, refusal)

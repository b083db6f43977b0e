"""The pages of datasets: the list, and one dataset with its files and what was trained with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from trainshed.console.pages.vertex import vertex_page, vertex_path, vertex_table
from trainshed.console.rendering import id_of
from trainshed.console.visits import View, Visit
from trainshed.wire.status import Refused

_FILES: Final = 100
"""Maximum files that are listed."""
_PIPELINES: Final = 200
"""Newest pipelines that are searched for those that used the dataset."""


async def datasets(visit: Visit) -> View:
    """`/datasets`: the datasets of the project."""
    return await vertex_table(
        visit,
        "datasets",
        ("Dataset", "Kind", "Items", "Created"),
        "No dataset yet. aiplatform.TabularDataset.create makes one.",
        lambda dataset: (kind_of(dataset), dataset.get("dataItemCount", "")),
    )


async def dataset(visit: Visit) -> View:
    """`/datasets/D`: the dataset's files with their sizes, and the pipelines that were trained with it."""
    path = vertex_path(visit, f"datasets/{visit.quoted('dataset')}")
    answer = await visit.backend.call(visit.principal, "GET", path)
    dataset_id = id_of(answer["name"])
    uris = _uris(answer)
    pipelines = await vertex_page(visit, "trainingPipelines", size=_PIPELINES)
    return View(
        answer.get("displayName") or dataset_id,
        "dataset.html",
        {
            "dataset": answer,
            "id": dataset_id,
            "kind": kind_of(answer),
            "files": [(uri, await _size(visit, uri)) for uri in uris[:_FILES]],
            "more": len(uris) - _FILES,
            "pipelines": [
                (pipeline, id_of(pipeline.get("modelToUpload", {}).get("name", "")))
                for pipeline in pipelines.get("trainingPipelines", ())
                if pipeline.get("inputDataConfig", {}).get("datasetId") == dataset_id
            ],
        },
        place="datasets",
    )


def kind_of(public: Any) -> str:
    """Return the kind of a dataset, such as "tabular" or "time series", from its public JSON."""
    name = str(public.get("metadataSchemaUri", "")).rpartition("/")[2]
    return name.partition("_1")[0].replace("_", " ")


def _uris(public: Mapping[str, Any]) -> list[str]:
    """Return the gs:// URIs of a dataset's files, from its public JSON."""
    source: Any = public.get("metadata")
    for name in ("inputConfig", "gcsSource", "uri"):
        source = cast(Mapping[str, Any], source).get(name) if isinstance(source, Mapping) else None
    if isinstance(source, str):
        return [source]
    return [str(uri) for uri in cast(Sequence[object], source or ())]


async def _size(visit: Visit, uri: str) -> int | None:
    """Return an object's size in bytes; None for a pattern, and if the visitor cannot read the object."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not name or any(mark in name for mark in "*?"):
        return None
    path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
    try:
        answer = await visit.buckets.ask(visit.principal, f"{path}?{urlencode({'fields': 'size'})}")
    except Refused:
        return None
    return int(answer["size"]) if "size" in answer else None

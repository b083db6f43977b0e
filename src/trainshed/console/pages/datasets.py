"""Datasets: a list, and one with its files and what was trained with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from trainshed.console.pages.vertex import vertex_page, vertex_path, vertex_table
from trainshed.console.rendering import id_of
from trainshed.console.visits import View, Visit
from trainshed.wire.status import Refused

_FILES: Final = 100
_PIPELINES: Final = 200
"""Of the newest ones so many are asked for what they were given."""


async def datasets(visit: Visit) -> View:
    """`/datasets`: those of the project."""
    return await vertex_table(
        visit,
        "datasets",
        ("Dataset", "Kind", "Items", "Created"),
        "No dataset yet. aiplatform.TabularDataset.create makes one.",
        lambda dataset: (kind_of(dataset), dataset.get("dataItemCount", "")),
    )


async def dataset(visit: Visit) -> View:
    """`/datasets/D`: its files, what they take, and the pipelines that were trained with it."""
    path = vertex_path(visit, f"datasets/{visit.quoted('dataset')}")
    found = await visit.backend.call(visit.principal, "GET", path)
    dataset_id = id_of(found["name"])
    uris = _uris(found)
    pipelines = await vertex_page(visit, "trainingPipelines", size=_PIPELINES)
    return View(
        found.get("displayName") or dataset_id,
        "dataset.html",
        {
            "dataset": found,
            "id": dataset_id,
            "kind": kind_of(found),
            "files": [(uri, await _size(visit, uri)) for uri in uris[:_FILES]],
            "more": len(uris) - _FILES,
            "pipelines": [
                (each, id_of(each.get("modelToUpload", {}).get("name", "")))
                for each in pipelines.get("trainingPipelines", ())
                if each.get("inputDataConfig", {}).get("datasetId") == dataset_id
            ],
        },
        place="datasets",
    )


def kind_of(public: Any) -> str:
    """Such as "tabular" or "time series"."""
    name = str(public.get("metadataSchemaUri", "")).rpartition("/")[2]
    return name.partition("_1")[0].replace("_", " ")


def _uris(public: Mapping[str, Any]) -> list[str]:
    """The gs:// names of its files, wherever its kind has them."""
    source: Any = public.get("metadata")
    for name in ("inputConfig", "gcsSource", "uri"):
        source = cast(Mapping[str, Any], source).get(name) if isinstance(source, Mapping) else None
    if isinstance(source, str):
        return [source]
    return [str(uri) for uri in cast(Sequence[object], source or ())]


async def _size(visit: Visit, uri: str) -> int | None:
    """Bytes of the object; None of a pattern, and of one that is not there or not to be read."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not name or any(mark in name for mark in "*?"):
        return None
    path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"
    try:
        answer = await visit.buckets.ask(visit.principal, f"{path}?{urlencode({'fields': 'size'})}")
    except Refused:
        return None
    return int(answer["size"]) if "size" in answer else None

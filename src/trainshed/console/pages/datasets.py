"""Datasets: a list, and one with its files and what was trained with it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from trainshed.console.pages.collections import following, listed, place_of
from trainshed.console.visits import View, Visit
from trainshed.wire.status import Refused

_PAGE: Final = 100
_FILES: Final = 100
_PIPELINES: Final = 200
"""Of the newest ones so many are asked for what they were given."""


async def datasets(visit: Visit) -> View:
    """`/datasets`."""
    answer = await listed(visit, "datasets", token=visit.query("page"))
    rows = [
        (
            each.get("displayName", ""),
            _id(each),
            visit.on(f"/datasets/{quote(_id(each), safe='')}"),
            kind_of(each),
            each.get("dataItemCount", ""),
            each.get("createTime", ""),
        )
        for each in answer.get("datasets", ())
    ]
    values = {
        "columns": ("Dataset", "Kind", "Items", "Created"),
        "nothing": "No dataset yet. aiplatform.TabularDataset.create makes one.",
        "rows": rows,
        "following": following(visit, answer),
    }
    return View("Datasets", "table.html", values, place="datasets")


async def dataset(visit: Visit) -> View:
    """`/datasets/D`: its files, what they take, and the pipelines that were trained with it."""
    project, region = place_of(visit)
    place = f"/v1/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}"
    found = await visit.backend.call(
        visit.principal, "GET", f"{place}/datasets/{visit.quoted('dataset')}"
    )
    uris = _uris(found)
    pipelines = await listed(visit, "trainingPipelines", size=_PIPELINES)
    return View(
        found.get("displayName") or _id(found),
        "dataset.html",
        {
            "dataset": found,
            "id": _id(found),
            "kind": kind_of(found),
            "files": [(uri, await _size(visit, uri)) for uri in uris[:_FILES]],
            "more": len(uris) - _FILES,
            "pipelines": [
                (each, each.get("modelToUpload", {}).get("name", "").rpartition("/")[2])
                for each in pipelines.get("trainingPipelines", ())
                if each.get("inputDataConfig", {}).get("datasetId") == _id(found)
            ],
        },
        place="datasets",
    )


def kind_of(public: Any) -> str:
    """Such as "tabular" or "time series"."""
    name = str(public.get("metadataSchemaUri", "")).rpartition("/")[2]
    return name.partition("_1")[0].replace("_", " ")


def _id(public: Any) -> str:
    return public["name"].rpartition("/")[2]


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

"""The pages of buckets: the list, the folders of one, the outputs of a job; downloading an object."""

from typing import Any, Final
from urllib.parse import quote, urlencode

from trainshed.console.pages.job import describe, tab_view
from trainshed.console.rendering import clean, epoch
from trainshed.console.visits import View, Visit
from trainshed.core.requested import requested
from trainshed.httpd.messages import Response
from trainshed.wire.status import Refused, StatusCode

_PAGE: Final = 200
_SCHEME: Final = "gs://"


async def buckets(visit: Visit) -> View:
    """`/buckets`: the buckets of the project."""
    project, _ = visit.place
    answer = await visit.buckets.ask(
        visit, f"/storage/v1/b?{urlencode({'project': project, 'maxResults': _PAGE})}"
    )
    return View("Buckets", "buckets.html", {"buckets": answer.get("items", ())}, place="buckets")


async def bucket(visit: Visit) -> View:
    """`/buckets/B[?prefix=P]`: the folders and objects on one level of a bucket."""
    name, prefix = visit.variables["bucket"], visit.query("prefix")
    values = await _level(visit, name, prefix, visit.query("page"))
    return View(f"gs://{name}", "bucket.html", values, place="buckets")


async def _level(visit: Visit, name: str, prefix: str, token: str) -> dict[str, Any]:
    query = {"prefix": prefix, "delimiter": "/", "maxResults": str(_PAGE)}
    if token:
        query["pageToken"] = token
    path = f"/storage/v1/b/{quote(name, safe='')}/o?{urlencode(query)}"
    answer = await visit.buckets.ask(visit, path)
    parts = [part for part in prefix.split("/") if part]
    return {
        "bucket": name,
        "prefix": prefix,
        "folders": answer.get("prefixes", ()),
        "objects": [item for item in answer.get("items", ()) if item["name"] != prefix],
        "ways": [(part, "/".join(parts[: place + 1]) + "/") for place, part in enumerate(parts)],
        "following": visit.next_page(answer.get("nextPageToken")),
        "epoch": epoch,
    }


async def outputs(visit: Visit) -> View:
    """`/jobs/J/outputs[?prefix=P]`: one level below the job's output directory."""
    job = await describe(visit)
    place = requested(job.resource or {}).output
    values: dict[str, Any] = {"place": place, "bucket": ""}
    if place.startswith(_SCHEME):
        name, _, below = place.removeprefix(_SCHEME).partition("/")
        top = f"{below.rstrip('/')}/" if below else ""
        prefix = visit.query("prefix")
        prefix = prefix if prefix.startswith(top) else top
        values |= await _level(visit, name, prefix, visit.query("page"))
    return tab_view(visit, job, "outputs", values, lives=False)


async def download(visit: Visit) -> Response:
    """`/buckets/B/download?object=O`: the object's content as a file. Raises Refused."""
    name = visit.query("object")
    if not name:
        raise Refused(StatusCode.INVALID_ARGUMENT, "The address names no object to download.")
    path = f"/storage/v1/b/{visit.quoted('bucket')}/o/{quote(name, safe='')}?alt=media"
    return visit.buckets.download(visit, path, clean(name.rpartition("/")[2]) or "object")

"""The pages of buckets: the list, the folders of one, the outputs of a job; downloading an object."""

from typing import Any, Final
from urllib.parse import quote, urlencode

from trainshed.buckets.authentication import caller_of
from trainshed.buckets.gateway import BucketCalls
from trainshed.core.requested import requested
from trainshed.httpd.messages import Message, Receive, Response, Send
from trainshed.wire.status import Refused, StatusCode
from trainshed_console.pages.job import describe, tab_view
from trainshed_console.rendering import clean, epoch
from trainshed_console.visits import View, Visit

_PAGE: Final = 200
_SCHEME: Final = "gs://"
_MOST: Final = 4 << 20
"""Most bytes of an answer of the storage API that a page is made of."""
_CODES: Final = {
    404: StatusCode.NOT_FOUND,
    413: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
}
_KEPT: Final = frozenset({b"content-type", b"content-length", b"x-goog-generation", b"x-goog-hash"})


async def buckets(visit: Visit) -> View:
    """`/buckets`: the buckets of the project."""
    project, _ = visit.place
    query = urlencode({"project": project, "maxResults": _PAGE})
    answer = await _ask(visit, f"/storage/v1/b?{query}")
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
    answer = await _ask(visit, path)
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
    return _Download(_calls(visit), path, clean(name.rpartition("/")[2]) or "object")


async def _ask(visit: Visit, path: str) -> Any:
    """Return the JSON that answers `GET path` of the storage API. Raises Refused."""
    status, answer = await _calls(visit).ask("GET", path, _MOST)
    if status < 400:
        return answer
    code = _CODES.get(status, StatusCode.PERMISSION_DENIED)
    raise Refused(code, str(answer["error"].get("message", status)))


def _calls(visit: Visit) -> BucketCalls:
    return BucketCalls(visit.buckets, caller_of(visit.principal), visit.is_valid)


class _Download(Response):
    """The download of an object. What jobs wrote is never shown as a page of this address."""

    def __init__(self, calls: BucketCalls, path: str, name: str) -> None:
        super().__init__()
        self._calls = calls
        self._path = path
        self._name = name

    async def send(self, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() in _KEPT]
                if message["status"] < 400:
                    disposition = f"attachment; filename*=UTF-8''{quote(self._name, safe='')}"
                    kept.append((b"content-disposition", disposition.encode()))
                kept.append((b"content-security-policy", b"sandbox; default-src 'none'"))
                names = {name for name, _ in kept}
                more = [pair for pair in self.headers if pair[0] not in names]
                message = {**message, "headers": [*kept, *more]}
            await send(message)

        await self._calls.send("GET", self._path, receive, pass_on)

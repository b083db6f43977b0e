"""The pages of buckets and their folders, and of a job's outputs. Also downloads of objects."""

import asyncio
import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from trainshed.buckets.authentication import caller_of
from trainshed.buckets.callers import Caller
from trainshed.buckets.errors import Unauthenticated
from trainshed.buckets.gateway import BucketsGateway
from trainshed.core.resource_summary import summarize_resource
from trainshed.httpd.forwarding import NoResponse
from trainshed.httpd.messages import Message, Receive, Response, Scope, Send
from trainshed.wire.status import CallRejected, StatusCode
from trainshed_console.pages.job import describe, tab_view
from trainshed_console.rendering import clean, epoch
from trainshed_console.views import View, Visit

_PAGE_SIZE: Final = 200
_SCHEME: Final = "gs://"
_MAX_ANSWER_BYTES: Final = 4 << 20
"""Maximum bytes of a response of the storage API."""
_CODES: Final = {404: StatusCode.NOT_FOUND, 503: StatusCode.UNAVAILABLE}
_FORWARDED_HEADERS: Final = frozenset(
    {b"content-type", b"content-length", b"x-goog-generation", b"x-goog-hash"}
)


async def buckets(visit: Visit) -> View:
    """`/buckets`: the buckets of the project."""
    project, _ = visit.place
    query = {"project": project, "maxResults": _PAGE_SIZE, "pageToken": visit.query("page")}
    answer = await _ask(visit, f"/storage/v1/b?{urlencode(query)}")
    following = visit.next_page(answer.get("nextPageToken"))
    values = {"buckets": answer.get("items", ()), "following": following}
    return View("Buckets", "buckets.html", values, place="buckets")


async def bucket(visit: Visit) -> View:
    """`/buckets/B[?prefix=P]`: the folders and objects on one level of a bucket."""
    name, prefix = visit.variables["bucket"], visit.query("prefix")
    values = await _level(visit, name, prefix, visit.query("page"))
    return View(f"gs://{name}", "bucket.html", values, place="buckets")


async def _level(visit: Visit, name: str, prefix: str, token: str) -> dict[str, Any]:
    query = {"prefix": prefix, "delimiter": "/", "maxResults": str(_PAGE_SIZE)}
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
    place = summarize_resource(job.resource or {}).output
    if job.pipeline_job:
        place = job.pipeline_job.root
    values: dict[str, Any] = {"place": place, "bucket": ""}
    if place and place.startswith(_SCHEME):
        name, _, below = place.removeprefix(_SCHEME).partition("/")
        top = f"{below.rstrip('/')}/" if below else ""
        prefix = visit.query("prefix")
        prefix = prefix if prefix.startswith(top) else top
        values |= await _level(visit, name, prefix, visit.query("page"))
    return tab_view(visit, job, "outputs", values, lives=False)


async def download(visit: Visit) -> Response:
    """`/buckets/B/download?object=O`: the object's content as a file. Raises CallRejected."""
    name = visit.query("object")
    if not name:
        raise CallRejected(
            StatusCode.INVALID_ARGUMENT,
            "The address has no object to download. Open the bucket and select an object.",
        )
    path = f"/storage/v1/b/{visit.encode_variable('bucket')}/o/{quote(name, safe='')}?alt=media"
    return _Download(visit, path, clean(name.rpartition("/")[2]) or "object")


async def _ask(visit: Visit, path: str) -> Any:
    """Send `GET path` to the storage API, and return the JSON of the response. Raises CallRejected."""
    status, body = 0, bytearray()
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        message = next(messages, None)
        if message is None:
            # Never report a disconnected client, because the caller needs the response.
            await asyncio.Event().wait()
        return message

    async def collect_response(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        if len(body) <= _MAX_ANSWER_BYTES:
            body.extend(message.get("body", b""))

    try:
        await _send(visit, path, receive, collect_response)
    except NoResponse as died:
        raise CallRejected(StatusCode.UNAVAILABLE, str(died)) from None
    if len(body) > _MAX_ANSWER_BYTES:
        raise CallRejected(
            StatusCode.RESOURCE_EXHAUSTED,
            "The list of objects is too large to show. Use a longer prefix or gcloud storage ls.",
        )
    answer: Any = json.loads(body)
    if status < 400:
        return answer
    code = _CODES.get(status, StatusCode.PERMISSION_DENIED)
    raise CallRejected(code, str(answer["error"].get("message", status)))


async def _send(visit: Visit, path: str, receive: Receive, send: Send) -> None:
    """Send `GET path` to the bucket process with the visitor's rights. `path`: encoded, with its query."""

    async def identify(_authorization: str | None, _key: str | None) -> Caller:
        if not visit.is_valid():
            raise Unauthenticated("Your session has ended, or your roles changed. Sign in again.")
        return caller_of(visit.principal)

    raw, _, query = path.partition("?")
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"content-length", b"0")],
    }
    await BucketsGateway(visit.buckets, identify)(scope, receive, send)


class _Download(Response):
    """The download of an object. Browsers never render the output of jobs as a page of this address (XSS)."""

    def __init__(self, visit: Visit, path: str, name: str) -> None:
        super().__init__()
        self._visit = visit
        self._path = path
        self._name = name

    async def send(self, receive: Receive, send: Send) -> None:
        async def pass_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].lower() in _FORWARDED_HEADERS]
                if message["status"] < 400:
                    disposition = f"attachment; filename*=UTF-8''{quote(self._name, safe='')}"
                    kept.append((b"content-disposition", disposition.encode()))
                kept.append((b"content-security-policy", b"sandbox; default-src 'none'"))
                names = {name for name, _ in kept}
                more = [pair for pair in self.headers if pair[0] not in names]
                message = {**message, "headers": [*kept, *more]}
            await send(message)

        await _send(self._visit, self._path, receive, pass_on)

"""Sends content: complete objects, byte ranges, and decompressed content for clients without gzip support."""

import logging
import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from urllib.parse import quote

from trainshed.buckets.disk.objects import Opened
from trainshed.buckets.errors import BucketsError, RangeNotSatisfiable
from trainshed.buckets.names import Endpoint
from trainshed.buckets.port import ObjectRecord, read_digits
from trainshed.buckets.rest.calls import Call, header_text
from trainshed.buckets.rest.views import record_headers
from trainshed.buckets.settings import HEADERS
from trainshed.httpd.messages import Receive, Response, Send

_INLINE_USES = frozenset({"", "empty", "image", "audio", "video", "font", "track"})
"""The uses (`Sec-Fetch-Dest`) for which the content keeps its media type. "" = the client is not a browser.
For all other uses, such as pages, frames and scripts, browsers receive the content as an attachment (XSS)."""
_log = logging.getLogger(__name__)
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_HASH_LIMIT = 64 << 20
"""Maximum size in bytes of a file without checksums that is hashed before a download. Such a file was written
through the directory. Larger files are sent without checksums, so that they are not read twice."""


async def download(call: Call) -> Response:
    """Return a response that streams the call's object. Raises `NotFound`, `RangeNotSatisfiable`."""
    opened = await call.run(
        call.store.bucket_store(call.target.bucket).open_object, call.ref(), hash_limit=_HASH_LIMIT
    )
    try:
        return _answer(call, opened)
    except BaseException:
        opened.close()
        raise


def _answer(call: Call, opened: Opened) -> Response:
    record = opened.record
    headers = _headers(call, record)
    if call.request.headers.get("sec-fetch-dest", "") not in _INLINE_USES:
        headers["Content-Type"] = "application/octet-stream"
        if not headers.get("Content-Disposition", "").lower().startswith("attachment"):
            name = quote(call.target.object.rpartition("/")[2], safe="")
            headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
    call.check_tag(headers["ETag"])
    status, start, end = 200, 0, record.size
    if (
        record.fields.get("contentEncoding") == "gzip"
        and "gzip" not in call.request.headers.get("accept-encoding", "")
        and "no-transform" not in record.fields.get("cacheControl", "")
    ):
        del headers["Content-Encoding"]
        headers["Warning"] = "214 UploadServer gunzipped"
        content = call.decompress(_content(call, opened, 0, record.size))
    else:
        sent, etag = call.request.headers, headers["ETag"]
        # Ignore the range if `If-Range` contains another ETag. Otherwise the client would combine parts of
        # different generations.
        is_other = sent.get("if-range", etag).strip('"') != etag
        span = _range("" if is_other else sent.get("range", ""), record.size)
        if span is not None:
            status, (start, end) = 206, span
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{record.size}"
        headers["Content-Length"] = str(end - start)
        content = _content(call, opened, start, end)
    whole = ContentResponse(call, opened, content, status, headers)
    if call.request.method == "HEAD":
        opened.close()
        return Response(b"", status, whole.headers)
    return whole


class ContentResponse(Response):
    """Streams an object, and closes it when the response ends, even if the response was never started."""

    def __init__(
        self, call: Call, opened: Opened, content: AsyncIterator[bytes], status: int, headers: dict[str, str]
    ) -> None:
        raw = [(name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()]
        super().__init__(status=status, headers=raw)
        self._call = call
        self._opened = opened
        self._content = content

    async def send(self, receive: Receive, send: Send) -> None:
        """Send headers and content. Stop reading when the client disconnects."""
        try:
            await self.start(send)
            async for block in self._content:
                await self._call.recheck()
                await send({"type": "http.response.body", "body": block, "more_body": True})
                if await self._call.request.is_gone():
                    return
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BucketsError as error:
            _log.warning("a download was interrupted: %s", error)
        finally:
            self._opened.close()


def _headers(call: Call, record: ObjectRecord) -> dict[str, str]:
    fields = record.fields
    headers = {
        **record_headers(record),
        "Content-Type": "application/octet-stream",
        "Cache-Control": "no-cache, no-store, max-age=0, must-revalidate",
        "Last-Modified": formatdate(record.updated_ns // 1_000_000_000, usegmt=True),
        "Accept-Ranges": "bytes",
        "X-Goog-Stored-Content-Encoding": header_text(fields.get("contentEncoding", "identity")),
        "X-Goog-Storage-Class": header_text(fields.get("storageClass", "STANDARD")),
    }
    for key, name in HEADERS.items():
        if fields.get(key):
            headers[name] = header_text(fields[key])
    if call.is_signed:
        for name in ("Content-Disposition", "Content-Type"):
            if text := call.query.get(f"response-{name.lower()}"):
                headers[name] = header_text(text)
    # In the JSON API, metadata is in the object's resource, not in headers.
    own = record.metadata if call.target.endpoint is Endpoint.XML else {}
    for key, text in own.items():
        if re.fullmatch(r"[\w.-]+", key, re.ASCII):
            headers[f"X-Goog-Meta-{key}"] = header_text(text)
    return headers


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return (start, end) of a `Range` header, where `end` is exclusive. Return None for the complete content
    and for unsupported forms."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = (read_digits(digits, "Range") if digits else None for digits in match.groups())
    if first is None:
        start, end = max(0, size - (last or 0)), size
    else:
        start, end = first, size if last is None else min(size, last + 1)
        if last is not None and last < start:
            return None
    if start >= size:
        raise RangeNotSatisfiable(
            f"The requested range cannot be satisfied: the object has {size} bytes.", size
        )
    return start, end


async def _content(call: Call, opened: Opened, start: int, end: int) -> AsyncIterator[bytes]:
    blocks = opened.blocks(start, end)
    while block := await call.run(next, blocks, b""):
        yield block

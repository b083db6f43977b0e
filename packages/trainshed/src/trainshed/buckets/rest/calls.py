"""A request of the storage API in the form that its handlers receive, and the responses that they return.

The module contains the functions that all handlers share: query and headers, the base URL for the client,
JSON bodies, worker threads for blocking work, and header names with capital letters.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import quote

import msgspec

from trainshed.access.principals import Bearer
from trainshed.buckets.authentication import Listener, PermissionRecheck
from trainshed.buckets.callers import UNKNOWN
from trainshed.buckets.content import BLOCK, Checksums, Staged, check_md5, parse_goog_hash
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import BucketsError, InvalidRequest, NotModified, condition_failed
from trainshed.buckets.names import Endpoint, Target
from trainshed.buckets.port import Conditions, ObjectRef, conditions_of, parse_number
from trainshed.buckets.rest.uploads import UploadSessions
from trainshed.buckets.rest.views import error_view, xml_error
from trainshed.buckets.signatures import is_signed
from trainshed.core.names import project_number
from trainshed.httpd.messages import CHALLENGE, Disconnected, Headers, Request, Response

IDENTITY_HEADER = "x-trainshed-identity"
"""The header in which the gateway identifies the caller. Clients cannot set it."""
XML: Final = "application/xml; charset=UTF-8"
"""The media type of responses of the XML API."""
GUARDS: Final = (
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every response. Programs create the objects, and the console may use the same port. These
headers prevent browsers from running an object's content as a page of that port (XSS)."""
_MAX_JSON = 1 << 20
_GZIP = zlib.MAX_WBITS | 16  # zlib then expects gzip's header and checksum
_CONDITIONS: Final = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class VerbatimName(bytes):
    """A header name that the HTTP server sends unchanged. The server calls `lower` to convert every name to
    lower case, but some clients (libcurl-based file systems) search for `Location` and `Range` with capital
    letters."""

    def lower(self) -> bytes:
        return self


class Call:
    """A storage request in progress."""

    def __init__(
        self,
        request: Request,
        target: Target,
        store: ObjectStore,
        sessions: UploadSessions,
        pool: Executor,
        *,
        check_admission: "Callable[[Call], Awaitable[None]]",
        listener: Listener = Listener.PORT,
        prefix: str = "",
        key: str | None = None,
    ) -> None:
        """`check_admission`: raises if the caller has lost a permission for the call. `prefix`: the start of
        the path in the client's URL, before the API's paths. `key`: the key in that prefix; None = no key."""
        self.request = request
        self.target = target
        self.store = store
        self.sessions = sessions
        self._pool = pool
        # Ignore the authorization header if the URL contains a key, and at all listeners other than the TCP
        # port. It identifies the caller only at that port.
        header = None if key or listener is not Listener.PORT else request.headers.get("authorization")
        self.recheck = PermissionRecheck(partial(check_admission, self), header)
        self.query = request.query
        self.listener = listener
        self.key = key
        #: The caller. The app sets it before a handler receives the call.
        self.caller = UNKNOWN
        #: Whether the request has the form of a signed URL. `signer` is set after the signature was verified.
        self.is_signed = is_signed(request.parameters)
        self.signer: Bearer | None = None
        #: Whether the request is a part of a batch. Its caller is then the caller of the batch.
        self.is_part = False
        scheme: str = request.scope.get("scheme", "http")
        if listener is Listener.GATEWAY:
            scheme = request.headers.get("x-forwarded-proto", scheme)
        self.base = f"{scheme}://{request.headers.get('host', 'localhost')}{prefix}"

    @property
    def path(self) -> str:
        """The path of the request, without `prefix`."""
        return self.request.path

    @property
    def project(self) -> str:
        """The project of a request that refers to all buckets of a project. Default: the caller's project, or
        the service's project if the caller has none."""
        project = self.query.get("project", "")
        own = self.caller.project or self.store.catalog.rules.project
        # google-cloud-storage sends these values if no project is configured. A client may also send the
        # number of the project instead of its ID.
        return own if project in {"", "_", "<none>", str(project_number(own))} else project

    async def run(
        self, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Run blocking work in a worker thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def run_in_steps(self, work: Generator[Result | None]) -> Result:
        """Run long blocking work step by step, so that other requests are not delayed. Return the last value
        that `work` yields. Raises Disconnected."""
        try:
            while (result := await self.run(next, work)) is None:
                await self.recheck()
                if await self.request.is_gone():
                    raise Disconnected
            return result
        finally:
            await self.run(work.close)

    async def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; {} for an empty body. Raises `InvalidRequest`."""
        body = b"".join([block async for block in self.blocks(limit=_MAX_JSON)])
        check_md5(body, self.content_md5)
        return parse_json(body)

    @property
    def content_md5(self) -> str:
        """The MD5 of the request's body in base64; "" = the header is absent."""
        return self.request.headers.get("content-md5", "")

    def checksums(self) -> Checksums:
        """Return the checksums of the complete object from the headers. Raises InvalidRequest."""
        headers: Headers = self.request.scope["headers"]
        name = b"x-goog-hash"
        return parse_goog_hash(value.decode("latin-1") for key, value in headers if key == name)

    def blocks(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yield the body in blocks of about `BLOCK` bytes. A body with gzip encoding is decompressed. The
        header `Content-Encoding` has another meaning in these cases, and the body is not decompressed. In the
        XML API, the header is a property of the object. In a part of a batch, it belongs to the batch."""
        encoding = self.request.headers.get("content-encoding")
        if encoding != "gzip" or self.is_part or self.target.endpoint is Endpoint.XML:
            return self._raw_blocks(limit)
        return self.decompress(self._raw_blocks(limit), limit)

    async def decompress(
        self, packed: AsyncIterator[bytes], limit: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield decompressed gzip data, which may have several members. Raises `InvalidRequest` for invalid
        or truncated gzip data, and for more than `limit` bytes (decompression bomb)."""
        decompressor, is_whole, total = zlib.decompressobj(_GZIP), True, 0
        async for block in packed:
            # Limit the size of each step, because a small file can expand to gigabytes.
            pending = block
            while pending:
                if decompressor.eof:
                    if not pending.startswith(b"\x1f"):
                        return  # trailing padding, which gzip also ignores
                    decompressor = zlib.decompressobj(_GZIP)
                try:
                    content = await self.run(decompressor.decompress, pending, BLOCK)
                except zlib.error as error:
                    raise InvalidRequest(
                        f"The content is not valid gzip: {error}. Compress it again."
                    ) from error
                pending = decompressor.unused_data or decompressor.unconsumed_tail
                if content:
                    total += len(content)
                    if limit is not None and total > limit:
                        raise InvalidRequest(
                            f"The body has over {limit} bytes after decompression. Send fewer bytes."
                        )
                    yield content
            is_whole = decompressor.eof
        if rest := decompressor.flush():
            yield rest
        if not is_whole and not decompressor.eof:
            raise InvalidRequest("The gzip content is truncated. Send all of it.")

    async def _raw_blocks(self, limit: int | None) -> AsyncIterator[bytes]:
        """Yield the body without decompression. If the client disconnects, the received bytes are yielded
        before `Disconnected` is raised, so that a resumable upload loses nothing."""
        pending = bytearray()
        total = 0
        try:
            async for chunk in self.request.blocks():
                await self.recheck()
                pending += chunk
                total += len(chunk)
                if limit is not None and total > limit:
                    raise InvalidRequest(f"The request's body has over {limit} bytes. Send fewer bytes.")
                if len(pending) >= BLOCK:
                    yield bytes(pending)
                    pending.clear()
        except Disconnected:
            if pending:
                yield bytes(pending)
            raise
        await self.recheck()
        if pending:
            yield bytes(pending)

    async def receive(self, staged: Staged) -> None:
        async for block in self.blocks():
            await self.run(staged.write, block)

    def ref(self, name: str = "") -> ObjectRef:
        """Return a reference to the request's object with its preconditions. `name`: the name of a new
        object, if the URL does not contain it."""
        target, generation = self.target, self.number("generation")
        return ObjectRef(target.bucket, name or target.object, generation, self.conditions())

    def destination(self) -> ObjectRef:
        target = self.target
        return ObjectRef(target.to_bucket, target.to_object, conditions=self.conditions())

    def number(self, key: str) -> int | None:
        return parse_number(self.query, key)

    def flag(self, key: str) -> bool:
        """Return a boolean parameter of the query. The Python client capitalizes the value."""
        return self.query.get(key, "").lower() == "true"

    def conditions(self) -> Conditions:
        """Return the request's preconditions. In the XML API, they are in headers."""
        if self.target.endpoint is not Endpoint.XML:
            return conditions_of(self.query)
        headers = self.request.headers
        return conditions_of({field: headers.get(name, "") for name, field in _CONDITIONS.items()})

    def check_tag(self, tag: str) -> None:
        """Check `If-Match` and `If-None-Match` against the entity tag of the object or bucket. Raises
        `PreconditionFailed`, `NotModified`."""
        expected = _tags(self.request.headers.get("if-match", "*"))
        if not expected & {tag, "*"}:
            raise condition_failed()
        if _tags(self.request.headers.get("if-none-match", "")) & {tag, "*"}:
            raise NotModified("Not Modified")


def _tags(header: str) -> set[str]:
    """Return the entity tags in a header. Some clients omit the quotation marks."""
    return {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; {} for an empty body and for `null`. Raises `InvalidRequest`."""
    if body.strip() in (b"", b"null"):
        return {}
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Parse Error: the body is not JSON: {error}. Correct it.") from error
    if not isinstance(value, dict):
        raise InvalidRequest("Parse Error: the body is not a JSON object. Send an object.")
    return cast("dict[str, Any]", value)


def answer(
    body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None, kind: str = ""
) -> Response:
    """Return a response whose headers include the length and the media type (`kind`) of its body."""
    raw = [(name.lower().encode(), text.encode("latin-1")) for name, text in (headers or {}).items()]
    names = {name for name, _ in raw}
    if status not in (204, 304) and b"content-length" not in names:
        raw.append((b"content-length", str(len(body)).encode()))
    if kind and b"content-type" not in names:
        raw.append((b"content-type", kind.encode()))
    return Response(body, status, raw)


def json_answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON response with headers that forbid caching."""
    return answer(
        msgspec.json.encode(value),
        status,
        {"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"},
        "application/json; charset=UTF-8",
    )


def error_answer(error: BucketsError, endpoint: Endpoint) -> Response:
    """Return an error in the form of the API that was called. A response with status 304 has no body."""
    if error.status == 304:
        return Response(status=304)
    if endpoint is Endpoint.XML:
        refused = answer(xml_error(error), error.status, kind=XML)
    else:
        refused = json_answer(error_view(error), error.status)
    if error.status == 401:
        refused.headers.append(CHALLENGE)
    return refused


def with_header(response: Response, name: str, value: str) -> Response:
    """Add a header whose name keeps its capital letters."""
    response.headers.append((VerbatimName(name.encode()), value.encode("latin-1")))
    return response


def header_text(value: str) -> str:
    """Return a property as a header value. Characters other than printable ASCII are percent-encoded."""
    return quote(value, safe=" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

"""One request of the storage API as its handlers see it, and the responses they return.

It has what all handlers share: query and headers, the address the client used, JSON bodies, the change to a
worker thread for blocking work, and header names that keep their capitals.
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
from trainshed.buckets.authentication import Listener, Renewal
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
"""The gateway names the caller in it; no client can set it."""
XML: Final = "application/xml; charset=UTF-8"
"""The type of what the XML API answers."""
GUARDS: Final = (
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers of every answer. Objects are what programs wrote, and the port that answers may be the console's:
browsers are to run nothing of them there."""
_MAX_JSON = 1 << 20
_GZIP = zlib.MAX_WBITS | 16  # The data have gzip's header and checksum.
_CONDITIONS: Final = {
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}
P = ParamSpec("P")
T = TypeVar("T")


class VerbatimName(bytes):
    """A header name that the HTTP server sends as it is written.

    Some clients (libcurl-based file systems) look for `Location` and `Range` with capitals; the server
    calls this method to put every name into lower case.
    """

    def lower(self) -> bytes:
        return self


class Call:
    """A request in progress."""

    def __init__(
        self,
        request: Request,
        target: Target,
        store: ObjectStore,
        sessions: UploadSessions,
        pool: Executor,
        *,
        admitted: "Callable[[Call], Awaitable[None]]",
        listener: Listener = Listener.PORT,
        prefix: str = "",
        key: str | None = None,
    ) -> None:
        """`admitted`: raises if the caller may not do what is asked, as of now. `prefix`: what the client's
        address has before the API's paths; `key`: the key in it, if any."""
        self.request = request
        self.target = target
        self.store = store
        self.sessions = sessions
        self._pool = pool
        # The header says who asks where nothing else does.
        header = (
            None if key or listener is not Listener.PORT else request.headers.get("authorization")
        )
        self.renew = Renewal(partial(admitted, self), header)
        self.query = request.query
        self.listener = listener
        self.key = key
        #: Set before a handler sees the call.
        self.caller = UNKNOWN
        #: Whether it claims to be a signed URL's; `signer` is set once that is verified.
        self.is_signed = is_signed(request.parameters)
        self.signer: Bearer | None = None
        #: Whether it is a part of a batch, whose caller it then has.
        self.is_part = False
        scheme: str = request.scope.get("scheme", "http")
        if listener is Listener.GATEWAY:
            scheme = request.headers.get("x-forwarded-proto", scheme)
        self.base = f"{scheme}://{request.headers.get('host', 'localhost')}{prefix}"

    @property
    def path(self) -> str:
        """The request's path, without what precedes the API's."""
        return self.request.path

    @property
    def project(self) -> str:
        """The project that a request about all buckets names; if it names none, the caller's or the service's
        own."""
        project = self.query.get("project", "")
        own = self.caller.project or self.store.catalog.rules.project
        # google-cloud-storage sends these when it was told no project. A project may also be given by its
        # number.
        return own if project in {"", "_", "<none>", str(project_number(own))} else project

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do blocking work in a worker thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def run_in_steps(self, work: Generator[T | None]) -> T:
        """Do long blocking work a step at a time, so that others have their turns; return what it yields
        last. Raises Disconnected."""
        try:
            while (result := await self.run(next, work)) is None:
                await self.renew()
                if await self.request.is_gone():
                    raise Disconnected
            return result
        finally:
            await self.run(work.close)

    async def json(self) -> dict[str, Any]:
        """The body as a JSON object, {} if it is empty; raises `InvalidRequest`."""
        body = b"".join([block async for block in self.blocks(limit=_MAX_JSON)])
        check_md5(body, self.content_md5)
        return parse_json(body)

    @property
    def content_md5(self) -> str:
        """The MD5 of the request's body in base64; "" = the client does not send it."""
        return self.request.headers.get("content-md5", "")

    def checksums(self) -> Checksums:
        """The checksums of the whole object in the headers. Raises InvalidRequest."""
        headers: Headers = self.request.scope["headers"]
        name = b"x-goog-hash"
        return parse_goog_hash(value.decode("latin-1") for key, value in headers if key == name)

    def blocks(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yields the body in blocks of about `BLOCK` bytes, unpacked if it was packed for the way; in the XML
        API that header is a property of the object, and a part of a batch has it from the batch."""
        encoding = self.request.headers.get("content-encoding")
        if encoding != "gzip" or self.is_part or self.target.endpoint is Endpoint.XML:
            return self._sent(limit)
        return self.unpacked(self._sent(limit), limit)

    async def unpacked(
        self, packed: AsyncIterator[bytes], limit: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yields what gzip packed, also if it is several packed ones, one behind another. Raises
        `InvalidRequest` if it is no gzip, was cut, or has more than `limit` bytes."""
        unpacker, is_whole, total = zlib.decompressobj(_GZIP), True, 0
        async for block in packed:
            # Bounded steps: a small file can unpack to gigabytes.
            pending = block
            while pending:
                if unpacker.eof:
                    if not pending.startswith(b"\x1f"):
                        return  # Padding, which gzip ignores, too.
                    unpacker = zlib.decompressobj(_GZIP)
                try:
                    content = await self.run(unpacker.decompress, pending, BLOCK)
                except zlib.error as error:
                    raise InvalidRequest(f"The content is no gzip, as it says: {error}.") from error
                pending = unpacker.unused_data or unpacker.unconsumed_tail
                if content:
                    total += len(content)
                    if limit is not None and total > limit:
                        raise InvalidRequest(f"The request's body unpacks to over {limit} bytes.")
                    yield content
            is_whole = unpacker.eof
        if rest := unpacker.flush():
            yield rest
        if not is_whole and not unpacker.eof:
            raise InvalidRequest("The content ends within what gzip packed. Send all of it.")

    async def _sent(self, limit: int | None) -> AsyncIterator[bytes]:
        """Yields the body as it was sent.

        When the client goes away in the middle, what has arrived is yielded first, so that a resumable upload
        loses nothing; then `Disconnected` is raised.
        """
        pending = bytearray()
        total = 0
        try:
            async for chunk in self.request.blocks():
                await self.renew()
                pending += chunk
                total += len(chunk)
                if limit is not None and total > limit:
                    raise InvalidRequest(f"The request's body is over {limit} bytes.")
                if len(pending) >= BLOCK:
                    yield bytes(pending)
                    pending.clear()
        except Disconnected:
            if pending:
                yield bytes(pending)
            raise
        await self.renew()
        if pending:
            yield bytes(pending)

    async def receive(self, staged: Staged) -> None:
        async for block in self.blocks():
            await self.run(staged.write, block)

    def ref(self, name: str = "") -> ObjectRef:
        """The object that the request names, and its preconditions. `name`: of a new object, which is not in
        the address."""
        target, generation = self.target, self.number("generation")
        return ObjectRef(target.bucket, name or target.object, generation, self.conditions())

    def destination(self) -> ObjectRef:
        target = self.target
        return ObjectRef(target.to_bucket, target.to_object, conditions=self.conditions())

    def number(self, key: str) -> int | None:
        return parse_number(self.query, key)

    def flag(self, key: str) -> bool:
        """A boolean of the query; Python's client writes it with a capital."""
        return self.query.get(key, "").lower() == "true"

    def conditions(self) -> Conditions:
        """The request's preconditions; those of the XML API come in headers."""
        if self.target.endpoint is not Endpoint.XML:
            return conditions_of(self.query)
        headers = self.request.headers
        return conditions_of({field: headers.get(name, "") for name, field in _CONDITIONS.items()})

    def check_tag(self, tag: str) -> None:
        """Raise unless `If-Match` and `If-None-Match` hold for the entity tag of what is read. Raises
        `PreconditionFailed`, `NotModified`."""
        wanted = _tags(self.request.headers.get("if-match", "*"))
        if not wanted & {tag, "*"}:
            raise condition_failed()
        if _tags(self.request.headers.get("if-none-match", "")) & {tag, "*"}:
            raise NotModified("Not Modified")


def _tags(header: str) -> set[str]:
    """Returns the entity tags of a header, which clients send with quotation marks and without."""
    return {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object from bytes, {} from none and from `null`; raises `InvalidRequest`."""
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
    """Returns a response with the headers that follow from its body. `kind`: its media type."""
    raw = [
        (name.lower().encode(), text.encode("latin-1")) for name, text in (headers or {}).items()
    ]
    names = {name for name, _ in raw}
    if status not in (204, 304) and b"content-length" not in names:
        raw.append((b"content-length", str(len(body)).encode()))
    if kind and b"content-type" not in names:
        raw.append((b"content-type", kind.encode()))
    return Response(body, status, raw)


def json_answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON response that no cache keeps."""
    return answer(
        msgspec.json.encode(value),
        status,
        {"Cache-Control": "no-cache, no-store, max-age=0, must-revalidate"},
        "application/json; charset=UTF-8",
    )


def error_answer(error: BucketsError, endpoint: Endpoint) -> Response:
    """Returns the public form of an error in the API that was asked; a 304 has no body."""
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
    """Add a header whose name keeps its capitals."""
    response.headers.append((VerbatimName(name.encode()), value.encode("latin-1")))
    return response


def header_text(value: str) -> str:
    """Returns a property as a header value: what is not printable ASCII is percent-encoded."""
    return quote(value, safe=" !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

"""Serves the XML API: objects and buckets at `/BUCKET/OBJECT` and `/BUCKET`.

Its clients are TensorFlow's file system (reading), Rust's `object_store` in Polars, Delta Lake and Lance, and
the parallel chunk uploads of google-cloud-storage. Preconditions, properties and checksums are in headers.
Responses and errors are XML.

A multipart upload is an `UploadSessions` session with one file per part. The name of a part's file contains
the part's number and MD5. The MD5 is the part's ETag. When the client sends the list of parts, their contents
become the session's data. The session is then committed like a resumable upload. A repeated request receives
the same response.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import starmap
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from trainshed.buckets.content import BLOCK, UNKNOWN, Checksums, Staged, check_md5, merge_checksums, verify
from trainshed.buckets.errors import InvalidRequest, NoSuchUpload, NotSupported, Unavailable
from trainshed.buckets.listing import after_prefix, common_prefix, encode_token, list_page
from trainshed.buckets.port import MAX_RESULTS, Draft, ObjectRecord, ObjectRef, Query, parse_number
from trainshed.buckets.rest.calls import XML, Call, answer, with_header
from trainshed.buckets.rest.downloads import download
from trainshed.buckets.rest.upload_methods import continue_upload
from trainshed.buckets.rest.uploads import CommittedUpload, UploadSessions, UploadSpec
from trainshed.buckets.rest.views import (
    custom_metadata,
    editable_fields,
    etag_of,
    record_headers,
    timestamp,
    xml_element,
)
from trainshed.buckets.settings import HEADERS
from trainshed.buckets.transfers import copy
from trainshed.httpd.messages import Response

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MAX_XML = 4 << 20
"""Maximum size in bytes of a list of parts. A list of 10,000 parts is smaller than 1 MiB."""
_LIST_NAMESPACE: Final = "http://doc.s3.amazonaws.com/2006-03-01"
_UPLOAD_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_PROPERTIES: Final = {
    **{header.lower(): field for field, header in HEADERS.items()},
    "x-goog-storage-class": "storageClass",
    "x-goog-custom-time": "customTime",
}
_METADATA_PREFIX: Final = "x-goog-meta-"
_LIST_PARAMETERS: Final = {
    *("list-type", "prefix", "delimiter", "max-keys", "marker", "start-after"),
    *("continuation-token", "encoding-type", "fetch-owner"),
}
_IGNORED: Final = {"alt", "key", "prettyPrint", "quotaUser", "userIp", "userProject"}
"""Parameters that clients may add to any request. They have no effect. Parameters of signatures start with
`x-goog-` and are ignored here, too."""
_SIGNIFICANT_PARAMETERS: Final = {"generation", "uploadId", "partNumber"}


async def answer_xml(call: Call) -> Response:
    method, *names = _operation(call)
    if not call.target.object:
        if method == "HEAD":
            await call.run(call.store.catalog.get, call.target.bucket)
            return answer()
        if method == "GET" and _LIST_PARAMETERS.issuperset(names):
            return await _list(call)
        raise _unsupported_error(call)
    # A request may contain no other parameters. An unknown name refers to a sub-resource, such as `acl`, and
    # not to the object's content.
    match method, *names:
        case ["GET" | "HEAD"] | ["GET" | "HEAD", "generation"]:
            return await download(call)
        case ["PUT" | "COPY"]:
            return await (_copy if method == "COPY" else _put)(call)
        case ["PUT" | "DELETE", "upload_id"] | ["POST"]:
            return await (continue_upload if names else _start)(call)
        case ["PUT", "partNumber", "uploadId"]:
            return await _put_part(call)
        case ["POST", "uploads"]:
            return await _initiate(call)
        case ["POST", "uploadId"]:
            return await _complete(call)
        case ["DELETE", "uploadId"]:
            await call.run(call.sessions.cancel, call.target.bucket, call.query["uploadId"])
            return Response(status=204)
        case ["DELETE"] | ["DELETE", "generation"]:
            await call.run(call.store.bucket_store(call.target.bucket).delete, call.ref())
            return Response(status=204)
        case _:
            raise _unsupported_error(call)


def _operation(call: Call) -> list[str]:
    """Return the method (COPY for a PUT that copies), and the sorted names of significant parameters."""
    method = "COPY" if call.target.to_bucket else call.request.method
    ignored = _IGNORED
    if method in ("GET", "HEAD"):
        # Ignore all other parameters with values, because clients add such parameters to reads.
        ignored = ignored | ({n for n, value in call.query.items() if value} - _SIGNIFICANT_PARAMETERS)
    names = (name for name in call.query if not name.lower().startswith("x-goog-"))
    return [method, *sorted(name for name in names if name not in ignored)]


async def _list(call: Call) -> Response:
    bucket, parameters = call.target.bucket, call.query
    limit = call.number("max-keys")
    query = Query(
        prefix=parameters.get("prefix", ""),
        delimiter=parameters.get("delimiter", ""),
        page_token=parameters.get("continuation-token", ""),
        max_results=MAX_RESULTS if limit is None else limit,
    )
    if not query.page_token:
        marker, start_after = parameters.get("marker", ""), parameters.get("start-after", "")
        # If the marker is a common prefix, continue after all names below it. Otherwise continue after the
        # marker itself: the name plus a NUL byte is the next possible name, because names contain no NUL.
        is_prefix = common_prefix(marker, query) == marker
        floor = after_prefix(marker) if is_prefix else (start_after or marker).encode() + b"\0"
        query = replace(query, page_token=encode_token(floor))
    page = await call.run(call.store.bucket_store(bucket).list, bucket, query)
    if limit == 0:
        page = list_page(query, entries=())
    fields = {
        "Name": bucket,
        "Prefix": query.prefix,
        "KeyCount": str(len(page.objects) + len(page.prefixes)),
        "IsTruncated": "true" if page.next_page_token else "false",
    }
    if page.next_page_token:
        fields["NextContinuationToken"] = page.next_page_token
        if "list-type" not in parameters:
            fields["NextMarker"] = max([*dict(page.objects), *page.prefixes])
    inner = [_elements(**fields), *(_contents_element(name, record) for name, record in page.objects)]
    inner += [f"<CommonPrefixes>{_elements(Prefix=p)}</CommonPrefixes>" for p in page.prefixes]
    return _xml("ListBucketResult", _LIST_NAMESPACE, "".join(inner))


def _contents_element(name: str, record: ObjectRecord) -> str:
    fields = _elements(
        Key=name,
        Generation=str(record.generation),
        MetaGeneration=str(record.metageneration),
        LastModified=timestamp(record.updated_ns),
        ETag=etag_of(record),
        Size=str(record.size),
    )
    return f"<Contents>{fields}</Contents>"


def _elements(**fields: str) -> str:
    return "".join(starmap(xml_element, fields.items()))


async def _put(call: Call) -> Response:
    objects = call.store.bucket_store(call.target.bucket)
    draft = Draft(_properties(call), _custom_metadata(call), _client_checksums(call))
    await call.run(objects.precheck, call.ref())
    staged = await call.run(call.store.stage)
    try:
        await call.receive(staged)
        record = await call.run(objects.commit, call.ref(), staged, draft)
    finally:
        await call.run(staged.discard)
    return answer(headers=record_headers(record))


async def _copy(call: Call) -> Response:
    target, headers = call.target, call.request.headers
    sums = _client_checksums(call)
    replaces_metadata = headers.get("x-goog-metadata-directive", "").upper() == "REPLACE"

    def redraft(source: ObjectRecord) -> Draft:
        if replaces_metadata:
            return Draft(_properties(call), _custom_metadata(call), sums)
        return Draft(source.fields, source.metadata, sums)

    generation = parse_number(headers, "x-goog-copy-source-generation")
    source = ObjectRef(target.bucket, target.object, generation)
    record = await call.run_in_steps(copy(call.store, source, call.destination(), redraft))
    inner = _elements(LastModified=timestamp(record.updated_ns), ETag=etag_of(record))
    return _xml("CopyObjectResult", _UPLOAD_NAMESPACE, inner, record)


async def _initiate(call: Call) -> Response:
    bucket, name = call.target.bucket, call.target.object
    fields, custom = _properties(call), _custom_metadata(call)
    spec = UploadSpec(bucket, name, fields, custom, call.checksums(), call.conditions())
    upload_id = await call.run(call.sessions.start, spec)
    inner = _elements(Bucket=bucket, Key=name, UploadId=upload_id)
    return _xml("InitiateMultipartUploadResult", _UPLOAD_NAMESPACE, inner)


async def _start(call: Call) -> Response:
    """Start a resumable upload. If the client used a signed URL, the upload URL in the response also
    authorizes the rest of the upload."""
    if call.request.headers.get("x-goog-resumable") != "start":
        raise _unsupported_error(call)
    bucket, name = call.target.bucket, call.target.object
    signer = (call.signer.email, call.signer.key) if call.signer is not None else None
    spec = UploadSpec(
        bucket,
        name,
        _properties(call),
        _custom_metadata(call),
        _client_checksums(call),
        call.conditions(),
        signer=signer,
    )
    upload_id = await call.run(call.sessions.start, spec)
    place = f"{call.base}/{bucket}/{quote(name, safe='/~')}?upload_id={upload_id}"
    response = with_header(answer(status=201), "X-GUploader-UploadID", upload_id)
    return with_header(response, "Location", place)


async def _put_part(call: Call) -> Response:
    number = call.number("partNumber")
    if number is None or not 1 <= number <= MAX_PARTS:
        raise InvalidRequest(f"'partNumber' must be a number from 1 to {MAX_PARTS}. Correct it.")
    staged = await call.run(stage_part, call.sessions, call.target.bucket, call.query["uploadId"])
    try:
        await call.receive(staged)
        verify(staged.sums, _client_checksums(call))
        sums = staged.sums
        etag = await call.run(keep_part, staged, number)
    finally:
        await call.run(staged.discard)
    return answer(headers={"ETag": etag, "X-Goog-Hash": f"crc32c={sums.crc32c},md5={sums.md5}"})


async def _complete(call: Call) -> Response:
    body = b"".join([block async for block in call.blocks(limit=_MAX_XML)])
    check_md5(body, call.content_md5)
    bucket, parts, sums = call.target.bucket, _parts(body), call.checksums()
    name, record = await call.run(complete, call.sessions, bucket, call.query["uploadId"], parts, sums)
    place = f"{call.base}/{bucket}/{name}"
    inner = _elements(Location=place, Bucket=bucket, Key=name, ETag=etag_of(record))
    return _xml("CompleteMultipartUploadResult", _UPLOAD_NAMESPACE, inner, record)


def _parts(body: bytes) -> "list[Part]":
    if b"<!" in body or b"\0" in body:
        # Reject declarations. No client sends them, and their entities could expand without limit (XXE,
        # entity expansion). Also reject NUL bytes: they indicate UTF-16, which could hide a declaration.
        raise InvalidRequest("The XML list of parts contains a declaration (<!…>). Remove it.")
    from xml.etree import ElementTree  # Imported here, because few clients upload in parts.

    try:
        root = ElementTree.fromstring(body)
        return [_part(element) for element in root if _local_name(element.tag) == "Part"]
    except (
        ElementTree.ParseError,
        ValueError,
        LookupError,
    ) as error:  # LookupError: the encoding is unknown.
        raise InvalidRequest(f"The list of parts cannot be read: {error}. Correct it.") from error


def _part(element: "Element") -> "Part":
    fields = {_local_name(child.tag): (child.text or "").strip() for child in element}
    return Part(int(fields.get("PartNumber", "")), fields.get("ETag"))


def _local_name(tag: str) -> str:
    """Return the name of an XML tag without its namespace, which not all clients send."""
    return tag.rpartition("}")[2]


def _properties(call: Call) -> dict[str, str]:
    headers = call.request.headers
    return editable_fields({field: headers[name] for name, field in _PROPERTIES.items() if headers.get(name)})


def _custom_metadata(call: Call) -> dict[str, str]:
    headers = call.request.headers.items()
    own = {
        name.removeprefix(_METADATA_PREFIX): text
        for name, text in headers
        if name.startswith(_METADATA_PREFIX)
    }
    return custom_metadata({"metadata": own})


def _client_checksums(call: Call) -> Checksums:
    """Return the checksums that the client sent for its content. Raises `InvalidRequest`."""
    return merge_checksums(call.checksums(), Checksums(call.content_md5, ""))


def _xml(name: str, namespace: str, inner: str, record: ObjectRecord | None = None) -> Response:
    text = f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='{namespace}'>{inner}</{name}>"
    headers = record_headers(record) if record is not None else {}
    return answer(text.encode(), 200, headers, XML)


def _unsupported_error(call: Call) -> NotSupported:
    return NotSupported(
        f"{' '.join(_operation(call))} at {call.path} is not supported. The XML API supports only the "
        "content of objects, their lists and multipart uploads. Use the JSON API."
    )


MAX_PARTS = 10_000
"""The maximum number of parts in the public service."""


class Part(Struct, frozen=True):
    """A part in the list with which a client completes an upload."""

    number: int
    #: The part's ETag; None = the client did not send it.
    etag: str | None = None


def stage_part(sessions: UploadSessions, bucket: str, upload_id: str) -> Staged:
    """Return a new file for a part. The caller passes it to `keep_part` or discards it. Raises `NotFound`."""
    directory = sessions.directory_of(bucket, upload_id)
    try:
        return Staged.create(directory)
    except FileNotFoundError as error:
        raise _cancelled_error(upload_id) from error


def keep_part(staged: Staged, number: int) -> str:
    """Store a staged file durably as the part with this number. It replaces an earlier part with the same
    number. Return its ETag."""
    md5 = staged.digest.md5_hex()
    directory = staged.path.parent
    earlier_files = list(directory.glob(f"{_stem(number)}*"))
    target = directory / f"{_stem(number)}{md5}"
    try:
        staged.seal()
        staged.path.rename(target)
    except FileNotFoundError as error:
        raise _cancelled_error(directory.name) from error
    for path in earlier_files:
        if path != target:
            path.unlink(missing_ok=True)
    return f'"{md5}"'


def complete(
    sessions: UploadSessions, bucket: str, upload_id: str, parts: Sequence[Part], sums: Checksums = UNKNOWN
) -> tuple[str, ObjectRecord]:
    """Create the object from its parts and verify its checksums. Return its name and record. Raises
    `NotFound`, `InvalidRequest` for missing parts or wrong checksums, and `Unavailable` while an earlier
    request is still completing the upload."""
    if upload_id in sessions.completing:
        raise Unavailable("The upload is being completed. Send the request again later.")
    sessions.completing.add(upload_id)
    with ExitStack() as ending:
        ending.callback(sessions.completing.discard, upload_id)
        session = sessions.resume(bucket, upload_id)
        if isinstance(session, CommittedUpload):
            return session.spec.name, session.record
        ending.callback(sessions.release, session)
        numbers = [part.number for part in parts]
        if not numbers or numbers != sorted(set(numbers)):
            raise InvalidRequest(
                "The parts of an upload must be in ascending order without duplicates. Correct the list."
            )
        directory = sessions.directory_of(bucket, upload_id)
        names = [path.name for path in directory.glob("part-*")]
        present = {key: name for name in names for key in (name, name[: len(_stem(0))])}
        files = [directory / _file_of(present, part) for part in parts]
        session.restart()
        for path in files:
            with path.open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    session.write(block)
        session.expect(sums)
        record = session.commit()
        for path in directory.glob("part-*"):
            path.unlink(missing_ok=True)
        return session.spec.name, record


def _file_of(present: Mapping[str, str], part: Part) -> str:
    """Return the file name of an uploaded part. `present`: the file name of each uploaded part, by the
    complete name and by its beginning without the MD5."""
    name = present.get(_stem(part.number) + (part.etag or "").strip().strip('"'))
    if name is None:
        raise InvalidRequest(
            f"Part {part.number} with the ETag '{part.etag}' was not uploaded. Upload it, and send its ETag."
        )
    return name


def _stem(number: int) -> str:
    return f"part-{number:05d}-"


def _cancelled_error(upload_id: str) -> NoSuchUpload:
    return NoSuchUpload(f"The upload {upload_id} was cancelled. Start the upload again.")

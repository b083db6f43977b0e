"""The upload methods of the storage API: media, multipart, resumable.

Content is written to disk block by block as it arrives. The complete content is never in memory.
"""

import re
from collections.abc import Mapping
from typing import Any

from trainshed.buckets.content import Checksums, Digest, Staged, merge_checksums, verify
from trainshed.buckets.errors import InvalidRequest, NotSupported, UploadCancelled
from trainshed.buckets.names import Endpoint
from trainshed.buckets.port import Draft, ObjectRecord, read_digits
from trainshed.buckets.rest.calls import Call, answer, json_answer, parse_json, with_header
from trainshed.buckets.rest.multipart import MultipartReader
from trainshed.buckets.rest.uploads import CommittedUpload, UploadSpec, UploadWriter
from trainshed.buckets.rest.views import custom_metadata, editable_fields, object_view, record_headers
from trainshed.buckets.settings import check_object, holds_of
from trainshed.httpd.messages import Disconnected, Response

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")


async def upload(call: Call) -> Response:
    """Handle `/upload/storage/v1/b/B/o`, by `uploadType` and `upload_id`."""
    method, kind = call.request.method, call.query.get("uploadType", "")
    if "upload_id" in call.query:
        if method in {"PUT", "POST", "DELETE"}:
            return await continue_upload(call)
    elif method == "POST":
        match kind:
            case "media":
                return await _media(call)
            case "multipart":
                return await _multipart(call)
            case "resumable":
                return await _start(call)
            case _:
                raise InvalidRequest(f"Unknown uploadType '{kind}'. Use media, multipart or resumable.")
    raise NotSupported(f"{method} on the upload address is not supported. Start an upload with POST.")


async def _media(call: Call) -> Response:
    name = _name(call, {})
    objects = call.store.bucket_store(call.target.bucket)
    await call.run(objects.precheck, call.ref(name))
    staged = await call.run(call.store.stage)
    try:
        await call.receive(staged)
        content_type = call.request.headers.get("content-type", "")
        sums = Checksums(call.content_md5, "")
        return await _commit(call, name, staged, {}, content_type=content_type, sums=sums)
    finally:
        await call.run(staged.discard)


async def _multipart(call: Call) -> Response:
    reader, body = MultipartReader(call.request.headers.get("content-type", "")), Digest()
    staged = await call.run(call.store.stage)
    resource: Mapping[str, Any] | None = None
    name = ""
    try:
        async for block in call.blocks():
            if call.content_md5:
                await call.run(body.update, block)
            content = reader.feed(block)
            if reader.head is not None and resource is None:
                resource = check_object(parse_json(reader.head.metadata))
                name = _name(call, resource)
                objects = call.store.bucket_store(call.target.bucket)
                await call.run(objects.precheck, call.ref(name))
            if content:
                await call.run(staged.write, content)
        content = reader.finish()
        await call.run(staged.write, content)
        if reader.head is None or resource is None:
            raise InvalidRequest(
                "The multipart upload has no metadata part. Send the metadata part, then the content part."
            )
        verify(body.sums(), Checksums(call.content_md5, ""))
        head = reader.head
        return await _commit(call, name, staged, resource, content_type=head.content_type, sums=head.expected)
    finally:
        await call.run(staged.discard)


async def _commit(
    call: Call, name: str, staged: Staged, resource: Mapping[str, Any], *, content_type: str, sums: Checksums
) -> Response:
    """Commit the content as an object. `sums`: the client's checksums in addition to those in `resource` and
    in `X-Goog-Hash`."""
    record = await call.run(
        call.store.bucket_store(call.target.bucket).commit,
        call.ref(name),
        staged,
        Draft(
            _fields(call, resource, content_type),
            custom_metadata(resource),
            merge_checksums(_client_checksums(call, resource), sums),
            holds_of(resource),
        ),
    )
    return json_answer(object_view(call.base, call.target.bucket, name, record))


async def _start(call: Call) -> Response:
    resource = check_object(await call.json())
    name = _name(call, resource)
    headers = call.request.headers
    total = headers.get("x-upload-content-length", "")
    spec = UploadSpec(
        call.target.bucket,
        name,
        _fields(call, resource, headers.get("x-upload-content-type", "")),
        custom_metadata(resource),
        _client_checksums(call, resource),
        call.conditions(),
        read_digits(total, "X-Upload-Content-Length") if total.isdecimal() else None,
        holds_of(resource),
    )
    upload_id = await call.run(call.sessions.start, spec)
    path = call.request.raw_path
    location = f"{call.base}{path}?uploadType=resumable&upload_id={upload_id}"
    response = answer()
    with_header(response, "X-GUploader-UploadID", upload_id)
    return with_header(response, "Location", location)


async def continue_upload(call: Call) -> Response:
    upload_id = call.query["upload_id"]
    if call.request.method == "DELETE":
        await call.run(call.sessions.cancel, call.target.bucket, upload_id)
        raise UploadCancelled("The upload was cancelled. Start a new upload.")
    session = await call.run(call.sessions.resume, call.target.bucket, upload_id)
    if isinstance(session, CommittedUpload):
        async for _ in call.blocks():
            pass  # Discard the repeated last chunk, because the object is already stored.
        return _object_response(call, session.spec, session.record)
    try:
        return await _receive(call, session)
    finally:
        await call.run(call.sessions.release, session)


async def _receive(call: Call, writer: UploadWriter) -> Response:
    first, total, is_last = _content_range(call)
    await call.run(writer.expect, call.checksums())
    if call.content_md5:
        if first != 0 or writer.offset or not (is_last or total == _length(call)):
            raise NotSupported(
                "Content-MD5 is supported only for uploads in one request. Send X-Goog-Hash of the whole "
                "object."
            )
        await call.run(writer.expect, Checksums(call.content_md5, ""))
    if first is None:
        async for _ in call.blocks():
            pass  # a status query, which has no content
    else:
        is_last = is_last and first <= writer.offset
        await _append(call, writer, first)
    if total is not None and writer.spec.total not in (None, total):
        raise InvalidRequest(
            f"The upload was started with a size of {writer.spec.total} bytes, but this request has the size "
            f"{total}. Start the upload again."
        )
    if total is None and is_last:
        total = writer.offset if writer.spec.total is None else writer.spec.total
    if total is not None and writer.offset > total:
        raise InvalidRequest(
            f"The upload has {writer.offset} bytes, more than its size of {total} bytes. "
            "Cancel it and start again."
        )
    if total is not None and writer.offset == total:
        record = await call.run(writer.commit)
        return _object_response(call, writer.spec, record)
    await call.run(writer.sync)
    response = _incomplete(call)
    with_header(response, "X-GUploader-UploadID", writer.upload_id)
    if writer.offset:
        with_header(response, "Range", f"bytes=0-{writer.offset - 1}")
    return response


def _length(call: Call) -> int | None:
    """Return the size of the request's body in bytes, or None if unknown."""
    length = call.request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def _incomplete(call: Call) -> Response:
    """Return status 308, which means an incomplete upload in the public API. If the client requests it, as
    Go's libraries do, the status is in a header instead. Those libraries treat status 308 as a failure."""
    if call.request.headers.get("x-guploader-no-308", "") != "yes":
        return answer(status=308)
    return with_header(answer(), "X-HTTP-Status-Code-Override", "308")


async def _append(call: Call, writer: UploadWriter, first: int) -> None:
    """Append a chunk that starts at `first`, without bytes that are already stored. If bytes before the chunk
    are missing, nothing is appended. The response then contains the offset at which to continue."""
    skip = writer.offset - first
    try:
        async for block in call.blocks():
            if skip < 0:
                continue
            new_bytes = block[skip:]
            skip = max(0, skip - len(block))
            if new_bytes:
                await call.run(writer.write, new_bytes)
    except Disconnected:
        await call.run(writer.sync)
        raise


def _content_range(call: Call) -> tuple[int | None, int | None, bool]:
    """Return (first byte, total, whether the content ends with this request) of a chunk. The first byte is
    None for a status query. The total is None if it is unknown."""
    header = call.request.headers.get("content-range")
    if header is None:
        return 0, None, True
    match = _CONTENT_RANGE.fullmatch(header.strip())
    if match is None:
        raise InvalidRequest(
            f"Failed to parse Content-Range header '{header}'. "
            "Send 'bytes FIRST-LAST/TOTAL', with '*' for unknown values."
        )
    first, last, total = (
        None if digits in (None, "*") else read_digits(digits, "Content-Range") for digits in match.groups()
    )
    return first, total, first is not None and last is None


def _object_response(call: Call, spec: UploadSpec, record: ObjectRecord) -> Response:
    if call.target.endpoint is Endpoint.XML:
        return answer(headers=record_headers(record))
    return json_answer(object_view(call.base, spec.bucket, spec.name, record))


def _name(call: Call, resource: Mapping[str, Any]) -> str:
    name = call.query.get("name") or resource.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("Required: the object's 'name', in the query or in the metadata.")
    return name


def _fields(call: Call, resource: Mapping[str, Any], content_type: str) -> dict[str, str]:
    fields = editable_fields(resource)
    if "contentType" not in fields and content_type:
        fields["contentType"] = content_type
    if "contentEncoding" in call.query:
        fields.setdefault("contentEncoding", call.query["contentEncoding"])
    return fields


def _client_checksums(call: Call, resource: Mapping[str, Any]) -> Checksums:
    md5, crc32c = (str(resource.get(name) or "") for name in ("md5Hash", "crc32c"))
    return merge_checksums(call.checksums(), Checksums(md5, crc32c))

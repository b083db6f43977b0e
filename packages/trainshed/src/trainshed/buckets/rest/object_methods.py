"""Methods of the storage API on objects. Each method converts a request to a resource or to content."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, cast

from trainshed.buckets.content import Checksums
from trainshed.buckets.errors import InvalidRequest, NotSupported, no_such_object, require_object
from trainshed.buckets.port import (
    EDITABLE,
    MAX_RESULTS,
    Conditions,
    Draft,
    ObjectRecord,
    ObjectRef,
    Query,
    conditions_of,
    parse_number,
)
from trainshed.buckets.rest.calls import Call, json_answer
from trainshed.buckets.rest.downloads import download
from trainshed.buckets.rest.views import custom_metadata, editable_fields, etag_of, object_view
from trainshed.buckets.settings import check_object, holds_of
from trainshed.buckets.transfers import compose, copy, move
from trainshed.httpd.messages import Response

_HASH_LIMIT = 1 << 30
"""Maximum size in bytes of a file whose missing checksums a `get` computes, which takes some seconds. Larger
files that were written through the directory have no checksums, because clients would time out."""

_SEARCH_THREADS: Final = ThreadPoolExecutor(2, thread_name_prefix="globs")
"""Threads for glob searches, so that searches never occupy all threads of the other requests."""


async def collection(call: Call) -> Response:
    """Handle `b/B/o`: list."""
    if call.request.method != "GET":
        raise NotSupported(
            f"{call.request.method} on a list of objects is not supported here. "
            "Send uploads to /upload/storage/v1/b/BUCKET/o."
        )
    query = Query(
        prefix=call.query.get("prefix", ""),
        delimiter=call.query.get("delimiter", ""),
        page_token=call.query.get("pageToken", ""),
        max_results=call.number("maxResults") or MAX_RESULTS,
        start_offset=call.query.get("startOffset", ""),
        end_offset=call.query.get("endOffset", ""),
        include_trailing_delimiter=call.flag("includeTrailingDelimiter"),
        match_glob=call.query.get("matchGlob", ""),
        versions=call.flag("versions"),
    )
    answer: dict[str, Any] = {"kind": "storage#objects"}
    if call.flag("softDeleted"):
        await call.run(call.store.catalog.get, call.target.bucket)
        return json_answer(answer)  # An empty list: this service has no soft deletion.
    listing = call.store.bucket_store(call.target.bucket).list
    if query.match_glob:
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(_SEARCH_THREADS, listing, call.target.bucket, query)
    else:
        page = await call.run(listing, call.target.bucket, query)
    if page.next_page_token:
        answer["nextPageToken"] = page.next_page_token
    if page.prefixes:
        answer["prefixes"] = page.prefixes
    if page.objects:
        answer["items"] = [
            object_view(call.base, call.target.bucket, name, record) for name, record in page.objects
        ]
    return json_answer(answer)


async def item(call: Call) -> Response:
    """Handle `b/B/o/O`: get (properties or content), patch, update, delete."""
    bucket, name = call.target.bucket, call.target.object
    objects = call.store.bucket_store(bucket)
    match call.request.method:
        case "GET" | "HEAD":
            if call.flag("softDeleted"):
                raise no_such_object(bucket, name)  # This service keeps no soft-deleted objects.
            if call.query.get("alt") == "media":
                return await download(call)
            record = await call.run(objects.read_record, call.ref(), hash_limit=_HASH_LIMIT)
            call.check_tag(etag_of(record))
        case "PATCH" | "PUT" as method:
            change = _change(check_object(await call.json()), whole=method == "PUT")
            record = await call.run(objects.patch, call.ref(), change)
        case "DELETE":
            await call.run(objects.delete, call.ref())
            return Response(status=204)
        case method:
            raise NotSupported(f"{method} on an object is not supported. Use GET, PATCH, PUT or DELETE.")
    return json_answer(object_view(call.base, bucket, name, record))


async def action(call: Call) -> Response:
    """Handle `b/B/o/O/VERB`: compose, copyTo, rewriteTo, moveTo. Raise NotSupported for all other verbs."""
    verb = call.target.action
    if call.request.method != "POST" or verb not in {"compose", "copyTo", "rewriteTo", "moveTo"}:
        raise NotSupported(
            f"{call.request.method} {verb} of an object is not supported by this service. Use copies, moves "
            "or compose. To control access, use the bucket's IAM policy."
        )
    body = check_object(await call.json())
    if verb == "compose":
        record = await _compose(call, body)
        return json_answer(object_view(call.base, call.target.bucket, call.target.object, record))
    source = ObjectRef(
        call.target.bucket,
        call.target.object,
        call.number("sourceGeneration"),
        conditions_of(call.query, "ifSource"),
    )
    target = call.destination()
    work = move if verb == "moveTo" else copy
    record = await call.run_in_steps(work(call.store, source, target, _redraft(body, call.checksums())))
    resource = object_view(call.base, target.bucket, target.name, record)
    if verb != "rewriteTo":
        return json_answer(resource)
    return json_answer(
        {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(record.size),
            "objectSize": str(record.size),
            "done": True,
            "resource": resource,
        }
    )


async def _compose(call: Call, body: Mapping[str, Any]) -> ObjectRecord:
    entries = body.get("sourceObjects")
    if not isinstance(entries, list):
        raise InvalidRequest("Required: 'sourceObjects', a list of objects with a 'name'.")
    sources = [_source(call.target.bucket, entry) for entry in cast("list[Any]", entries)]
    destination = check_object(require_object(body.get("destination"), "destination"))
    # Ignore checksums in the resource of the destination: clients send those of the first component.
    draft = Draft(
        editable_fields(destination), custom_metadata(destination), call.checksums(), holds_of(destination)
    )
    return await call.run_in_steps(compose(call.store, call.ref(), sources, draft))


def _source(bucket: str, entry: Any) -> ObjectRef:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name = fields.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("An entry of 'sourceObjects' has no 'name'. Add it.")
    conditions = require_object(fields.get("objectPreconditions"), "objectPreconditions")
    numbers = {key: str(value) for key, value in {**conditions, **fields}.items() if value is not None}
    return ObjectRef(
        bucket,
        name,
        parse_number(numbers, "generation"),
        Conditions(generation_match=parse_number(numbers, "ifGenerationMatch")),
    )


def _redraft(body: Mapping[str, Any], sums: Checksums) -> Callable[[ObjectRecord], Draft]:
    """Return a function that creates the draft of a copy. The draft has the properties in the request's
    resource, or those of the source if the request has no resource. `sums`: the checksums in the request's
    headers. Checksums in the resource are ignored, because clients send those of the previous destination."""
    holds = holds_of(body)

    def redraft(source: ObjectRecord) -> Draft:
        fields, metadata = editable_fields(body), custom_metadata(body)
        if not fields and not metadata:
            return Draft(source.fields, source.metadata, sums, holds)
        if "contentType" not in fields and "contentType" in source.fields:
            fields["contentType"] = source.fields["contentType"]
        return Draft(fields, metadata, sums, holds)

    return redraft


def _change(body: Mapping[str, Any], *, whole: bool) -> Callable[[ObjectRecord], ObjectRecord]:
    """Return a function that updates a record. Default: as for PATCH, merge the properties; a value of None
    removes a property. `whole`: as for PUT, replace all properties."""

    def change(record: ObjectRecord) -> ObjectRecord:
        if whole:
            return replace(
                record, fields=editable_fields(body), metadata=custom_metadata(body), holds=holds_of(body)
            )
        fields = {key: text for key, text in record.fields.items() if key not in body}
        fields.update(editable_fields({key: body.get(key) for key in EDITABLE}))
        metadata = dict(record.metadata)
        if "metadata" in body:
            changes = body["metadata"]
            merged = {} if changes is None else {**metadata, **require_object(changes, "metadata")}
            metadata = custom_metadata({"metadata": merged})
        holds = holds_of(body, record.holds)
        return replace(record, fields=fields, metadata=metadata, holds=holds)

    return change

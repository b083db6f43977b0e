"""Methods of the storage API on buckets. Each method converts a request to a resource."""

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from trainshed.buckets.admission import (
    admit_name,
    admit_policy,
    admit_project,
    anonymous_error,
    held_permissions,
)
from trainshed.buckets.disk.catalog import DEFAULT_LOCATION, BucketCatalog, BucketRecord
from trainshed.buckets.errors import InvalidRequest, NotFound, NotSupported
from trainshed.buckets.listing import decode_token, encode_token
from trainshed.buckets.rest.calls import Call, json_answer
from trainshed.buckets.rest.views import bucket_view, layout_view, policy_view, service_account_view
from trainshed.httpd.messages import Response

_log = logging.getLogger(__name__)
_MAX_RESULTS = 1000
_PROJECT = re.compile(r"[A-Za-z0-9.:_-]{1,100}")


class _Binding(Struct):
    role: str
    members: list[str] = []


async def collection(call: Call) -> Response:
    """Handle `b`: list and insert."""
    match call.request.method:
        case "GET":
            return await _list(call)
        case "POST":
            return await _insert(call)
        case method:
            raise NotSupported(f"{method} on the list of buckets is not supported. Use GET or POST.")


async def bucket(call: Call) -> Response:
    """Handle `b/B`: get, patch, update, delete."""
    name = call.target.bucket
    catalog = call.store.catalog
    match call.request.method:
        case "GET" | "HEAD":
            record = await call.run(catalog.get, name)
            call.conditions().check(0, record.metageneration, reading=True)
            call.check_tag(record.etag)
        case "PATCH" | "PUT" as method:
            whole = method == "PUT"
            record = await call.run(catalog.patch, name, await call.json(), call.conditions(), whole=whole)
        case "DELETE":
            await call.run(catalog.delete, name, call.conditions())
            _log.warning("bucket %s was deleted by %s", name, _describe_caller(call))
            return Response(status=204)
        case method:
            raise NotSupported(f"{method} on a bucket is not supported. Use GET, PATCH, PUT or DELETE.")
    return json_answer(_view(call, record))


def _describe_caller(call: Call) -> str:
    """Return the caller's name for the service's log. The service's log shows who changed a bucket, because
    the audit log does not contain changes of storage."""
    program = call.caller.program
    of_job = f" in a program of job {program.job_uid}" if program is not None else ""
    return f"{call.caller.email}{of_job}"


def _view(call: Call, record: BucketRecord) -> dict[str, Any]:
    return bucket_view(call.base, record, call.store.catalog.project_of(record))


def service_account(call: Call, project: str) -> Response:
    """Handle `projects/P/serviceAccount`: get. Raises Unauthenticated, Forbidden."""
    admit_project(call.caller, "storage.buckets.list", project)
    return json_answer(service_account_view(project))


async def part(call: Call) -> Response:
    """Handle `b/B/…`: IAM policy, storage layout, managed folders. Other paths are not supported."""
    catalog = call.store.catalog
    match call.request.method, call.target.action:
        case "GET", "storageLayout":
            return json_answer(layout_view(await call.run(catalog.get, call.target.bucket)))
        case "GET", "managedFolders":
            await call.run(catalog.get, call.target.bucket)
            return json_answer({"kind": "storage#managedFolders"})
        case "GET", "iam":
            return json_answer(policy_view(await call.run(catalog.get, call.target.bucket)))
        case "PUT", "iam":
            policy = await call.json()
            bindings, etag = _bindings(policy), str(policy.get("etag") or "")
            admit_policy(call.caller, bindings)
            record = await call.run(catalog.set_policy, call.target.bucket, bindings, etag)
            _log.warning("policy of bucket %s was set by %s", call.target.bucket, _describe_caller(call))
            return json_answer(policy_view(record))
        case "GET", "iam/testPermissions":
            if call.caller.email is None:
                raise anonymous_error("storage.buckets.testIamPermissions")
            await call.run(catalog.get, call.target.bucket)
            access = catalog.access(call.target.bucket)
            requested = call.request.values.get("permissions", ())
            held = held_permissions(call.caller, requested, access) if access else []
            kind = "storage#testIamPermissionsResponse"
            return json_answer({"kind": kind, "permissions": held})
        case method, action:
            raise NotSupported(
                f"{method} {action} of a bucket is not supported by this service. "
                "Use buckets, objects, uploads, copies or the IAM policy."
            )


async def _insert(call: Call) -> Response:
    admit_project(call.caller, "storage.buckets.create", call.project)
    resource = await call.json()
    name = resource.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("Required: a bucket resource with a 'name'.")
    admit_name(call.caller, name, call.store.catalog.rules)
    location = str(resource.get("location") or DEFAULT_LOCATION)
    if not _PROJECT.fullmatch(call.project):
        raise InvalidRequest(
            f"Invalid project: {call.project!r}. Use a project ID of letters, digits, '-', '.' and ':'."
        )
    record = await call.run(call.store.catalog.create, name, location, resource, call.project)
    return json_answer(_view(call, record))


async def _list(call: Call) -> Response:
    limit = max(1, min(call.number("maxResults") or _MAX_RESULTS, _MAX_RESULTS))
    after = decode_token(call.query.get("pageToken", ""))
    admit_project(call.caller, "storage.buckets.list", call.project)
    everything = call.caller.may_do_everything and not call.query.get("project")
    project = None if everything else call.project
    buckets = _buckets(call.store.catalog, project, call.query.get("prefix", ""), after)
    records = await call.run(list, islice(buckets, limit + 1))
    answer: dict[str, Any] = {"kind": "storage#buckets"}
    if records:
        answer["items"] = [_view(call, record) for record in records[:limit]]
    if len(records) > limit:
        answer["nextPageToken"] = encode_token(records[limit - 1].name.encode())
    return json_answer(answer)


def _buckets(
    catalog: BucketCatalog, project: str | None, prefix: str, after: bytes
) -> Iterator[BucketRecord]:
    """Yield (in order of name) the buckets of a project and the shared buckets, starting after the name
    `after`. `project`: None = all projects."""
    for name in catalog.names(prefix):
        access = catalog.access(name) if name.encode() > after else None
        if access and (project is None or access.is_shared or access.project == project):
            with suppress(NotFound):  # Omit a bucket that another request has deleted.
                yield catalog.get(name)


def _bindings(policy: dict[str, Any]) -> list[dict[str, Any]]:
    bindings = policy.get("bindings", [])
    try:
        msgspec.convert(bindings, list[_Binding])
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"'bindings' of a policy must be a list of objects with 'role' and 'members': {error}."
        ) from error
    return bindings

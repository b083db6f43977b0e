"""The methods of the storage API that concern buckets: request in, resource out."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any, cast

from starlette.responses import Response

from trainshed.buckets.calls import Call, json_answer
from trainshed.buckets.catalog import DEFAULT_LOCATION, BucketRecord
from trainshed.buckets.errors import InvalidRequest, NotSupported
from trainshed.buckets.views import bucket_view, layout_view, policy_view

_MAX_RESULTS = 1000


async def collection(call: Call) -> Response:
    """``b``: list and insert."""
    match call.request.method:
        case "GET":
            return await _list(call)
        case "POST":
            return await _insert(call)
        case method:
            raise NotSupported(f"{method} on the list of buckets is not supported.")


async def bucket(call: Call) -> Response:
    """``b/B``: get, patch, update, delete."""
    name = call.target.bucket
    catalog = call.store.catalog
    match call.request.method:
        case "GET" | "HEAD":
            record = await call.run(catalog.get, name)
            call.conditions().check(0, record.metageneration, reading=True)
        case "PATCH" | "PUT":
            record = await call.run(catalog.patch, name, await call.json(), call.conditions())
        case "DELETE":
            await call.run(catalog.delete, name, call.conditions())
            return Response(status_code=204)
        case method:
            raise NotSupported(f"{method} on a bucket is not supported.")
    return json_answer(bucket_view(call.base, record))


async def part(call: Call) -> Response:
    """``b/B/…``: IAM policy, storage layout, managed folders; everything else is a 501."""
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
            bindings = _bindings(await call.json())
            return json_answer(
                policy_view(await call.run(catalog.set_policy, call.target.bucket, bindings))
            )
        case "GET", "iam/testPermissions":
            await call.run(catalog.get, call.target.bucket)
            asked = call.request.query_params.getlist("permissions")
            return json_answer({"kind": "storage#testIamPermissionsResponse", "permissions": asked})
        case method, action:
            raise NotSupported(
                f"{method} {action} of a bucket is not supported by this service. "
                "Buckets, objects, their uploads, copies and IAM policy are."
            )


async def _insert(call: Call) -> Response:
    resource = await call.json()
    name = resource.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("Required: a bucket resource with a 'name'.")
    location = str(resource.get("location") or DEFAULT_LOCATION)
    record = await call.run(call.store.catalog.create, name, location, resource)
    return json_answer(bucket_view(call.base, record))


async def _list(call: Call) -> Response:
    limit = max(1, min(call.number("maxResults") or _MAX_RESULTS, _MAX_RESULTS))
    token = call.query.get("pageToken", "")
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"Invalid page token '{token}'. List again without it.") from error
    names = await call.run(call.store.catalog.names, call.query.get("prefix", ""))
    names = [name for name in names if name > after]
    records: list[BucketRecord] = await asyncio.gather(
        *(call.run(call.store.catalog.get, name) for name in names[:limit])
    )
    answer: dict[str, Any] = {"kind": "storage#buckets"}
    if records:
        answer["items"] = [bucket_view(call.base, record) for record in records]
    if len(names) > limit:
        last = names[limit - 1].encode()
        answer["nextPageToken"] = base64.urlsafe_b64encode(last).decode()
    return json_answer(answer)


def _bindings(policy: dict[str, Any]) -> list[dict[str, Any]]:
    bindings = policy.get("bindings", [])
    if not isinstance(bindings, list) or not all(
        isinstance(binding, dict) for binding in cast("list[Any]", bindings)
    ):
        raise InvalidRequest("'bindings' of a policy is a list. Send a list of role bindings.")
    return cast("list[dict[str, Any]]", bindings)

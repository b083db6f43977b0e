"""Sends the service's own requests to the bucket process: listing and copying objects on behalf of a caller.

Copies go through the bucket process, which is the only writer of objects and decides what the caller may do.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from trainshed.buckets.callers import Caller
from trainshed.buckets.errors import (
    BucketsError,
    Forbidden,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from trainshed.buckets.gateway import BucketsGateway
from trainshed.buckets.port import MAX_RESULTS

_ERRORS: dict[int, type[BucketsError]] = {
    403: Forbidden,
    404: NotFound,
    412: PreconditionFailed,
    429: Unavailable,
}


class BucketCalls:
    """The buckets with the rights of one caller. Raises the exceptions of ``errors``: ``Unavailable`` while
    the bucket process restarts."""

    def __init__(self, uds: Path, caller: Caller) -> None:
        """`uds`: the bucket process's socket for the service."""
        self._gateway = BucketsGateway(uds, lambda _authorization, _key: caller)

    async def close(self) -> None:
        """Close the idle connections."""
        await self._gateway.close()

    async def objects(self, bucket: str, prefix: str) -> list[dict[str, Any]]:
        """Returns every object with the prefix as its public resource, in the order of the names."""
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            query = {"prefix": prefix, "maxResults": str(MAX_RESULTS)}
            if token:
                query["pageToken"] = token
            page = await self._call("GET", f"/storage/v1/b/{bucket}/o", query)
            items += page.get("items", [])
            token = page.get("nextPageToken", "")
            if not token:
                return items

    async def copy(
        self, source: tuple[str, str], target: tuple[str, str], generation: str = ""
    ) -> None:
        """Copy an object, (bucket, name) each, completely or not at all. `generation`: the one to copy; "" =
        the current one."""
        query = {"sourceGeneration": generation} if generation else {}
        paths = [f"b/{bucket}/o/{quote(name, safe='')}" for bucket, name in (source, target)]
        await self._call("POST", f"/storage/v1/{paths[0]}/rewriteTo/{paths[1]}", query)

    async def _call(self, method: str, path: str, query: dict[str, str]) -> Any:
        status, body = 0, bytearray()
        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await asyncio.Event().wait()  # Never disconnects before the answer is there.
            return message

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query).encode(),
            "headers": [(b"host", b"localhost"), (b"content-length", b"0")],
        }
        try:
            await self._gateway(scope, receive, send)
        except RuntimeError as died:
            raise Unavailable(str(died)) from died
        answer: Any = json.loads(body) if body else {}
        if status < 300:
            return answer
        kind = Unavailable if status >= 500 else _ERRORS.get(status, BucketsError)
        raise kind(str(answer.get("error", {}).get("message", f"HTTP status {status}")))

"""Calls the methods of the storage JSON API that commands need. Content is moved by `uploading` and
`downloading`."""

import json
import urllib.parse

from trainshed_gsutil.connection import Connection
from trainshed_gsutil.errors import BucketNotFound, ServiceFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    Resource = dict[str, Any]

_API = "/storage/v1/b"
_LISTED = (
    "name,bucket,size,generation,metageneration,md5Hash,crc32c,contentType,contentEncoding,cacheControl,"
    "contentDisposition,contentLanguage,storageClass,timeCreated,updated,etag,metadata,componentCount"
)
"""The properties of objects that listings ask for: all that any command uses."""


class Storage:
    """The storage behind one endpoint. `project`: whose buckets are listed and made; "" = the caller's
    own."""

    def __init__(self, connection: Connection, project: str = "") -> None:
        self.connection = connection
        self._project = project

    # --- buckets ---

    def buckets(self) -> "Iterator[Resource]":
        query = {"project": self._project} if self._project else {}
        return self._pages(_API, query)

    def bucket(self, name: str) -> "Resource":
        """Returns a bucket's properties. Raises BucketNotFound, ServiceFailure."""
        return self._of_bucket(name, "GET", "")

    def make_bucket(self, resource: "Resource") -> None:
        query = {"project": self._project} if self._project else {}
        self._send("POST", _API, query, resource)

    def remove_bucket(self, name: str) -> None:
        self._of_bucket(name, "DELETE", "")

    def policy(self, name: str) -> "Resource":
        return self._of_bucket(name, "GET", "/iam")

    def set_policy(self, name: str, policy: "Resource") -> None:
        self._of_bucket(name, "PUT", "/iam", policy)

    def _of_bucket(
        self, name: str, method: str, part: str, body: "Resource | None" = None
    ) -> "Resource":
        try:
            return self._send(method, "%s/%s%s" % (_API, quoted(name), part), {}, body)
        except ServiceFailure as failure:
            if failure.status == 404:
                raise BucketNotFound(name) from None
            raise

    # --- objects ---

    def objects(
        self, bucket: str, prefix: str = "", delimiter: str = ""
    ) -> "Iterator[tuple[str, Resource | None]]":
        """Yields (name, properties, or None for a common prefix), sorted by name within each page. Raises
        BucketNotFound, ServiceFailure."""
        query = {"fields": f"nextPageToken,prefixes,items({_LISTED})"}
        if prefix:
            query["prefix"] = prefix
        if delimiter:
            query["delimiter"] = delimiter
        path = "%s/%s/o" % (_API, quoted(bucket))
        try:
            for page in self._each_page(path, query):
                for resource in page.get("items", ()):
                    yield resource["name"], resource
                for name in page.get("prefixes", ()):
                    yield name, None
        except ServiceFailure as failure:
            if failure.status == 404:
                raise BucketNotFound(bucket) from None
            raise

    def object(self, bucket: str, name: str, generation: str = "") -> "Resource | None":
        """Returns an object's properties; None if it does not exist. Raises ServiceFailure."""
        query = {"generation": generation} if generation else {}
        try:
            return self._send("GET", object_path(bucket, name), query)
        except ServiceFailure as failure:
            if failure.status == 404:
                return None
            raise

    def remove(self, bucket: str, name: str, conditions: "dict[str, str]") -> None:
        self._send("DELETE", object_path(bucket, name), conditions)

    def patch(
        self, bucket: str, name: str, change: "Resource", conditions: "dict[str, str]"
    ) -> "Resource":
        return self._send("PATCH", object_path(bucket, name), conditions, change)

    def copy(
        self,
        source: "tuple[str, str, str]",
        target: "tuple[str, str]",
        change: "Resource",
        conditions: "dict[str, str]",
    ) -> "Resource":
        """Copy within storage; properties that `change` does not name are kept. `source`: bucket, name,
        generation."""
        bucket, name, generation = source
        path = "%s/rewriteTo/b/%s/o/%s" % (
            object_path(bucket, name),
            quoted(target[0]),
            quoted(target[1]),
        )
        query = dict(conditions)
        if generation:
            query["sourceGeneration"] = generation
        while True:
            answer = self._send("POST", path, query, change)
            if answer.get("done", True):
                return answer["resource"]
            query["rewriteToken"] = answer["rewriteToken"]

    def compose(self, bucket: str, sources: "list[str]", name: str, content_type: str) -> None:
        body = {
            "sourceObjects": [{"name": source} for source in sources],
            "destination": {"contentType": content_type},
        }
        self._send("POST", object_path(bucket, name) + "/compose", {}, body)

    # --- calls ---

    def _send(
        self, method: str, path: str, query: "dict[str, str]", body: "Resource | None" = None
    ) -> "Resource":
        if body is None:
            return self.connection.json(method, path, query)
        data = json.dumps(body).encode("utf-8")
        return self.connection.json(method, path, query, data, {"Content-Type": "application/json"})

    def _pages(self, path: str, query: "dict[str, str]") -> "Iterator[Resource]":
        for page in self._each_page(path, query):
            for resource in page.get("items", ()):
                yield resource

    def _each_page(self, path: str, query: "dict[str, str]") -> "Iterator[Resource]":
        page = self._send("GET", path, query)
        yield page
        while page.get("nextPageToken"):
            page = self._send("GET", path, dict(query, pageToken=page["nextPageToken"]))
            yield page


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def object_path(bucket: str, name: str) -> str:
    return "%s/%s/o/%s" % (_API, quoted(bucket), quoted(name))

"""Parses the paths of the storage API: the endpoint that a path belongs to, and what it names.

It works on the percent-encoded path, since an object's name is one path segment with its slashes encoded.
Clients that leave slashes bare are understood where that is not ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from trainshed.httpd.routing import ANY, Router, Template


class Endpoint(Enum):
    """Which part of the API a path belongs to."""

    METADATA = "metadata"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    BATCH = "batch"
    #: `/BUCKET/OBJECT` and `/BUCKET`: the form of public links, and of the XML API.
    XML = "xml"
    UNKNOWN = "unknown"


class Target(Struct, frozen=True):
    """What a path names."""

    endpoint: Endpoint
    #: The bucket; "" where none is named.
    bucket: str = ""
    #: The object; "" where none is named.
    object: str = ""
    #: The public verb or sub-resource (`compose`, `rewriteTo`, `iam`, ...); "" for the resource itself.
    action: str = ""
    #: Whether it names all objects of the bucket: `.../b/B/o`.
    is_objects: bool = False
    #: The destination of a copy or move; "" otherwise.
    to_bucket: str = ""
    to_object: str = ""


class _Kind(Struct, frozen=True):
    endpoint: Endpoint
    action: str = ""
    is_objects: bool = False
    #: Segments before the action, which is taken as it was written; 0 where the route determines the action.
    action_at: int = 0


_API: Final = "/storage/v1"
_OBJECT: Final = _API + "/b/{bucket}/o/{object=**}"
_VERBS: Final = ("compose", "acl", "iam", "restore", "viewFullContext")


def _routes() -> Iterator[tuple[str, _Kind]]:
    metadata = _Kind(Endpoint.METADATA)
    yield _API + "/b", metadata
    yield _API + "/b/{bucket}", metadata
    yield _API + "/b/{bucket}/o", _Kind(Endpoint.METADATA, is_objects=True)
    yield _OBJECT, metadata
    for verb in ("copyTo", "rewriteTo"):
        to = f"/{verb}/b/{{to_bucket}}/o/{{to_object}}"
        yield _OBJECT + to, _Kind(Endpoint.METADATA, verb)
    yield _OBJECT + "/moveTo/o/{to_object}", _Kind(Endpoint.METADATA, "moveTo")
    for verb in _VERBS:
        yield f"{_OBJECT}/{verb}", _Kind(Endpoint.METADATA, verb)
    for part in ("acl", "iam"):
        objects = _API + "/b/{bucket}/o"
        yield f"{objects}/{{object}}/{part}/{{entry}}", _Kind(Endpoint.METADATA, part)
        for verb in _VERBS:
            yield f"{objects}/{{object=*/{part}}}/{verb}", _Kind(Endpoint.METADATA, verb)
    # Policies and the like, and what is not served: it is refused by its name.
    yield _API + "/b/{bucket}/**", _Kind(Endpoint.METADATA, action_at=4)
    yield _API, _Kind(Endpoint.METADATA, "unknown")
    yield _API + "/**", _Kind(Endpoint.METADATA, "unknown", action_at=2)
    yield "/upload" + _API + "/b/{bucket}/o", _Kind(Endpoint.UPLOAD, is_objects=True)
    yield "/resumable/upload" + _API + "/b/{bucket}/o", _Kind(Endpoint.UPLOAD, is_objects=True)
    yield "/download" + _OBJECT, _Kind(Endpoint.DOWNLOAD)
    yield "/batch" + _API, _Kind(Endpoint.BATCH)
    yield "/batch", _Kind(Endpoint.BATCH)
    yield "/{bucket}", _Kind(Endpoint.XML)
    yield "/{bucket}/{object=**}", _Kind(Endpoint.XML)


# Routes take any method: the handler of a resource knows which ones it has, and refuses the others.
_ROUTER: Final = Router(
    ((ANY, Template.parse(path), kind) for path, kind in _routes()), empty_names=True
)


def parse_target(raw_path: bytes) -> Target:
    """Parse an encoded request path; `Endpoint.UNKNOWN` if it is not one of ours."""
    path = raw_path.decode("latin-1").lstrip("/")
    matched = _ROUTER.match("", "/" + path)
    if matched is None:
        return Target(Endpoint.UNKNOWN)
    kind, names = matched
    written = path.split("/", kind.action_at)[-1] if kind.action_at else ""
    target = Target(
        kind.endpoint,
        names.get("bucket", ""),
        names.get("object", ""),
        written or kind.action,
        kind.is_objects,
        names.get("bucket", "") if kind.action == "moveTo" else names.get("to_bucket", ""),
        names.get("to_object", ""),
    )
    if kind.endpoint is Endpoint.XML and not target.bucket:
        return Target(Endpoint.UNKNOWN)
    return target


def copied(target: Target, source: str) -> Target:
    """Returns the target of an XML API's PUT that copies from `BUCKET/OBJECT`, which a header names."""
    bucket, _, name = unquote(source.lstrip("/")).partition("/")
    return Target(Endpoint.XML, bucket, name, "", False, target.bucket, target.object)

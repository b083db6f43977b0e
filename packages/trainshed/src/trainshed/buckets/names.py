"""Parses and validates names of gs:// resources, and the paths of the storage API. Pure: no file, socket or
clock.

Raises `InvalidRequest` (message, cause, remedy) for every invalid name. Together with `disk.tree`, this
module prevents path traversal by object names. Paths are percent-encoded: an object's name is one segment, in
which slashes are encoded. Unencoded slashes are accepted where they are unambiguous.
"""

import re
from collections.abc import Iterator
from enum import Enum
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from trainshed.buckets.errors import InvalidRequest
from trainshed.httpd.routing import ANY, Router, Template

SCHEME = "gs://"
MAX_OBJECT_NAME_BYTES = 1024
MAX_OBJECT_DEPTH = 200
"""Maximum number of segments in an object name. Each segment except the last is a directory on disk. A walk
has one directory open per level."""
MAX_SEGMENT_BYTES = 255
"""Maximum length in bytes of a file name, as in common file systems."""
MARK = ".gs~"
"""Prefix of file names for segments that cannot be the name of a file (`disk.tree`)."""

_BUCKET_COMPONENT = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")
_IPV4 = re.compile(r"\d{1,3}(\.\d{1,3}){3}")


def validate_bucket_name(bucket: str) -> str:
    """Return `bucket` if it is a legal bucket name, else raise `InvalidRequest`. Rules of the public service:
    3-63 characters (222 with dots; each component between dots at most 63); lower-case letters, digits, `-`,
    `_`, `.`; starts and ends with a letter or digit; no IPv4 address; no `goog` prefix."""
    limit = 222 if "." in bucket else 63
    cause = None
    if not 3 <= len(bucket) <= limit:
        cause = f"a bucket name has 3 to {limit} characters, this one has {len(bucket)}"
    elif _IPV4.fullmatch(bucket):
        cause = "a bucket name must not look like an IP address"
    elif bucket.startswith("goog"):
        cause = "a bucket name must not begin with 'goog'"
    elif any(len(part) > 63 for part in bucket.split(".")):
        cause = "each part of a bucket name between dots has at most 63 characters"
    elif not all(_BUCKET_COMPONENT.fullmatch(part) for part in bucket.split(".")):
        cause = (
            "a bucket name contains only lower-case letters, digits, '-', '_' and '.', and starts and ends "
            "with a letter or a digit"
        )
    if cause is not None:
        raise InvalidRequest(f"Invalid bucket name: '{bucket}': {cause}. Choose another name.")
    return bucket


def validate_object_name(name: str) -> str:
    """Return `name` if it is a legal object name, else raise `InvalidRequest`. A name has 1 to 1,024 bytes of
    UTF-8. It contains no line feed, carriage return or NUL, and is not `.` or `..`. This service also limits
    names to `MAX_OBJECT_DEPTH` segments of at most `MAX_SEGMENT_BYTES` each."""
    cause = None
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        length = 0
        cause = "it is not valid UTF-8"
    if cause is None:
        if not 1 <= length <= MAX_OBJECT_NAME_BYTES:
            cause = f"an object name has 1 to {MAX_OBJECT_NAME_BYTES} bytes, this one has {length}"
        elif any(forbidden in name for forbidden in "\r\n\0"):
            cause = "it contains a line feed, a carriage return or a NUL"
        elif name in {".", ".."}:
            cause = "'.' and '..' are not object names"
        elif name.count("/") >= MAX_OBJECT_DEPTH:
            cause = f"it has more than {MAX_OBJECT_DEPTH} segments between slashes"
        elif any(map(_is_too_long, name.split("/"))):
            cause = f"a part of it between slashes has more than {MAX_SEGMENT_BYTES} bytes"
    if cause is not None:
        raise InvalidRequest(f"Invalid object name: {name!r}: {cause}. Choose another name.")
    return name


def _is_too_long(segment: str) -> bool:
    written = f"{MARK}={segment}" if segment.startswith(MARK) else segment
    return len(written.encode()) > MAX_SEGMENT_BYTES


def parse_gs_uri(uri: str) -> tuple[str, str]:
    """Split `gs://BUCKET/OBJECT` into (bucket, object). The object is '' if the URI contains only a bucket.
    Raises `InvalidRequest` if the scheme is missing, or the bucket or object name is invalid."""
    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    if not uri.startswith(SCHEME) or not bucket:
        raise InvalidRequest(
            f"Invalid Cloud Storage URI: '{uri}': it does not start with '{SCHEME}' and a bucket. Write it "
            f"as {SCHEME}BUCKET/OBJECT."
        )
    validate_bucket_name(bucket)
    if name:
        validate_object_name(name)
    return bucket, name


class Endpoint(Enum):
    """The part of the API that a path belongs to."""

    METADATA = "metadata"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    BATCH = "batch"
    #: `/BUCKET/OBJECT` and `/BUCKET`: the form of public URLs, and of the XML API.
    XML = "xml"
    UNKNOWN = "unknown"


class Target(Struct, frozen=True):
    endpoint: Endpoint
    #: The bucket's name; "" = the path contains no bucket.
    bucket: str = ""
    #: The object's name; "" = the path contains no object.
    object: str = ""
    #: The public verb or sub-resource (`compose`, `rewriteTo`, `iam`, ...); None = the resource itself.
    action: str | None = None
    #: Whether the path refers to the collection of the bucket's objects: `.../b/B/o`.
    is_objects: bool = False
    #: The destination bucket of a copy or move; "" for other requests. `to_object`: the destination object.
    to_bucket: str = ""
    to_object: str = ""


class _Kind(Struct, frozen=True):
    endpoint: Endpoint
    action: str | None = None
    is_objects: bool = False
    #: Number of path segments before the action. The action is then the rest of the path, unchanged. None =
    #: the route determines the action.
    action_at: int | None = None


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
    # Policies and other sub-resources. If a sub-resource is not supported, the error contains its name.
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


# Routes accept any method. The handler of a resource rejects unsupported ones.
_ROUTER: Final = Router((ANY, Template.parse(path), kind) for path, kind in _routes())


def parse_target(raw_path: bytes) -> Target:
    """Parse an encoded request path. Returns `Endpoint.UNKNOWN` for a path that is not part of the API."""
    path = raw_path.decode("latin-1").lstrip("/")
    # Add the API prefix, which Google's library for Node.js omits. Such a path cannot refer to a bucket,
    # because no bucket has the name `b`.
    if path.partition("/")[0] == "b":
        path = f"{_API[1:]}/{path}"
    matched = _ROUTER.match("", "/" + path)
    if matched is None:
        return Target(Endpoint.UNKNOWN)
    kind, names = matched
    written = path.split("/", kind.action_at)[-1] if kind.action_at else None
    target = Target(
        kind.endpoint,
        names.get("bucket", ""),
        names.get("object", ""),
        written or kind.action,
        kind.is_objects,
        names.get("bucket", "") if kind.action == "moveTo" else names.get("to_bucket", ""),
        names.get("to_object", ""),
    )
    # Reject the path if the object's name is empty, for example from an unset variable. Otherwise the request
    # would apply to the bucket.
    is_xml = kind.endpoint is Endpoint.XML
    if not target.bucket if is_xml else names.get("object") == "":
        return Target(Endpoint.UNKNOWN)
    return target


def with_copy_source(target: Target, source: str) -> Target:
    """Return the target of an XML API PUT request that copies an object. `source`: `BUCKET/OBJECT`, from the
    request's header."""
    bucket, _, name = unquote(source.lstrip("/")).partition("/")
    return Target(Endpoint.XML, bucket, name, None, False, target.bucket, target.object)

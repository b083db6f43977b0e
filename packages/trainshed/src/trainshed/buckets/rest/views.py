"""Converts records to the JSON resources of the public storage API. Pure."""

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from trainshed.buckets.disk.catalog import BucketRecord
from trainshed.buckets.errors import BucketsError, InvalidRequest, NotSupported, require_object
from trainshed.buckets.port import EDITABLE, ObjectRecord
from trainshed.buckets.settings import check_storage_class, public_settings
from trainshed.core.names import project_number
from trainshed.core.units import whole_second

_INVALID_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML 1.0 forbids, even as a character reference."""
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_CLASS, _TIME = "storageClass", "customTime"
_MAX_BYTES = 8 << 10
"""Maximum size in bytes of an object's properties, and of its custom metadata. The limit is low because a
page of a listing contains a thousand objects."""


def timestamp(time_ns: int) -> str:
    """Return a time as an RFC 3339 string in UTC with milliseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{whole_second(seconds)}.{rest // 1_000_000:03d}Z"


def etag_of(record: ObjectRecord) -> str:
    """Return a tag that changes whenever the content or the properties change."""
    number = f"{record.generation}/{record.metageneration}".encode()
    return base64.b64encode(number).decode()


def object_view(base: str, bucket: str, name: str, record: ObjectRecord) -> dict[str, Any]:
    """Return a `storage#object`. `base`: the scheme and host in the client's URL."""
    path = f"b/{bucket}/o/{quote(name, safe='')}"
    view: dict[str, Any] = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{record.generation}",
        "selfLink": f"{base}/storage/v1/{path}",
        "mediaLink": (f"{base}/download/storage/v1/{path}?generation={record.generation}&alt=media"),
        "name": name,
        "bucket": bucket,
        "generation": str(record.generation),
        "metageneration": str(record.metageneration),
        "storageClass": "STANDARD",
        "size": str(record.size),
        "etag": etag_of(record),
        "timeCreated": timestamp(record.created_ns),
        "updated": timestamp(record.updated_ns),
        "timeStorageClassUpdated": timestamp(record.created_ns),
        "timeFinalized": timestamp(record.created_ns),
    }
    view.update(record.fields)
    known = {
        "md5Hash": record.md5,
        "crc32c": record.crc32c,
        "componentCount": record.components,
        "metadata": record.metadata,
    }
    view.update({key: value for key, value in known.items() if value})
    view.update(dict.fromkeys(record.holds, True))
    if record.deleted_ns:
        view["timeDeleted"] = timestamp(record.deleted_ns)
    return view


def bucket_view(base: str, record: BucketRecord, project: str) -> dict[str, Any]:
    """Return a `storage#bucket`. `project`: the bucket's project."""
    return {
        **public_settings(record.settings),
        "kind": "storage#bucket",
        "id": record.name,
        "selfLink": f"{base}/storage/v1/b/{record.name}",
        "projectNumber": str(project_number(project)),
        "name": record.name,
        "generation": str(record.created_ns // 1000),
        "metageneration": str(record.metageneration),
        "location": record.location,
        "locationType": _location_type(record),
        "rpo": "DEFAULT",
        "hierarchicalNamespace": {"enabled": False},
        "etag": record.etag,
        "timeCreated": timestamp(record.created_ns),
        "updated": timestamp(record.updated_ns),
    }


def service_account_view(project: str) -> dict[str, Any]:
    """Return a `storage#serviceAccount`: the account that the public service has for each project."""
    email = f"service-{project_number(project)}@gs-project-accounts.iam.gserviceaccount.com"
    return {"kind": "storage#serviceAccount", "email_address": email}


def layout_view(record: BucketRecord) -> dict[str, Any]:
    """Return a `storage#storageLayout`, always without a hierarchical namespace."""
    return {
        "kind": "storage#storageLayout",
        "bucket": record.name,
        "location": record.location,
        "locationType": _location_type(record),
        "hierarchicalNamespace": {"enabled": False},
    }


def _location_type(record: BucketRecord) -> str:
    return "multi-region" if record.location in {"US", "EU", "ASIA"} else "region"


def policy_view(record: BucketRecord) -> dict[str, Any]:
    """Return a `storage#policy` with the bucket's bindings."""
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{record.name}",
        "version": 1,
        "etag": record.etag,
        "bindings": record.policy,
    }


def xml_error(error: BucketsError) -> bytes:
    text = xml_element("Code", error.code) + xml_element("Message", error.message)
    return f"<?xml version='1.0' encoding='UTF-8'?><Error>{text}</Error>".encode()


def xml_element(name: str, text: str) -> str:
    """Return an XML element. Characters that XML forbids become U+FFFD. A client of the XML API cannot access
    an object with such a name, but can read the rest of the listing."""
    public_settings = _INVALID_XML.sub("\ufffd", text).translate(_ESCAPES)
    return f"<{name}>{public_settings}</{name}>"


def error_view(error: BucketsError) -> dict[str, Any]:
    detail: dict[str, Any] = {"message": error.message, "domain": "global", "reason": error.reason}
    if error.location is not None:
        detail["locationType"], detail["location"] = error.location
    view: dict[str, Any] = {"code": error.status, "message": error.message, "errors": [detail]}
    if isinstance(error, NotSupported):
        # Include the name of the status, as in errors of this service's other APIs.
        view["status"] = "UNIMPLEMENTED"
    return {"error": view}


def record_headers(record: ObjectRecord) -> dict[str, str]:
    """Return the headers that identify an object's generation."""
    headers = {
        "ETag": etag_of(record),
        "X-Goog-Generation": str(record.generation),
        "X-Goog-Metageneration": str(record.metageneration),
        "X-Goog-Stored-Content-Length": str(record.size),
    }
    sums = {"crc32c": record.crc32c, "md5": record.md5}
    if hashes := ",".join(f"{kind}={value}" for kind, value in sums.items() if value):
        headers["X-Goog-Hash"] = hashes
    return headers


def editable_fields(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the editable text properties in a client's object resource. Raises InvalidRequest."""
    fields = _texts({key: resource.get(key) for key in EDITABLE}, "object's properties")
    # Validate here, because clients in typed languages parse these values in every listing with the object.
    if _CLASS in fields:
        fields[_CLASS] = check_storage_class(fields[_CLASS])
    if _TIME in fields:
        fields[_TIME] = _in_utc(fields[_TIME])
    return fields


def _in_utc(text: str) -> str:
    try:
        # Interpret a time without an offset in this machine's time zone.
        return datetime.fromisoformat(text).astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"Invalid value {text[:100]!r} for '{_TIME}'. Send a time such as 2026-01-31T12:00:00Z."
        ) from None


def _texts(values: Mapping[str, Any], what: str) -> dict[str, str]:
    """Return the values that are not None. Raises InvalidRequest unless all are strings and their total size
    is within the limit."""
    texts = {key: value for key, value in values.items() if value is not None}
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise InvalidRequest(
            f"These values of the {what} are not strings: {', '.join(wrong)}. Send JSON strings."
        )
    if sum(len(text.encode()) for text in (*texts, *texts.values())) > _MAX_BYTES:
        raise InvalidRequest(f"The {what} have over {_MAX_BYTES} bytes. Shorten them.")
    return texts


def custom_metadata(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the custom metadata in a client's object resource. Raises InvalidRequest."""
    return _texts(require_object(resource.get("metadata"), "metadata"), "object's custom metadata")

"""Copies one file or object to one place: by upload, download, a copy within storage, or a copy on disk."""

import contextlib
import gzip
import os
import shutil
import sys
import tempfile
from typing import NamedTuple

from trainshed_gsutil import downloading, properties, uploading
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.storage import Storage
from trainshed_gsutil.urls import Url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Generator, Mapping

    Resource = dict[str, Any]

_FAST = 6
"""gzip's default level of compression."""


class Treatment(NamedTuple):
    """How the copy is made."""

    #: The headers of options -h.
    headers: "Mapping[str, str]"
    #: Name endings, with a dot, whose files are stored as gzip; "" among them stands for all files.
    zipped: "tuple[str, ...]" = ()
    storage_class: str = ""
    #: Whether the copy keeps the file's time.
    keep_time: bool = False
    #: Whether the copy keeps the file's time, mode and owner.
    keep_posix: bool = False


def upload(storage: Storage, path: str, target: Url, how: Treatment, **only: str) -> "Resource":
    """Upload a file. `only`: preconditions. Raises Failure, OSError."""
    resource: "Resource" = {"name": target.name, "contentType": properties.content_type_of(path)}
    if how.storage_class:
        resource["storageClass"] = how.storage_class.upper()
    if (how.keep_time or how.keep_posix) and path != "-":
        resource["metadata"] = properties.posix_of(path, whole=how.keep_posix)
    resource = _changed(resource, properties.of_headers(how.headers))
    conditions = dict(properties.conditions_of(how.headers), **only)
    with _content(path, resource, how) as file:
        return uploading.upload(storage.connection, file, target.bucket or "", resource, conditions)


def download(storage: Storage, resource: "Resource", path: str, how: Treatment) -> None:
    """Download an object. Raises Failure, OSError."""
    if path.endswith("/") or os.path.isdir(path):
        why = "is a directory. Name a file, or copy with -r."
        if not os.path.isdir(path):
            why = "does not exist: mkdir -p %s" % path
        raise CommandFailure(
            "gs://%s/%s: %s %s" % (resource["bucket"], resource["name"], path, why)
        )
    directory = os.path.dirname(path)
    if directory:
        os.makedirs(directory, exist_ok=True)
    downloading.to_file(storage.connection, resource, path)
    if how.keep_time or how.keep_posix:
        properties.restore(path, resource, whole=how.keep_posix)


def copy(
    storage: Storage, resource: "Resource", target: Url, how: Treatment, **only: str
) -> "Resource":
    """Copy an object within storage. Raises Failure."""
    change = properties.of_headers(how.headers)
    if how.storage_class:
        change["storageClass"] = how.storage_class.upper()
    if change:
        kept = {name: resource[name] for name in _KEPT if name in resource}
        change = _changed(kept, change)
    source = (resource["bucket"], resource["name"], str(resource["generation"]))
    conditions = dict(properties.conditions_of(how.headers), **only)
    return storage.copy(source, (target.bucket or "", target.name), change, conditions)


def copy_file(source: str, target: str, how: Treatment) -> None:
    """Copy a file on disk. Raises OSError."""
    directory = os.path.dirname(target)
    if directory:
        os.makedirs(directory, exist_ok=True)
    if source == "-":
        with open(target, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    elif how.keep_time or how.keep_posix:
        shutil.copy2(source, target)
    else:
        shutil.copyfile(source, target)


_KEPT = (
    "contentType",
    "contentEncoding",
    "contentLanguage",
    "contentDisposition",
    "cacheControl",
    "metadata",
)


def _changed(resource: "Resource", change: "Resource") -> "Resource":
    merged = dict(resource, **change)
    if "metadata" in resource and "metadata" in change:
        merged["metadata"] = dict(resource["metadata"], **change["metadata"])
    if merged.get("metadata"):
        merged["metadata"] = {k: v for k, v in merged["metadata"].items() if v is not None}
    return {name: value for name, value in merged.items() if value is not None}


@contextlib.contextmanager
def _content(path: str, resource: "Resource", how: Treatment) -> "Generator[IO[bytes], None, None]":
    """Opens the content to send; where gzip is wanted, compresses it and says so in the properties."""
    if path == "-":
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        if not any(path.endswith(ending) for ending in how.zipped):
            yield file
            return
        resource["contentEncoding"] = "gzip"
        resource.setdefault("cacheControl", "no-transform")
        with tempfile.TemporaryFile() as packed:
            with gzip.GzipFile("", "wb", _FAST, packed, 0) as packing:
                shutil.copyfileobj(file, packing, 1 << 20)
            packed.seek(0)
            yield packed

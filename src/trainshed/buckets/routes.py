"""The paths of the storage API, taken apart. Pure.

Works on the undecoded path, since an object's name is one path segment with its slashes encoded.
Clients that leave slashes bare are understood where that is not ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote


class Door(Enum):
    """Which part of the API a path belongs to."""

    METADATA = "metadata"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    BATCH = "batch"
    PLAIN = "plain"
    """``/BUCKET/OBJECT``: the form of public links, which TensorFlow's file system reads by."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names. ``collection`` marks ``…/b`` and ``…/b/B/o``; ``action`` what follows.

    ``action`` is '' for the resource itself, else the public verb or sub-resource (``compose``,
    ``rewriteTo``, ``iam``, …); ``to_bucket`` and ``to_object`` are a copy's or move's destination.
    """

    door: Door
    bucket: str = ""
    object: str = ""
    action: str = ""
    is_objects: bool = False
    to_bucket: str = ""
    to_object: str = ""


def parse_target(raw_path: bytes) -> Target:
    """Take an undecoded request path apart; ``Door.UNKNOWN`` if it is none of ours."""
    parts = raw_path.decode("latin-1").lstrip("/").split("/")
    match parts:
        case ["storage", "v1", *rest]:
            return _metadata(rest)
        case ["upload", "storage", "v1", "b", bucket, "o"]:
            return Target(Door.UPLOAD, unquote(bucket), is_objects=True)
        case ["resumable", "upload", "storage", "v1", "b", bucket, "o"]:
            return Target(Door.UPLOAD, unquote(bucket), is_objects=True)
        case ["download", "storage", "v1", "b", bucket, "o", *name] if name:
            return Target(Door.DOWNLOAD, unquote(bucket), unquote("/".join(name)))
        case ["batch", "storage", "v1"] | ["batch"]:
            return Target(Door.BATCH)
        case [bucket, *name] if bucket and name and name != [""]:
            return Target(Door.PLAIN, unquote(bucket), unquote("/".join(name)))
        case _:
            return Target(Door.UNKNOWN)


def _metadata(rest: list[str]) -> Target:
    match rest:
        case ["b"]:
            return Target(Door.METADATA)
        case ["b", bucket]:
            return Target(Door.METADATA, unquote(bucket))
        case ["b", bucket, "o"]:
            return Target(Door.METADATA, unquote(bucket), is_objects=True)
        case ["b", bucket, "o", *name]:
            return _object(unquote(bucket), name)
        case ["b", bucket, *action]:
            return Target(Door.METADATA, unquote(bucket), action="/".join(action))
        case _:
            return Target(Door.METADATA, action="/".join(rest) or "unknown")


def _object(bucket: str, parts: list[str]) -> Target:
    """An object's path behind ``/o/``: its name, perhaps an action, perhaps a destination."""
    match parts:
        case [*name, "copyTo" | "rewriteTo" as verb, "b", to_bucket, "o", to_object] if name:
            return Target(
                Door.METADATA,
                bucket,
                unquote("/".join(name)),
                verb,
                to_bucket=unquote(to_bucket),
                to_object=unquote(to_object),
            )
        case [*name, "moveTo", "o", to_object] if name:
            return Target(
                Door.METADATA,
                bucket,
                unquote("/".join(name)),
                "moveTo",
                to_bucket=bucket,
                to_object=unquote(to_object),
            )
        case [*name, "compose" | "acl" | "iam" | "restore" | "viewFullContext" as verb] if name:
            return Target(Door.METADATA, bucket, unquote("/".join(name)), verb)
        case [name, "acl" | "iam" as verb, _]:
            return Target(Door.METADATA, bucket, unquote(name), verb)
        case _:
            return Target(Door.METADATA, bucket, unquote("/".join(parts)))

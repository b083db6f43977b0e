"""Formats an object's properties for `ls -L` and `stat`. Pure."""

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping

_FIELDS = (
    ("Storage class", "storageClass"),
    ("Cache-Control", "cacheControl"),
    ("Content-Disposition", "contentDisposition"),
    ("Content-Encoding", "contentEncoding"),
    ("Content-Language", "contentLanguage"),
    ("Component-Count", "componentCount"),
    ("Content-Length", "size"),
    ("Content-Type", "contentType"),
)
_BEHIND = (
    ("Hash (crc32c)", "crc32c"),
    ("Hash (md5)", "md5Hash"),
    ("ETag", "etag"),
    ("Generation", "generation"),
    ("Metageneration", "metageneration"),
)


def lines(url: str, resource: "Mapping[str, Any]") -> "Iterator[str]":
    yield url + ":"
    yield _line("Creation time", _day(resource["timeCreated"]))
    yield _line("Update time", _day(resource["updated"]))
    for label, name in _FIELDS:
        if resource.get(name) is not None:
            yield _line(label, resource[name])
    if resource.get("metadata"):
        yield "    Metadata:"
        for name, value in resource["metadata"].items():
            yield "        %-20s%s" % (name + ":", value)
    for label, name in _BEHIND:
        if resource.get(name) is not None:
            yield _line(label, resource[name])


def second_of(stamp: str) -> str:
    """A time of the API, without fractions of a second."""
    return stamp[:19] + "Z"


def _line(label: str, value: "Any") -> str:
    return "    %-24s%s" % (label + ":", value)


def _day(stamp: str) -> str:
    moment = time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", moment)

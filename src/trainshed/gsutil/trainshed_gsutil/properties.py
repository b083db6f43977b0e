"""An object's properties besides its content: type, encoding, POSIX attributes, and preconditions. Pure but
for `stat`."""

import mimetypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

DEFAULT_TYPE = "application/octet-stream"
_BY_HEADER = {
    "content-type": "contentType",
    "content-encoding": "contentEncoding",
    "content-language": "contentLanguage",
    "content-disposition": "contentDisposition",
    "cache-control": "cacheControl",
}
_CUSTOM = ("x-goog-meta-", "x-amz-meta-")
_MTIME = "goog-reserved-file-mtime"


def content_type_of(path: str) -> str:
    """Returns the media type that a file name's ending stands for."""
    if path == "-":
        return DEFAULT_TYPE
    return mimetypes.guess_type(path)[0] or DEFAULT_TYPE


def of_headers(headers: "Mapping[str, str]") -> "dict[str, Any]":
    """Returns the properties that options -h name; None removes one."""
    found: "dict[str, Any]" = {
        _BY_HEADER[name]: value or None for name, value in headers.items() if name in _BY_HEADER
    }
    custom = {
        name[len(start) :]: value or None
        for name, value in headers.items()
        for start in _CUSTOM
        if name.startswith(start)
    }
    if custom:
        found["metadata"] = custom
    return found


def conditions_of(headers: "Mapping[str, str]") -> "dict[str, str]":
    """Returns the preconditions that options -h name, as query parameters of the API."""
    names = {
        "x-goog-if-generation-match": "ifGenerationMatch",
        "x-goog-if-metageneration-match": "ifMetagenerationMatch",
    }
    return {names[name]: value for name, value in headers.items() if name in names}


def posix_of(path: str, *, whole: bool) -> "dict[str, str]":
    """Returns a file's modification time as custom metadata; if `whole`, also its mode, owner and access
    time."""
    stat = os.stat(path)
    found = {_MTIME: str(int(stat.st_mtime))}
    if whole:
        found["goog-reserved-file-atime"] = str(int(stat.st_atime))
        found["goog-reserved-posix-uid"] = str(stat.st_uid)
        found["goog-reserved-posix-gid"] = str(stat.st_gid)
        found["goog-reserved-posix-mode"] = oct(stat.st_mode & 0o777)[2:]
    return found


def mtime_of(resource: "Mapping[str, Any]") -> "int | None":
    """Returns the modification time (seconds) of the file that an object was made from; None = not
    recorded."""
    text = _custom(resource).get(_MTIME, "")
    return int(text) if text.isdigit() else None


def restore(path: str, resource: "Mapping[str, Any]", *, whole: bool) -> None:
    """Give a downloaded file its recorded time; if `whole`, also its mode."""
    mtime = mtime_of(resource)
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    mode = _custom(resource).get("goog-reserved-posix-mode", "")
    if whole and mode:
        os.chmod(path, int(mode, 8) & 0o777)


def _custom(resource: "Mapping[str, Any]") -> "dict[str, str]":
    return resource.get("metadata") or {}

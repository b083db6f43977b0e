"""Serves the console's styles, scripts and the libraries that they use, each at an address that changes with
its content, so that browsers may keep them for ever."""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from trainshed.httpd.messages import Request, Response, sized

PREFIX: Final = "/assets/"
_HERE: Final = Path(__file__).parent
_KINDS: Final = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


class Asset(Struct, frozen=True):
    """One file that is served."""

    #: Its path: `/assets/console.3f2a90c1e5b7.css`.
    address: str
    content: bytes
    #: The content, gzipped.
    packed: bytes
    #: The media type.
    kind: bytes


@cache
def _all() -> dict[str, Asset]:
    """Return the files by their names below `static`, such as `vendor/htmx.min.js`."""
    files: dict[str, Asset] = {}
    for folder in ("", "vendor"):
        for entry in _HERE.joinpath("static", folder).iterdir():
            stem, _, suffix = entry.name.rpartition(".")
            if suffix in _KINDS and entry.is_file():
                content = entry.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                files[f"{folder}/{entry.name}".lstrip("/")] = Asset(
                    f"{PREFIX}{stem}.{digest}.{suffix}",
                    content,
                    gzip.compress(content, 9, mtime=0),
                    _KINDS[suffix],
                )
    return files


@cache
def _by_address() -> dict[str, Asset]:
    return {asset.address: asset for asset in _all().values()}


def address_of(name: str) -> str:
    """Return the path under which browsers fetch a file. Raises KeyError if there is none of this name."""
    return _all()[name].address


@cache
def build() -> str:
    """Return a digest of all files together. A page that has another one was made by another release."""
    return hashlib.sha256("".join(sorted(_by_address())).encode()).hexdigest()[:12]


def serve(request: Request) -> Response | None:
    """Return the answer with the file at the request's path; None if there is none."""
    asset = _by_address().get(request.path)
    if asset is None:
        return None
    more = [_FOREVER, _NOSNIFF, (b"vary", b"accept-encoding")]
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        more.append((b"content-encoding", b"gzip"))
    content = asset.packed if packed else asset.content
    answer = sized(content, asset.kind, more=more)
    return answer if request.method != "HEAD" else Response(b"", 200, answer.headers)

"""Fetches a job's packages from their bucket once, and stores them by their content. It does not open them
(`archives` does)."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from trainshed.core.packages import JobPackage
from trainshed.runtimes.confinement import MAX_UNPACKED
from trainshed.runtimes.port import BuildFailed, PackageFailed, PackageSource, Progress
from trainshed.runtimes.stop import Stop

_CHUNK = 1 << 20
_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9._+!-]")
_SOURCE = re.compile(r"\.(tar(\.\w+)?|tgz|tbz|txz|zip)$", re.ASCII)


class Package(Struct, frozen=True):
    """A fetched package. `digest`: SHA-256 of the content in hexadecimal digits."""

    uri: str
    digest: str
    path: Path


class Packages:
    """The fetched packages at `<root>/<digest>/<file name>`, with an index from (URI, fingerprint) to
    digest."""

    def __init__(self, root: Path, source: PackageSource, closing: Stop | None = None) -> None:
        """`closing`: stops fetches, which then raise BuildFailed."""
        self._root, self._closing = root, closing or Stop()
        self._source = source
        self._known: dict[tuple[str, str], str] = {}

    def known(self, packages: Sequence[JobPackage]) -> tuple[Package, ...] | None:
        """Return the packages if all of them were fetched before, have not changed since then, and match
        their pins. Otherwise return None. Fast; fetches nothing."""
        fetched: list[Package] = []
        for package in packages:
            uri = package.uri
            try:
                fingerprint = self._source.fingerprint(uri)
            except OSError:
                return None
            digest = self._digest(uri, fingerprint) if fingerprint else None
            if not digest or package.fault(digest):
                return None
            fetched.append(Package(uri, digest, self._place(uri, digest)))
        return tuple(fetched)

    def fetch(self, packages: Sequence[JobPackage], progress: Progress | None = None) -> tuple[Package, ...]:
        """Return the packages in order, read from the bucket if necessary; `progress` reports this. Blocks.
        Raises PackageFailed if a package does not exist, is too large or does not match its pin. Raises
        BuildFailed if a package cannot be read or stored."""
        return tuple(self._fetch_pinned(package, progress) for package in packages)

    def _fetch_pinned(self, package: JobPackage, progress: Progress | None) -> Package:
        fetched = self._fetch(package.uri, progress)
        if fault := package.fault(fetched.digest):
            raise PackageFailed(fault)
        return fetched

    def _fetch(self, uri: str, progress: Progress | None) -> Package:
        try:
            # Get the fingerprint before the content. If the object is written in between, the index entry is
            # then stale, not wrong.
            fingerprint = self._source.fingerprint(uri)
            if fingerprint and (digest := self._digest(uri, fingerprint)):
                place = self._place(uri, digest)
                if place.exists():
                    # The cache cleaner uses this time as the time of the last use.
                    os.utime(place)
                    return Package(uri, digest, place)
            if progress is not None:
                progress(f"Fetching the package {uri}.")
            digest, draft = self._read(uri)
            place = self._place(uri, digest)
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(place)
            if fingerprint:
                self._remember(uri, fingerprint, digest)
        except FileNotFoundError as missing:
            raise PackageFailed(
                f"The package {uri} does not exist. Upload it, or correct the job's package URIs."
            ) from missing
        except OSError as failure:
            raise BuildFailed(
                f"The package {uri} could not be fetched into {self._root}: {failure}. Check the disk and the"
                " permissions of the cache directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure
        return Package(uri, digest, place)

    def _read(self, uri: str) -> tuple[str, Path]:
        self._root.mkdir(parents=True, exist_ok=True)
        draft = self._root / f".{secrets.token_hex(8)}"
        hashed = hashlib.sha256()
        try:
            with self._source.open(uri) as content, draft.open("wb") as copy:
                while chunk := content.read(_CHUNK):
                    self._closing.check()
                    hashed.update(chunk)
                    if copy.tell() + len(chunk) > MAX_UNPACKED:
                        raise PackageFailed(
                            f"The package {uri} has more than {MAX_UNPACKED >> 30} GiB, the maximum size "
                            "of a package. Store large files in a bucket instead."
                        )
                    copy.write(chunk)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return hashed.hexdigest(), draft

    def _place(self, uri: str, digest: str) -> Path:
        # A wheel keeps the file name of its URI, because installers identify a wheel by its name. A source
        # distribution gets the name `package`, so that installers read its setup script. They would trust a
        # name of the usual form, but people pack these files by hand, and the Vertex SDK puts a timestamp in
        # front of the name.
        name = _NOT_IN_A_FILE_NAME.sub("_", PurePosixPath(uri).name) or "package"
        if source := _SOURCE.search(name):
            name = f"package{source[0]}"
        return self._root / digest / name

    def _digest(self, uri: str, fingerprint: str) -> str | None:
        key = (uri, fingerprint)
        if key not in self._known:
            try:
                entry = json.loads(self._entry(uri).read_text())
            except (OSError, ValueError):
                return None
            if entry["fingerprint"] != fingerprint:
                return None
            self._known[key] = entry["digest"]
        return self._known[key]

    def _remember(self, uri: str, fingerprint: str, digest: str) -> None:
        self._known[uri, fingerprint] = digest
        entry = self._entry(uri)
        entry.parent.mkdir(parents=True, exist_ok=True)
        draft = entry.with_name(f"{entry.name}.{secrets.token_hex(4)}")
        draft.write_text(json.dumps({"uri": uri, "fingerprint": fingerprint, "digest": digest}))
        draft.replace(entry)

    def _entry(self, uri: str) -> Path:
        return self._root / ".index" / hashlib.sha256(uri.encode()).hexdigest()

"""Downloads objects into files and streams; a broken download continues where it stopped, and the result is
compared with the object's checksum.

A file appears under its name once it is complete; until then it lies beside it with the ending `.gstmp`.
"""

import contextlib
import hashlib
import http.client
import os
import time
import zlib

from trainshed_gsutil import checksums
from trainshed_gsutil.checksums import BLOCK, SLOW_LIMIT, base64_text
from trainshed_gsutil.connection import BROKEN, Again, Connection, pauses
from trainshed_gsutil.errors import HashMismatch, ServiceFailure, Unreachable
from trainshed_gsutil.storage import object_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Iterator

    Resource = dict[str, Any]

PARTIAL = ".gstmp"


def to_file(connection: Connection, resource: "Resource", path: str) -> None:
    """Download an object (`resource`: its properties) to a file; one that is stored as gzip is unpacked.
    Raises ServiceFailure, Unreachable, HashMismatch, OSError of the file."""
    partial = path + PARTIAL
    try:
        with open(partial, "wb") as file:
            _take(connection, resource, file)
        if is_gzip(resource):
            _unpack(partial)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def blocks(
    connection: Connection, resource: "Resource", first: int = 0, end: "int | None" = None
) -> "Iterator[bytes]":
    """Yields the bytes of an object from `first` to before `end` (None: all). One that is stored as gzip is
    unpacked unless a range is asked for. Raises ServiceFailure, Unreachable."""
    size = int(resource["size"])
    last = size if end is None else min(end, size)
    if is_gzip(resource) and not first and last == size:
        return _unpacked(_raw(connection, resource, 0, size))
    return _raw(connection, resource, first, last)


def is_gzip(resource: "Resource") -> bool:
    return resource.get("contentEncoding") == "gzip"


def _take(connection: Connection, resource: "Resource", file: "IO[bytes]") -> None:
    digest = hashlib.md5()
    for block in _raw(connection, resource, 0, int(resource["size"])):
        digest.update(block)
        file.write(block)
    file.flush()
    _compare(resource, base64_text(digest.digest()), file.name)


def _raw(
    connection: Connection, resource: "Resource", position: int, end: int
) -> "Iterator[bytes]":
    """Yields the stored bytes of one generation, even if the object is replaced meanwhile."""
    path = object_path(resource["bucket"], resource["name"])
    query = {"alt": "media", "generation": str(resource["generation"])}
    left = pauses()
    while position < end:
        try:
            for block in _once(connection, path, query, position, end):
                position += len(block)
                left = pauses()
                yield block
        except (Again, *BROKEN) as broken:
            connection.drop()
            pause = next(left, None)
            if pause is None:
                if isinstance(broken, Again):
                    raise broken.failure from None
                raise Unreachable(f"The download broke off, again and again: {broken}") from None
            time.sleep(pause)


def _once(
    connection: Connection, path: str, query: "dict[str, str]", position: int, end: int
) -> "Iterator[bytes]":
    # Without this the service unpacks gzip, and neither checksum nor range would fit.
    headers = {"Accept-Encoding": "gzip", "Range": "bytes=%d-%d" % (position, end - 1)}
    answer = connection.begin("GET", path, query, headers).getresponse()
    if answer.status >= 300:
        raise connection.refusal(answer.status, answer.read())
    if answer.status != 206 and position:
        raise ServiceFailure(answer.status, "The service does not give a part of an object.")
    finished = False
    try:
        while position < end:
            block = answer.read(min(BLOCK, end - position))
            if not block:
                raise http.client.IncompleteRead(b"", end - position)
            position += len(block)
            yield block
        answer.read()
        finished = True
    finally:
        if not finished:
            connection.drop()  # The reader stopped in the middle.


def _compare(resource: "Resource", md5: str, path: str) -> None:
    """Raises HashMismatch. A composed object has only a CRC32C, which is compared where that is quick."""
    named, ours = resource.get("md5Hash"), md5
    if named is None and resource.get("crc32c"):
        extend = checksums.fast_crc32c()
        if extend is None and int(resource["size"]) <= SLOW_LIMIT:
            extend = checksums.extended
        if extend is not None:
            named = resource["crc32c"]
            with open(path, "rb") as file:
                ours = checksums.crc32c_of(file, extend)
    if named is not None and named != ours:
        raise HashMismatch(
            "gs://%s/%s: what arrived has the checksum %s, the object %s. The file was not kept; "
            "copy it again." % (resource["bucket"], resource["name"], ours, named)
        )


def _unpack(path: str) -> None:
    """Replace a gzip file by its content. A file that is not gzip, whatever its object says, stays as it
    is."""
    with open(path, "rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
        file.seek(0)
        with open(path + "_", "wb") as plain:
            for block in _unpacked(iter(lambda: file.read(BLOCK), b"")):
                plain.write(block)
    os.replace(path + "_", path)


def _unpacked(packed: "Iterator[bytes]") -> "Iterator[bytes]":
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    for block in packed:
        pending = block
        while pending:
            # Bounded steps: a small file can unpack to gigabytes.
            yield unpacker.decompress(pending, BLOCK)
            pending = unpacker.unconsumed_tail
            if unpacker.eof and unpacker.unused_data:
                # A gzip file may have several members.
                pending = unpacker.unused_data
                unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    yield unpacker.flush()

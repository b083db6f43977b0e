"""Multipart uploads of the XML API: parts that come in any order and at once, and the object made of them.

Such an upload is an `UploadSessions` session with the parts as files beside its data. A part's file name has
its number and its MD5, which is its ETag. The parts become the session's data when the client says which ones
make up the object; from then on it is committed as a resumable upload is, and repeating the request gives the
same answer. All methods block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from trainshed.buckets.content import BLOCK, UNKNOWN, Staged
from trainshed.buckets.errors import InvalidRequest, NoSuchUpload
from trainshed.buckets.port import ObjectRecord
from trainshed.buckets.rest.uploads import Committed, UploadSessions

MOST_PARTS = 10_000
"""The limit of the public service."""


class Part(Struct, frozen=True):
    """One part, as a client names it when it completes an upload."""

    number: int
    #: The part's ETag; "" where the client does not say.
    etag: str = ""


def stage_part(sessions: UploadSessions, bucket: str, upload_id: str) -> Staged:
    """Returns a file for a part, which `keep_part` takes or its owner discards. Raises ``NotFound``."""
    directory = sessions.directory_of(bucket, upload_id)
    try:
        return Staged.create(directory)
    except FileNotFoundError as error:
        raise _gone(upload_id) from error


def keep_part(staged: Staged, number: int) -> str:
    """Make a staged file the part of that number, durably, in place of an earlier one. Returns its ETag."""
    md5 = staged.digest.md5_hex()
    directory = staged.path.parent
    earlier = list(_files(directory, number))
    kept = directory / f"{_stem(number)}{md5}"
    try:
        staged.seal()
        staged.path.rename(kept)
    except FileNotFoundError as error:
        raise _gone(directory.name) from error
    for path in earlier:
        if path != kept:
            path.unlink(missing_ok=True)
    return f'"{md5}"'


def complete(
    sessions: UploadSessions, bucket: str, upload_id: str, parts: Sequence[Part]
) -> tuple[str, ObjectRecord]:
    """Make the object; returns its name and record. Raises ``NotFound``, ``InvalidRequest`` for missing
    parts."""
    session = sessions.resume(bucket, upload_id)
    if isinstance(session, Committed):
        return session.spec.name, session.record
    try:
        directory = sessions.directory_of(bucket, upload_id)
        files = [_found(directory, part) for part in _ordered(parts)]
        session.restart()
        for path in files:
            for block in _blocks(path):
                session.write(block)
        record = session.commit(UNKNOWN)
        for path in directory.glob("part-*"):
            path.unlink(missing_ok=True)
        return session.spec.name, record
    finally:
        sessions.release(session)


def _ordered(parts: Sequence[Part]) -> Sequence[Part]:
    numbers = [part.number for part in parts]
    if not numbers or numbers != sorted(set(numbers)):
        raise InvalidRequest(
            "The parts of an upload are named in ascending order, each once. Correct them."
        )
    return parts


def _found(directory: Path, part: Part) -> Path:
    etag = part.etag.strip().strip('"')
    for path in _files(directory, part.number):
        if not etag or path.name == f"{_stem(part.number)}{etag}":
            return path
    raise InvalidRequest(
        f"Part {part.number} with the ETag '{part.etag}' was not uploaded. Upload it, and name its ETag."
    )


def _files(directory: Path, number: int) -> Iterator[Path]:
    return directory.glob(f"{_stem(number)}*")


def _stem(number: int) -> str:
    return f"part-{number:05d}-"


def _blocks(path: Path) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while block := os.read(fd, BLOCK):
            yield block
    finally:
        os.close(fd)


def _gone(upload_id: str) -> NoSuchUpload:
    return NoSuchUpload(f"The upload {upload_id} was cancelled meanwhile. Start the upload again.")

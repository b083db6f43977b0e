"""Checksums of object content: MD5 and CRC32C, in the base64 the storage API speaks."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import google_crc32c

from trainshed.buckets.errors import InvalidRequest

# The library ships without types for the function that its C part provides.
_crc32c = cast(Callable[[int, bytes], int], vars(google_crc32c)["extend"])

BLOCK = 1 << 20
"""Bytes per read or write step: large enough to pay for a thread hop, small enough for memory."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """Base64 MD5 and CRC32C of a content; '' for one that is not known."""

    md5: str
    crc32c: str


UNKNOWN = Checksums("", "")


class Digest:
    """Running MD5 and CRC32C of a stream of blocks."""

    __slots__ = ("_crc", "_md5", "size")

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc = 0
        self.size = 0
        """Bytes seen so far."""

    def update(self, block: bytes) -> None:
        """Take the next block in; blocking, a few milliseconds per MiB."""
        self._md5.update(block)
        self._crc = _crc32c(self._crc, block)
        self.size += len(block)

    def sums(self) -> Checksums:
        """The checksums so far: of the 16-byte MD5 and of the big-endian 4-byte CRC32C."""
        return Checksums(
            base64.b64encode(self._md5.digest()).decode(),
            base64.b64encode(self._crc.to_bytes(4, "big")).decode(),
        )


def digest_file(fd: int) -> Digest:
    """Hash an open file from its beginning with positioned reads; blocking."""
    digest = Digest()
    while block := os.pread(fd, BLOCK, digest.size):
        digest.update(block)
    return digest


def verify(actual: Checksums, expected: Checksums) -> None:
    """Raise ``InvalidRequest`` if a checksum that the client sent differs from the content's."""
    for kind, sent, computed in (
        ("MD5", expected.md5, actual.md5),
        ("CRC32C", expected.crc32c, actual.crc32c),
    ):
        if sent and computed and sent != computed:
            raise InvalidRequest(
                f'Provided {kind} hash "{sent}" doesn\'t match calculated {kind} hash '
                f'"{computed}". Send the content again.'
            )


def parse_goog_hash(value: str) -> Checksums:
    """The checksums that an ``X-Goog-Hash`` header (``crc32c=…,md5=…``) names."""
    found: dict[str, str] = {}
    for item in value.split(","):
        kind, _, digest = item.strip().partition("=")
        found[kind.lower()] = digest
    return Checksums(found.get("md5", ""), found.get("crc32c", ""))

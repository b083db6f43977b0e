"""Objects in a store elsewhere as records, and the other way round: which of its properties stand where. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from trainshed.buckets.digests import Checksums
from trainshed.buckets.errors import InvalidRequest
from trainshed.buckets.paths import validate_object_name
from trainshed.buckets.port import Draft
from trainshed.buckets.records import FileIdentity, ObjectRecord

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta, UpdateVersion

_OWN = "trainshed-"
_MD5, _CRC32C, _COMPONENTS, _UPLOAD = (
    f"{_OWN}{key}" for key in ("md5", "crc32c", "components", "upload")
)
_FIELDS = {
    "contentType": "Content-Type",
    "contentEncoding": "Content-Encoding",
    "contentDisposition": "Content-Disposition",
    "contentLanguage": "Content-Language",
    "cacheControl": "Cache-Control",
}
_METADATA_BYTES = 1800


@dataclass(frozen=True, slots=True)
class Version:
    """A version of an object, as the store tells of it. `exact`: what to name it by in a
    precondition. `token`: of the upload that wrote it, "" = not ours."""

    record: ObjectRecord
    etag: str
    exact: UpdateVersion
    token: str


def version_of(meta: ObjectMeta, attributes: Mapping[Any, str]) -> Version:
    """What the store says of an object, read."""
    etag, version = meta["e_tag"] or "", meta["version"] or ""
    given = {str(key): value for key, value in attributes.items()}
    moment = written_ns(meta)
    record = ObjectRecord(
        file=FileIdentity(0, meta["size"], moment),
        generation=_generation(moment, etag),
        metageneration=1,
        created_ns=moment,
        updated_ns=moment,
        md5=given.get(_MD5, ""),
        crc32c=given.get(_CRC32C, ""),
        fields={ours: given[theirs] for ours, theirs in _FIELDS.items() if given.get(theirs)},
        metadata={
            key: value
            for key, value in given.items()
            if key not in _FIELDS.values() and not key.startswith(_OWN)
        },
        components=int(given.get(_COMPONENTS, "0")),
    )
    exact = {key: value for key, value in (("e_tag", etag), ("version", version)) if value}
    return Version(record, etag, cast("UpdateVersion", exact), given.get(_UPLOAD, ""))


def written_ns(meta: ObjectMeta) -> int:
    """When it was written (ns since the epoch)."""
    return int(meta["last_modified"].timestamp() * 1_000_000) * 1000


def _generation(moment: int, etag: str) -> int:
    """Later for a later second, and another one for another tag. Of what a store says when one object is asked for,
    and likewise in a list: that leaves out its own numbers of versions, and parts of a second."""
    digest = hashlib.blake2b(etag.encode(), digest_size=8).digest()
    seconds = moment // 1_000_000_000
    return seconds * 1_000_000 + int.from_bytes(digest, "big") % 1_000_000


def checked_name(name: str) -> str:
    """The name, if such a store can keep it; raises ``InvalidRequest``."""
    validate_object_name(name)
    segments = name.split("/")
    if not all(segments) or {".", ".."}.intersection(segments) or not name.isprintable():
        raise InvalidRequest(
            f"Invalid object name: {name!r}: the bucket lies in a store elsewhere, whose names have no empty part "
            "between slashes, no '.' or '..' and no control characters. Choose another name."
        )
    return name


def attributes_of(draft: Draft, sums: Checksums, components: int, token: str) -> Attributes:
    """What is kept with an object at the store; ``token``: of the upload that writes it. Raises ``InvalidRequest``."""
    found = {theirs: draft.fields[ours] for ours, theirs in _FIELDS.items() if ours in draft.fields}
    unknown = [key for key in draft.fields if key not in _FIELDS and key != "storageClass"]
    for key, value in draft.metadata.items():
        plain = f"{key}{value}"
        if not plain.isascii() or not plain.isprintable() or key != key.lower():
            unknown.append(f"metadata.{key}")
        found[key] = value
    if unknown or sum(len(key) + len(value) for key, value in found.items()) > _METADATA_BYTES:
        raise InvalidRequest(
            "The bucket lies in a store elsewhere, which cannot keep these properties: "
            f"{', '.join(unknown) or 'they are too long'}. Metadata there has keys in lower case and ASCII texts, "
            f"{_METADATA_BYTES} bytes in all."
        )
    own = {_CRC32C: sums.crc32c, _UPLOAD: token}
    own |= {_COMPONENTS: str(components)} if components else {_MD5: sums.md5}
    return cast("Attributes", {**found, **own})

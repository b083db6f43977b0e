"""The types shared by the methods of the storage API and the stores of objects, local and remote.

`Conditions` correspond to the parameters of the public API: `ifGenerationMatch=0` requires that the object
does not exist, and `ifGenerationNotMatch=0` that it exists. All conditions must be met.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import Meta, Struct

from trainshed.buckets.content import UNKNOWN, Checksums
from trainshed.buckets.errors import InvalidRequest, NotModified, condition_failed
from trainshed.buckets.settings import HEADERS
from trainshed.core.units import Bytes

_MAX_DIGITS = 19


class Conditions(Struct, frozen=True):
    """The four preconditions of a storage request; None = not set."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @property
    def must_be_absent(self) -> bool:
        """Whether the request may only create, but not replace."""
        return self.generation_match == 0

    def check(self, generation: int, metageneration: int, *, reading: bool = False) -> None:
        """Raise `PreconditionFailed` unless all conditions are met. An absent object has generation 0 and
        metageneration 0. `reading`: raise `NotModified` for an unmet "not match" condition."""
        if self.generation_match is not None and generation != self.generation_match:
            raise condition_failed()
        if self.metageneration_match is not None and metageneration != self.metageneration_match:
            raise condition_failed()
        if (self.generation_not_match is not None and generation == self.generation_not_match) or (
            self.metageneration_not_match is not None and metageneration == self.metageneration_not_match
        ):
            raise NotModified("Not Modified") if reading else condition_failed()


ALWAYS = Conditions()


def parse_number(query: Mapping[str, str], key: str) -> int | None:
    """Return an int64 parameter of the query, or None. Raises `InvalidRequest` if it is not decimal."""
    text = query.get(key)
    if text is None or text == "":
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Invalid value '{text}' for '{key}'. Send a decimal number.")
    return -read_digits(digits, key) if digits != text else read_digits(digits, key)


def read_digits(digits: str, where: str) -> int:
    """Return the value of a string of decimal digits. Raises `InvalidRequest`, with `where`, if the value
    needs more than 64 bits. Python itself rejects more than 4,300 digits."""
    if len(digits) > _MAX_DIGITS:
        raise InvalidRequest(
            f"Invalid number in '{where}': it has {len(digits)} digits. The maximum is {_MAX_DIGITS}."
        )
    return int(digits)


def conditions_of(query: Mapping[str, str], prefix: str = "if") -> Conditions:
    """Return the conditions in a query, such as `ifGenerationMatch`. `prefix`: `ifSource` for the conditions
    on the source of a copy."""
    return Conditions(
        parse_number(query, prefix + "GenerationMatch"),
        parse_number(query, prefix + "GenerationNotMatch"),
        parse_number(query, prefix + "MetagenerationMatch"),
        parse_number(query, prefix + "MetagenerationNotMatch"),
    )


MAX_RESULTS = 1000


class FileIdentity(Struct, frozen=True):
    """Identifies a state of a file: writing or replacing the file changes it. Times: ns since the epoch."""

    inode: int
    size: Bytes
    mtime_ns: int

    @staticmethod
    def of(stat: os.stat_result) -> "FileIdentity":
        return FileIdentity(stat.st_ino, stat.st_size, stat.st_mtime_ns)


EDITABLE: Final = (*HEADERS, "storageClass", "customTime")
"""The text properties of an object that a client may set."""
LAST_NS: Final = 2**63 - 1
"""The last possible creation time of an object (ns since the epoch), in the year 2262."""
# These types validate values when a record is decoded, because a program may write a record to the attributes
# of its file.
_Number = Annotated[int, Meta(ge=0, le=LAST_NS)]
_Base64 = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9+/=]*\Z")]
_Property = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(EDITABLE)})\Z")]
_Hold = Annotated[str, Meta(pattern=r"\A(?:temporary|eventBased)Hold\Z")]


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """The properties of one generation of an object, without its content."""

    file: FileIdentity
    generation: _Number
    metageneration: _Number
    #: Creation time in ns since the epoch. `updated_ns` has the same unit.
    created_ns: _Number
    updated_ns: _Number
    #: MD5 of the content in base64; "" = unknown. `crc32c` has the same form.
    md5: _Base64 = ""
    crc32c: _Base64 = ""
    #: The editable properties under their public names (contentType, cacheControl, ...).
    fields: dict[_Property, str] = field(default_factory=dict[str, str])
    #: The client's custom metadata.
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    #: The number of components of a composed object; 0 = not composed.
    components: _Number = 0
    #: The object's holds, by the API's property names.
    holds: tuple[_Hold, ...] = ()
    #: The time at which the generation became noncurrent (ns since the epoch); 0 = it is live.
    deleted_ns: _Number = 0

    @property
    def size(self) -> int:
        return self.file.size


class ObjectRef(Struct, frozen=True):
    """An object or one of its generations, with the conditions of a request."""

    bucket: str
    name: str
    #: The generation to which the request refers; None = the live generation.
    generation: int | None = None
    conditions: Conditions = ALWAYS


class Draft(Struct, frozen=True):
    """The properties that a client sets for a new object."""

    fields: Mapping[str, str] = {}
    metadata: Mapping[str, str] = {}
    #: The checksums that the content must have.
    expected: Checksums = UNKNOWN
    #: The holds of the new object, by the API's property names.
    holds: tuple[str, ...] = ()


class Query(Struct, frozen=True):
    """The parameters of a listing, as in the public method."""

    prefix: str = ""
    delimiter: str = ""
    page_token: str = ""
    max_results: int = MAX_RESULTS
    start_offset: str = ""
    end_offset: str = ""
    include_trailing_delimiter: bool = False
    match_glob: str = ""
    #: Whether noncurrent generations are included.
    versions: bool = False


class Page(Struct, frozen=True):
    """One page of a listing: (name, record) of objects, common prefixes, and the token of the next page."""

    objects: list[tuple[str, ObjectRecord]]
    prefixes: list[str]
    next_page_token: str

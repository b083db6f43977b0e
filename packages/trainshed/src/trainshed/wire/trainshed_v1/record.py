"""Defines what all records of `/trainshed/v1` have in common.

The service builds records, clients decode answers into them, and the API's reference is made from them. A
field `start_time` is `startTime` in JSON. Moments are RFC 3339 texts in UTC, "" if the moment has not come. A
field whose default is UNSET may be absent, as its line says; every other field of an answer is always there.
Every field has a default all the same, so that a client can read the answers of an older service; unknown
fields of a newer one are ignored.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R", bound=Struct)


class Record(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object of the API."""


_encoder = msgspec.json.Encoder()


def plain(value: object) -> Any:
    """Return records as dictionaries and lists, as JSON shows them."""
    return msgspec.to_builtins(value)


def encoded(value: Record) -> bytes:
    """Return a record as JSON text: the same as that of its `plain` form, in a tenth of the time."""
    return _encoder.encode(value)


def read(value: object, record: type[R]) -> R:
    """Return a decoded JSON object as a record. Raises ValueError if it is none."""
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as wrong:
        raise ValueError(str(wrong)) from None


class Nothing(Record, frozen=True):
    """An empty object."""

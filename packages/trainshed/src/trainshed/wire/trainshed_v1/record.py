"""Defines the common base of all records of `/trainshed/v1`.

The service creates records, clients decode answers into them, and the API's reference is generated from them.
The field `start_time` is `startTime` in JSON. Times are RFC 3339 texts in UTC; "" = not reached yet. A field
with the default UNSET may be absent, as its description specifies. Every other field of an answer is always
present. Every field has a default, so that a client can read answers of an older service. Unknown fields of a
newer service are ignored.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R", bound=Struct)


class Record(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object of the API."""


_encoder = msgspec.json.Encoder()


def to_builtins(value: object) -> Any:
    """Return records as dictionaries and lists, as in JSON."""
    return msgspec.to_builtins(value)


def encode(value: Record) -> bytes:
    """Return a record as JSON text. The text equals that of its `to_builtins` form and takes a tenth of the
    time."""
    return _encoder.encode(value)


def read(value: object, record: type[R]) -> R:
    """Return a decoded JSON object as a record. Raises ValueError if it does not match the record."""
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as wrong:
        raise ValueError(str(wrong)) from None


class Nothing(Record, frozen=True):
    """An empty object."""

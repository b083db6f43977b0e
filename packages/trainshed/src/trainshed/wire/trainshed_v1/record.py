"""Defines the base class of all records of `/trainshed/v1`.

The service creates records, and clients decode responses into them. `tools/api_reference.py` generates the
API's reference from them.

- The field `start_time` is `startTime` in JSON.
- Times are RFC 3339 strings in UTC; "" = not reached yet.
- A field with the default UNSET may be absent, as its description specifies. All other fields of a response
  are always present.
- Every field has a default, so a client can read responses of an older service. Unknown fields from a newer
  service are ignored.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R", bound=Struct)


class Record(Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON object of the API."""


_encoder = msgspec.json.Encoder()


def to_builtins(value: object) -> Any:
    """Return records as dictionaries and lists with the structure of their JSON."""
    return msgspec.to_builtins(value)


def encode(value: Record) -> bytes:
    """Return a record as JSON text. The text equals the encoded result of `to_builtins`, but takes a tenth of
    the time."""
    return _encoder.encode(value)


def read(value: object, record: type[R]) -> R:
    """Convert a decoded JSON object to a record. Raises ValueError if the object does not match the record
    type."""
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as wrong:
        raise ValueError(str(wrong)) from None


class Nothing(Record, frozen=True):
    """An empty JSON object."""

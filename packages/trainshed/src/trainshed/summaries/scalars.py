"""Reads the scalars of an event, as written by `tf.summary.scalar` of TensorFlow 1 and 2, Keras, PyTorch and
others. Pure.

The message types are in `events.textproto`, and are loaded into a separate descriptor pool. Therefore
TensorFlow and TensorBoard are not needed, but can be loaded at the same time. Other fields of an event are
skipped.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

_MAX_TAG_LENGTH: Final = 1000
_SCALARS: Final = b"scalars"
"""The plug-in of scalar tensors. Single numbers of other plug-ins are not measurements."""


class Scalar(Struct, frozen=True):
    """A measured value."""

    #: The name of the measured quantity.
    tag: str
    #: The step of the measurement.
    step: int
    #: Time in seconds since the epoch, by the program's clock.
    at: float
    value: float


def read_scalars(record: bytes) -> Iterator[Scalar]:
    """Yield the scalars of one record of an event file, in order. Yield none if it is not an event."""
    event = _event(record)
    if event is None:
        return
    for value in event.summary.value:
        number = _number(value)
        if number is not None and 0 < len(value.tag) <= _MAX_TAG_LENGTH:
            yield Scalar(value.tag.decode(errors="replace"), event.step, event.wall_time, number)


def event_time(record: bytes) -> float:
    """Return the time of an event in seconds since the epoch, by the program's clock. Return 0 if the record
    is not an event."""
    event = _event(record)
    return event.wall_time if event is not None and math.isfinite(event.wall_time) else 0.0


def _event(record: bytes) -> Any | None:
    event = _event_class()()
    try:
        event.ParseFromString(record)
    except Exception:
        # The record is not an event (protobuf's DecodeError). Catch all exceptions, because protobuf and its
        # error class are imported only when the first event is read.
        return None
    return event


def _number(value: Any) -> float | None:
    if value.HasField("simple_value"):
        return value.simple_value
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name not in (b"", _SCALARS):
        return None
    return _tensor_number(value.tensor)


# --- tensors of one element


class _Kind(Struct, frozen=True):
    """Defines where a tensor stores its only element: in the list `field` of the message, or as bytes.
    `letter`: the format of these bytes for `struct`."""

    field: str
    letter: str


_KINDS: Final = {
    1: _Kind("float_val", "f"),
    2: _Kind("double_val", "d"),
    3: _Kind("int_val", "i"),
    4: _Kind("int_val", "B"),
    5: _Kind("int_val", "h"),
    6: _Kind("int_val", "b"),
    9: _Kind("int64_val", "q"),
    14: _Kind("half_val", ""),
    17: _Kind("int_val", "H"),
    19: _Kind("half_val", "e"),
    22: _Kind("uint32_val", "I"),
    23: _Kind("uint64_val", "Q"),
}
"""The supported kinds of elements, by the tensor's DataType. 14 is bfloat16, which is the upper half of a
float. 19 is half."""
_BFLOAT16: Final = 14


def _tensor_number(tensor: Any) -> float | None:
    kind = _KINDS.get(tensor.dtype)
    if kind is None or tensor.tensor_shape.unknown_rank or len(tensor.tensor_shape.dim) > 0:
        return None
    if content := tensor.tensor_content:
        return _from_bytes(tensor.dtype, kind, content)
    values: Sequence[float] = getattr(tensor, kind.field)
    if len(values) > 1:
        return None
    if not values:
        return 0.0  # Zero: messages omit this value.
    if kind.field == "half_val":
        bits = int(values[0])
        return _from_bytes(tensor.dtype, kind, struct.pack("<H", bits)) if bits >> 16 == 0 else None
    return float(values[0])


def _from_bytes(dtype: int, kind: _Kind, content: bytes) -> float | None:
    if dtype == _BFLOAT16:
        content, letter = b"\0\0" + content, "f"
    else:
        letter = kind.letter
    try:
        return float(struct.unpack(f"<{letter}", content)[0])
    except struct.error:
        return None


@cache
def _event_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    text = Path(__file__).with_name("events.textproto").read_text()
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trainshed.summaries.Event"))

"""Compiles the descriptor of each message type once into a flat table that says how its JSON is read.

A plan is built on first use, never changes, and is shared by all threads.
"""

from collections.abc import Mapping
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.wire import scalars

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

OUTPUT_ONLY: Final = 3  # google.api.FieldBehavior
_FIELD_BEHAVIOR: Final = 1052
"""The number of the option google.api.field_behavior."""


class Shape(Enum):
    """How the values of a field are contained in it."""

    ONE = auto()
    LIST = auto()
    MAP = auto()


VALUE: Final = "google.protobuf.Value"
LIST_VALUE: Final = "google.protobuf.ListValue"
FIELD_MASK: Final = "google.protobuf.FieldMask"
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
_SPECIAL: Final = frozenset(
    {
        *(VALUE, LIST_VALUE, FIELD_MASK, TIMESTAMP, DURATION),
        *("google.protobuf.Struct", "google.protobuf.Any"),
    }
)

_INT32 = scalars.integer_reader(-(2**31), 2**31 - 1)
_INT64 = scalars.integer_reader(-(2**63), 2**63 - 1)
_UINT32 = scalars.integer_reader(0, 2**32 - 1)
_UINT64 = scalars.integer_reader(0, 2**64 - 1)
_SCALARS: Final[Mapping[int, tuple[str, scalars.Reader]]] = {
    1: ("TYPE_DOUBLE", scalars.read_double),
    2: ("TYPE_FLOAT", scalars.read_float),
    3: ("TYPE_INT64", _INT64),
    4: ("TYPE_UINT64", _UINT64),
    5: ("TYPE_INT32", _INT32),
    6: ("TYPE_FIXED64", _UINT64),
    7: ("TYPE_FIXED32", _UINT32),
    8: ("TYPE_BOOL", scalars.read_bool),
    9: ("TYPE_STRING", scalars.read_text),
    12: ("TYPE_BYTES", scalars.read_bytes),
    13: ("TYPE_UINT32", _UINT32),
    15: ("TYPE_SFIXED32", _INT32),
    16: ("TYPE_SFIXED64", _INT64),
    17: ("TYPE_SINT32", _INT32),
    18: ("TYPE_SINT64", _INT64),
}
"""Public label and reader by FieldDescriptor.TYPE_*."""


class Value(Struct, frozen=True):
    """The type of one value: of a field, of a list's elements or of a map's values."""

    #: What the public texts call it.
    label: str
    #: Returns the field's value for a JSON value; None = it is a message.
    read: scalars.Reader | None = None
    #: Of an enum: the name of each number.
    enum_names: dict[int, str] | None = None
    #: Of a message: its descriptor.
    message: Any = None

    @classmethod
    def of(cls, field: "FieldDescriptor") -> "Value":
        if field.message_type is not None:
            full_name = field.message_type.full_name
            return cls(f"type.googleapis.com/{full_name}", message=field.message_type)
        if field.enum_type is None:
            return cls(*_SCALARS[field.type])
        values = field.enum_type.values
        return cls(
            f"type.googleapis.com/{field.enum_type.full_name}",
            scalars.enum_reader({value.name: value.number for value in values}),
            {value.number: value.name for value in reversed(values)},
        )

    @property
    def plan(self) -> "Plan":
        """The plan of a message value; compiled late, because types may contain themselves."""
        return plan_of(self.message)

    @property
    def is_bool(self) -> bool:
        return self.read is scalars.read_bool

    @property
    def is_any_json(self) -> bool:
        """Whether null is one of its values, as of a google.protobuf.Value alone."""
        return self.message is not None and self.message.full_name == VALUE


class Field(Struct, frozen=True):
    """One field of a message."""

    name: str
    json_name: str
    value: Value
    shape: Shape
    #: Of a map.
    key: Value | None
    output_only: bool
    #: The oneof that it is a member of, if that has others.
    oneof: str | None

    @classmethod
    def of(cls, field: "FieldDescriptor") -> "Field":
        # An update of a project names it by this field.
        is_name = field.full_name == "google.cloud.resourcemanager.v3.Project.name"
        oneof = field.containing_oneof
        entry = field.message_type
        if entry is not None and not entry.GetOptions().map_entry:
            entry = None
        return cls(
            field.name,
            field.json_name,
            Value.of(entry.fields_by_name["value"] if entry is not None else field),
            Shape.MAP if entry is not None else Shape.LIST if field.is_repeated else Shape.ONE,
            Value.of(entry.fields_by_name["key"]) if entry is not None else None,
            OUTPUT_ONLY in _behaviours(field) and not is_name,
            oneof.name if oneof is not None and len(oneof.fields) > 1 else None,
        )

    @property
    def takes_null(self) -> bool:
        """Whether null is a value of its own; everywhere else it means "not given"."""
        is_null = self.value.label.endswith(".NullValue")
        return self.shape is Shape.ONE and (self.value.is_any_json or is_null)


class Plan(Struct, frozen=True):
    """A message type: its fields by every accepted JSON key, and by number."""

    full_name: str
    by_key: Mapping[str, Field]
    by_number: Mapping[int, Field]
    #: Whether it is a well-known type, whose JSON is not an object of its fields.
    is_special: bool
    #: Whether it is a scalar in a message of its own.
    is_wrapper: bool


@cache
def plan_of(message: "Descriptor") -> Plan:
    """Return the plan of a descriptor."""
    fields = {field.number: Field.of(field) for field in message.fields}
    by_json_name = {field.json_name: field for field in fields.values()}
    by_name = {field.name: field for field in fields.values()}
    is_wrapper = message.file.name == "google/protobuf/wrappers.proto"
    is_special = is_wrapper or message.full_name in _SPECIAL
    return Plan(message.full_name, by_json_name | by_name, fields, is_special, is_wrapper)


def plan_for(message: Message) -> Plan:
    """Return the plan of a message."""
    # The stubs name two classes for what is one object in this implementation of protobuf.
    return plan_of(cast("Descriptor", message.DESCRIPTOR))


def _behaviours(field: "FieldDescriptor") -> frozenset[int]:
    """Return the google.api.field_behavior numbers of a field."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    # Read as a message that knows none of them, whichever extensions this process has loaded.
    options = Empty.FromString(field.GetOptions().SerializeToString())
    return frozenset(
        number
        for option in UnknownFieldSet(options)
        if option.field_number == _FIELD_BEHAVIOR
        for number in (
            option.data if isinstance(option.data, bytes) else (option.data,)
        )  # packed, or one
    )

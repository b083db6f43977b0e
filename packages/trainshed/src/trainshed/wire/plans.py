"""Compiles the descriptor of each message type once into a flat table that says how it is read and written.

It owns the reading of descriptors for `decode` and `encode`. A plan is built on first use, never changes, and
is shared by all threads (building one twice at once is harmless).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message

from trainshed.wire import scalars

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

OUTPUT_ONLY: Final = 3  # google.api.FieldBehavior
_FIELD_BEHAVIOR: Final = 1052
"""The number of the option google.api.field_behavior."""


class Shape(Enum):
    """How the values of a field are contained in it."""

    ONE = auto()
    LIST = auto()
    MAP = auto()


class Special(Enum):
    """Messages whose JSON is not an object of their fields."""

    TIMESTAMP = "google.protobuf.Timestamp"
    DURATION = "google.protobuf.Duration"
    FIELD_MASK = "google.protobuf.FieldMask"
    STRUCT = "google.protobuf.Struct"
    LIST_VALUE = "google.protobuf.ListValue"
    VALUE = "google.protobuf.Value"
    ANY = "google.protobuf.Any"
    WRAPPER = "wrapper"


_SPECIALS: Final = {special.value: special for special in Special}

# FieldDescriptor.TYPE_* -> (public label, reader, writer)
_INT32 = scalars.integer_reader(-(2**31), 2**31 - 1)
_INT64 = scalars.integer_reader(-(2**63), 2**63 - 1)
_UINT32 = scalars.integer_reader(0, 2**32 - 1)
_UINT64 = scalars.integer_reader(0, 2**64 - 1)
Writer = Callable[[Any], Any]
_SCALARS: Final[dict[int, tuple[str, scalars.Reader, Writer | None]]] = {
    1: ("TYPE_DOUBLE", scalars.read_double, scalars.double_json),
    2: ("TYPE_FLOAT", scalars.read_float, scalars.float_json),
    3: ("TYPE_INT64", _INT64, str),
    4: ("TYPE_UINT64", _UINT64, str),
    5: ("TYPE_INT32", _INT32, None),
    6: ("TYPE_FIXED64", _UINT64, str),
    7: ("TYPE_FIXED32", _UINT32, None),
    8: ("TYPE_BOOL", scalars.read_bool, None),
    9: ("TYPE_STRING", scalars.read_text, None),
    12: ("TYPE_BYTES", scalars.read_bytes, scalars.bytes_json),
    13: ("TYPE_UINT32", _UINT32, None),
    15: ("TYPE_SFIXED32", _INT32, None),
    16: ("TYPE_SFIXED64", _INT64, str),
    17: ("TYPE_SINT32", _INT32, None),
    18: ("TYPE_SINT64", _INT64, str),
}
_BOOL: Final = 8


class Value:
    """The type of one value: of a field, of a list's elements or of a map's values."""

    __slots__ = (
        "_message",
        "_plan",
        "enum_names",
        "is_bool",
        "is_verbatim",
        "label",
        "read",
        "special",
        "write",
    )

    def __init__(self, field: "FieldDescriptor") -> None:
        self._message: Descriptor | None = field.message_type
        self._plan: Plan | None = None
        self.special: Special | None = None
        self.enum_names: dict[int, str] | None = None
        self.read: scalars.Reader | None = None
        self.write: Writer | None = None
        self.is_bool = field.type == _BOOL
        if field.message_type is not None:
            self.label = f"type.googleapis.com/{field.message_type.full_name}"
            self.special = special_of(field.message_type)
        elif field.enum_type is not None:
            enum: EnumDescriptor = field.enum_type
            self.label = f"type.googleapis.com/{enum.full_name}"
            numbers = {value.name: value.number for value in enum.values}
            self.read = scalars.enum_reader(numbers)
            self.enum_names = {value.number: value.name for value in reversed(enum.values)}
        else:
            self.label, self.read, self.write = _SCALARS[field.type]
        #: Whether its JSON value is the Python value of the field.
        self.is_verbatim = self.read is not None and self.write is None and self.enum_names is None

    @property
    def is_message(self) -> bool:
        """Whether the value is a message, special ones included."""
        return self._message is not None

    @property
    def plan(self) -> "Plan":
        """The plan of a message value; compiled late, because types may contain themselves."""
        if self._plan is None:
            assert self._message is not None
            self._plan = plan_of(self._message)
        return self._plan


class Field:
    """One field of a message."""

    __slots__ = ("json_name", "key", "name", "oneof", "output_only", "shape", "takes_null", "value")

    def __init__(self, field: "FieldDescriptor") -> None:
        self.name = field.name
        self.json_name = field.json_name
        # An update of a project names it by this field.
        is_name = field.full_name == "google.cloud.resourcemanager.v3.Project.name"
        self.output_only = OUTPUT_ONLY in _behaviours(field) and not is_name
        oneof = field.containing_oneof
        synthetic = oneof is not None and len(oneof.fields) == 1
        self.oneof: str | None = None if oneof is None or synthetic else oneof.name
        self.shape = Shape.LIST if field.is_repeated else Shape.ONE
        self.key: Value | None = None
        target = field
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            self.shape = Shape.MAP
            self.key = Value(entry.fields_by_name["key"])
            target = entry.fields_by_name["value"]
        self.value = Value(target)
        # For these two, null is a value of its own; everywhere else it means "not given".
        self.takes_null = self.shape is Shape.ONE and (
            self.value.special is Special.VALUE or self.value.label.endswith(".NullValue")
        )


class Plan:
    """A message type: its fields by every accepted JSON key, and by number."""

    __slots__ = ("by_key", "by_number", "full_name", "special")

    def __init__(self, message: "Descriptor") -> None:
        self.full_name = message.full_name
        self.special = special_of(message)
        fields = {field.number: Field(field) for field in message.fields}
        self.by_number = fields
        self.by_key = {field.json_name: field for field in fields.values()}
        self.by_key |= {field.name: field for field in fields.values()}


_plans: "dict[Descriptor, Plan]" = {}


def plan_of(message: "Descriptor") -> Plan:
    """Return the plan of a descriptor; built once for each."""
    plan = _plans.get(message)
    if plan is None:
        plan = _plans[message] = Plan(message)
    return plan


def plan_for(message: Message | type[Message]) -> Plan:
    """Return the plan of a message or a class."""
    # The stubs name two classes for what is one object in this implementation of protobuf.
    return plan_of(cast("Descriptor", message.DESCRIPTOR))


def special_of(message: "Descriptor") -> Special | None:
    """Return the special JSON form that the type has; None = it has none."""
    if message.file.name == "google/protobuf/wrappers.proto":
        return Special.WRAPPER
    return _SPECIALS.get(message.full_name)


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


def children(shape: Shape, content: Any) -> tuple[Any, ...]:
    """Return the values of a set field, one or many."""
    if shape is Shape.ONE:
        return (content,)
    return tuple(content.values() if shape is Shape.MAP else content)

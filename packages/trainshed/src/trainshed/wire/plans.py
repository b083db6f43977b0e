"""Compiles the descriptor of each message type into a plan: a table for reading the type's JSON.

A plan is created at its first use, is immutable, and is shared by all threads. A reader converts a decoded
JSON value to the Python value of a field. It raises `UnreadableValue` for a wrong value. The text of the
exception, which may be empty, becomes the end of the public error text. Readers accept proto3 JSON and the
deviations of the public clients (spec/clients#wire).
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.message import Message
from msgspec import Struct

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

Reader = Callable[[Any], Any]

_INTEGRAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NUMERIC = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BASE64_URLSAFE = str.maketrans("-_", "+/")
_FLOAT_MAX: Final = 3.4028235e38
"""The largest 32-bit float in the form that protobuf prints. This form is rounded up."""
_SPECIAL_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UnreadableValue(ValueError):
    """A JSON value is not valid for the type of its field."""


def read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnreadableValue
    return value


def read_bool(value: Any) -> bool:
    """Return a JSON `true` or `false`. Strings are rejected."""
    if value is True or value is False:
        return value
    raise UnreadableValue


def read_bytes(value: Any) -> bytes:
    """Decode base64 in the standard or URL-safe alphabet, with or without padding."""
    if not isinstance(value, str):
        raise UnreadableValue
    text = value.translate(_BASE64_URLSAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableValue("Base64 decoding failed") from None


def integer_reader(low: int, high: int) -> Reader:
    """Return a reader of integers in a range. It accepts integers, decimal strings, and floats without a
    fraction (`100.0`)."""

    def read(value: Any) -> int:
        if type(value) is int:
            number = value
        elif isinstance(value, float):
            if not value.is_integer():
                raise UnreadableValue
            number = int(value)
        elif isinstance(value, str):
            number = _integer_text(value)
        else:
            raise UnreadableValue
        if low <= number <= high:
            return number
        raise UnreadableValue

    return read


def _integer_text(text: str) -> int:
    """Convert a decimal string to an integer. Plain digits are converted exactly. Text with a fraction of
    zeros or an exponent is converted through float."""
    # Reject longer texts. Every 64-bit integer fits into 40 characters.
    match = _INTEGRAL.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise UnreadableValue
    if match.group(1) is None and match.group(2) is None:
        return int(text)
    number = float(text)
    if not number.is_integer():
        raise UnreadableValue
    return int(number)


def read_double(value: Any) -> float:
    """Read a number, a numeric string, or one of `NaN`, `Infinity` and `-Infinity`."""
    if isinstance(value, str):
        if value in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value]
        if _NUMERIC.fullmatch(value) is None:
            raise UnreadableValue
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableValue
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise UnreadableValue from None
    if not math.isfinite(number):
        raise UnreadableValue
    return number


def read_float(value: Any) -> float:
    """Read a number as `read_double` does, within the range of 32-bit floats."""
    number = read_double(value)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise UnreadableValue
    return number


def enum_reader(numbers: dict[str, int]) -> Reader:
    """Return a reader of enum values. It accepts names and known numbers.

    Names may be in lower case and contain hyphens, as on the public services. Numbers may be strings, or
    floats such as `1.0`, which the SDK sends.
    """
    known = frozenset(numbers.values())
    read_number = integer_reader(-(2**31), 2**31 - 1)

    def read(value: Any) -> int:
        if isinstance(value, str):
            value = value.upper().replace("-", "_")
            if value in numbers:
                return numbers[value]
        try:
            number: int = read_number(value)
        except UnreadableValue:
            raise UnreadableValue(enum_choices(value, numbers)) from None
        if number not in known:
            raise UnreadableValue(enum_choices(value, numbers))
        return number

    return read


def enum_choices(value: Any, names: Iterable[str]) -> str:
    """Return the end of an error text about an unknown enum `value`: the most similar name, and all names."""
    import difflib  # Imported here, since an idle service does not need it (docs/adr/0083).

    chosen = [name for name in names if not name.endswith("_UNSPECIFIED")]
    meant = value if isinstance(value, str) else ""
    words = set(meant.split("_"))
    # Compared by letters only, NVIDIA_H100 would be closer to NVIDIA_B200 than to NVIDIA_H100_80GB.
    near = [name for name in chosen if words <= set(name.split("_"))]
    near = near or difflib.get_close_matches(meant, chosen, n=1)
    question = f"did you mean {near[0]}? The" if near else "the"
    return f"; {question} values are {', '.join(chosen)}."


def read_mask(value: Any) -> list[str]:
    """Read a field mask such as `"labels,jobSpec.network"`, in camelCase or snake_case, as a list of proto
    paths."""
    if not isinstance(value, str):
        raise UnreadableValue
    paths = [path.strip() for path in value.split(",")] if value.strip() else []
    if any(not path or " " in path for path in paths):
        raise UnreadableValue("Illegal field mask; paths must be separated by single commas")
    return [re.sub("[A-Z]", lambda match: "_" + match.group().lower(), path) for path in paths]


OUTPUT_ONLY: Final = 3  # google.api.FieldBehavior
_FIELD_BEHAVIOR: Final = 1052
"""The number of the option google.api.field_behavior."""


class Shape(Enum):
    """Whether a field contains one value, a list or a map."""

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

_INT32 = integer_reader(-(2**31), 2**31 - 1)
_INT64 = integer_reader(-(2**63), 2**63 - 1)
_UINT32 = integer_reader(0, 2**32 - 1)
_UINT64 = integer_reader(0, 2**64 - 1)
_SCALARS: Final[Mapping[int, tuple[str, Reader]]] = {
    1: ("TYPE_DOUBLE", read_double),
    2: ("TYPE_FLOAT", read_float),
    3: ("TYPE_INT64", _INT64),
    4: ("TYPE_UINT64", _UINT64),
    5: ("TYPE_INT32", _INT32),
    6: ("TYPE_FIXED64", _UINT64),
    7: ("TYPE_FIXED32", _UINT32),
    8: ("TYPE_BOOL", read_bool),
    9: ("TYPE_STRING", read_text),
    12: ("TYPE_BYTES", read_bytes),
    13: ("TYPE_UINT32", _UINT32),
    15: ("TYPE_SFIXED32", _INT32),
    16: ("TYPE_SFIXED64", _INT64),
    17: ("TYPE_SINT32", _INT32),
    18: ("TYPE_SINT64", _INT64),
}
"""The public label and the reader of each FieldDescriptor.TYPE_*."""


class Value(Struct, frozen=True):
    """The type of a value: of a field, a list's element, or a map's value."""

    #: Name of the type in public error texts.
    label: str
    #: Converts a JSON value to a Python value. None = the value is a message.
    read: Reader | None = None
    #: The name of each number of an enum. None = the type is not an enum.
    enum_names: dict[int, str] | None = None
    #: The descriptor of a message type. None = the type is not a message.
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
            enum_reader({value.name: value.number for value in values}),
            {value.number: value.name for value in reversed(values)},
        )

    @property
    def plan(self) -> "Plan":
        """The plan (the table for reading the JSON) of a message type. It is compiled at its first use,
        because a type may contain itself."""
        return plan_of(self.message)

    @property
    def is_bool(self) -> bool:
        return self.read is read_bool

    @property
    def is_nullable(self) -> bool:
        """Whether null is a valid value. This is true only for google.protobuf.Value."""
        return self.message is not None and self.message.full_name == VALUE


class Field(Struct, frozen=True):
    """One field of a message."""

    name: str
    json_name: str
    value: Value
    shape: Shape
    #: The type of a map's keys. None = the field is not a map.
    key: Value | None
    output_only: bool
    #: Name of the oneof that contains this field and others. None = no such oneof.
    oneof: str | None

    @classmethod
    def of(cls, field: "FieldDescriptor") -> "Field":
        # Accept this field from clients although it is marked as output-only: it identifies the project in an
        # update.
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
    def accepts_null(self) -> bool:
        """Whether null is a valid value of the field. For all other fields, null is the same as an absent
        field."""
        is_null = self.value.label.endswith(".NullValue")
        return self.shape is Shape.ONE and (self.value.is_nullable or is_null)


class Plan(Struct, frozen=True):
    """A message type with its fields, by each accepted JSON key and by number."""

    full_name: str
    by_key: Mapping[str, Field]
    by_number: Mapping[int, Field]
    #: Whether the type is a well-known type, whose JSON form is not an object with its fields.
    is_special: bool
    #: Whether the type is a wrapper around one scalar.
    is_wrapper: bool


@cache
def plan_of(message: "Descriptor") -> Plan:
    """Return the plan of a message type: the table for reading its JSON."""
    fields = {field.number: Field.of(field) for field in message.fields}
    by_json_name = {field.json_name: field for field in fields.values()}
    by_name = {field.name: field for field in fields.values()}
    is_wrapper = message.file.name == "google/protobuf/wrappers.proto"
    is_special = is_wrapper or message.full_name in _SPECIAL
    return Plan(message.full_name, by_json_name | by_name, fields, is_special, is_wrapper)


def plan_for(message: Message) -> Plan:
    """Return the plan of a message: the table for reading the JSON of its type."""
    # The type stubs declare two Descriptor classes. This protobuf implementation has only one.
    return plan_of(cast("Descriptor", message.DESCRIPTOR))


def _behaviours(field: "FieldDescriptor") -> frozenset[int]:
    """Return the google.api.field_behavior numbers of a field."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    # Parse the options as an empty message. Otherwise the result would depend on the extensions that this
    # process has loaded.
    options = Empty.FromString(field.GetOptions().SerializeToString())
    return frozenset(
        number
        for option in UnknownFieldSet(options)
        if option.field_number == _FIELD_BEHAVIOR
        for number in (
            option.data if isinstance(option.data, bytes) else (option.data,)
        )  # a packed list, or a single number
    )

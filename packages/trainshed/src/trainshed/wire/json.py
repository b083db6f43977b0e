"""Reads and writes the public messages as strict JSON.

Other packages store messages as plain dictionaries (`from_public`, `to_public`). The reader rejects the same
values as the public services. It reports all violations in the order of the text, with the services' error
texts (facts/limits#error-texts). It accepts every spelling that clients of the public services use
(spec/clients#wire, spec/submit#refusals). Protobuf's `json_format` is used only for writing, because its
reader stops at the first error. This module checks only types, not the rules of a message.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from math import isfinite
from typing import Any, Final, cast

import msgspec
from google.protobuf.message import Message

from trainshed.wire import plans, pool
from trainshed.wire.plans import Field, Plan, Shape, Value
from trainshed.wire.status import UnknownEnum, Violation, WireError

MAX_DEPTH: Final = 100
"""Maximum depth of nested objects and lists. `json_format` and the public services have the same limit."""

MAX_VALUES: Final = 50_000
"""Maximum number of strings, numbers, objects and lists in one request. They are counted before parsing, so a
small request cannot cause much work. `core.specs` limits the contents of a job."""
MAX_ENTRIES: Final = 10_000
"""Maximum number of entries of one list or map."""
_MIN_COUNTED_BYTES: Final = 16 << 10
"""Minimum size in bytes of a request whose values are counted."""
_VALUE_START: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
"""Matches a string, or a character that precedes a value. Takes linear time, since an unterminated string
extends to the end of the text."""
_LEVELS_PER_VALUE: Final = 3
"""Number of nested messages per level within a google.protobuf.Value. `json_format` counts two of them. gRPC
clients read at most MAX_DEPTH nested messages."""
_MAX_EXCERPT: Final = 200  # length of the excerpt of an invalid value in an error
_PAYLOAD_PREFIX: Final = "Invalid JSON payload received. "
_MAX_EXACT: Final = 1e15
"""Floats without a fraction below this limit are exact integers."""


def decode_text(data: bytes | bytearray) -> Any:
    """Decode JSON text. Blank text counts as an empty object.

    Raises WireError for more than MAX_VALUES values and for invalid JSON, such as NaN or half of a surrogate
    pair.
    """
    check_count(data)
    if not data or data.isspace():
        return {}
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        text = f"Invalid JSON payload received. {error}."
        raise WireError((Violation("", text),)) from None


def check_count(data: bytes | bytearray) -> None:
    """Raise WireError if JSON text has more than MAX_VALUES values. Takes a few milliseconds."""
    if len(data) <= _MIN_COUNTED_BYTES:
        return
    # First count quickly, including commas and brackets within strings. For most requests this upper bound is
    # below the limit, so no exact count is necessary.
    if data.count(b",") + data.count(b"[") + data.count(b"{") < MAX_VALUES:
        return
    values = texts = 0
    for token in _VALUE_START.finditer(data):
        if data[token.start()] == ord('"'):
            texts += 1
        else:
            values += 1
        if values >= MAX_VALUES or texts > 2 * MAX_VALUES:
            raise _too_many_values()


def encode_text(value: Any) -> bytes:
    """Encode JSON values as compact UTF-8 text."""
    return _encode(value)


def compact_text(value: Any) -> str:
    """Encode JSON values as compact text with sorted keys."""
    return _encode_sorted(value).decode()


_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_encode: Final = msgspec.json.Encoder().encode
"""Encodes JSON five times as fast as Python's own encoder."""


def to_public(message: Message, *, enums_as_ints: bool = False) -> dict[str, Any]:
    """Return the message in the public JSON form.

    Names are in camelCase, and int64 values are strings. `enums_as_ints`: enums are numbers instead of names
    (`$alt=json;enum-encoding=int`, spec/clients#numbers). A well-known type has its own form, such as a
    string.
    """
    # Imported for the first message, like all of protobuf.
    from google.protobuf import json_format

    return _restore_integers(
        json_format.MessageToDict(message, use_integers_for_enums=enums_as_ints, descriptor_pool=pool.TYPES)
    )


def _restore_integers(value: Any) -> Any:
    """Return JSON with integers in place of floats without a fraction. Protobuf returns all numbers in a
    Struct as floats."""
    if isinstance(value, dict):
        return {key: _restore_integers(part) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_restore_integers(part) for part in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT:
        return int(value)
    return value


def render(public: Mapping[str, Any]) -> bytes:
    """Return a message in the form of `to_public` as UTF-8 JSON. Keys are sorted, because protobuf does not
    order maps. Therefore equal messages have equal bytes."""
    return _encode_sorted(public)


def from_public(full_name: str, value: Mapping[str, Any], *, keep_output_only: bool = True) -> Message:
    """Read a message from its public JSON form, as returned by `to_public` or sent by a client.

    `full_name`: for example `google.cloud.aiplatform.v1.CustomJob`. Without `keep_output_only`, output-only
    fields are ignored and not checked. Raises WireError with all violations.
    """
    message = pool.message_class(full_name)()
    walk = Walk(keep_output_only=keep_output_only)
    walk.message(plans.plan_for(message), value, message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations))
    return message


def check_received(message: Message) -> None:
    """Apply the checks of a JSON request to a message that arrived in binary form, and clear the message's
    output-only fields. Raises WireError for more than MAX_VALUES values, and for unknown enum numbers, which
    it also clears."""
    walk = Walk(keep_output_only=True)
    walk.check_binary(plans.plan_for(message), message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations), message, unknown_enums=tuple(walk.unknown_enums))


def _entry_count_error(path: str, count: int) -> str:
    """Return the error text for a list or map with this number of entries, or "" if the number is allowed."""
    if count <= MAX_ENTRIES:
        return ""
    return f"Invalid value at '{path}', {count} entries are given; at most {MAX_ENTRIES} are read."


def _too_many_values() -> WireError:
    text = f"Invalid JSON payload received. The request has more than {MAX_VALUES} values."
    return WireError((Violation("", text),))


class Walk:
    """Reads or checks one request body. The errors are appended to `violations` and `unknown_enums`.

    `keep_output_only`: False = ignore output-only fields. `number_to_text`: converts numbers in string
    fields; None = such numbers are rejected.
    """

    def __init__(
        self, *, keep_output_only: bool, number_to_text: Callable[[int | float], str] | None = None
    ) -> None:
        self.violations: list[Violation] = []
        self.unknown_enums: list[UnknownEnum] = []
        self._keep_output_only = keep_output_only
        self._number_to_text = number_to_text
        self._depth = 0
        # The messages that contain the current one, and the current one itself, each with its path. The first
        # is the body.
        self._parents: list[tuple[Plan, str]] = []
        # The number of values that were counted in a message in binary form.
        self._value_count = 0

    def message(self, plan: Plan, raw: Any, message: Message, path: str) -> None:
        """Read the JSON value `raw` into `message`. `path`: the position in the request; "" = the body."""
        if self._depth >= MAX_DEPTH:
            self._reject(path, f"{_PAYLOAD_PREFIX}Message too deep. Max recursion depth reached.")
            return
        self._depth += 1
        self._parents.append((plan, path))
        if plan.is_special:
            self._well_known(plan, raw, message, path)
        elif isinstance(raw, dict):
            self._fields(plan, cast(dict[str, Any], raw), message, path)
        elif not path:
            self._reject("", f"{_PAYLOAD_PREFIX}Root element must be a message.")
        else:
            self._reject_value(path, f"type.googleapis.com/{plan.full_name}", raw)
        self._parents.pop()
        self._depth -= 1

    def check_binary(self, plan: Plan, message: Message, path: str) -> None:
        """Check a message in binary form in one pass, since it may contain thousands of messages.

        Clears output-only fields and unknown enum numbers, and counts the values. Reports unknown enum
        numbers, and times and numbers without a JSON form. Raises WireError if there are too many values.
        """
        if plan.full_name in _TIME_ERRORS:
            try:
                cast(Any, message).ToJsonString()
            except ValueError:
                self._reject(path, f"Invalid value at '{path}', it is out of range")
        elif plan.full_name == plans.VALUE and not isfinite(cast(Any, message).number_value):
            self._reject(path, f"Invalid value at '{path}', it is not a finite number")
        for descriptor, content in message.ListFields():
            field = plan.by_number[descriptor.number]
            if field.output_only:
                message.ClearField(field.name)
                continue
            name = f"{path}.{field.name}" if path else field.name
            if field.shape is not Shape.ONE and (fault := _entry_count_error(name, len(content))):
                raise WireError((Violation(name, fault),))
            self._value_count += 1 if field.shape is Shape.ONE else len(content)
            if self._value_count > MAX_VALUES:
                raise _too_many_values()
            value = field.value
            if value.message is None and value.enum_names is None:
                continue
            for where, child in _elements(field.shape, name, content):
                if value.message is not None:
                    self.check_binary(value.plan, child, where)
                elif child not in (value.enum_names or ()):
                    self._reject_enum_number(field, child, message, where)

    def _reject_enum_number(self, field: Field, number: int, message: Message, where: str) -> None:
        names = field.value.enum_names
        assert names is not None
        if field.shape is Shape.ONE:
            message.ClearField(field.name)
            self.unknown_enums.append(UnknownEnum(message, field.name, (*names,)))
        choices = plans.enum_choices(number, reversed(names.values()))
        self._reject_value(where, field.value.label, number, choices)

    def _fields(self, plan: Plan, raw: Mapping[str, Any], message: Message, path: str) -> None:
        seen_names: set[str] = set()
        prefix = f"{path}." if path else ""
        for key, value in raw.items():
            field = plan.by_key.get(key)
            if field is None:
                self._reject_key(key, path, f"Cannot find field.{self._misplacement_hint(key, plan, path)}")
                continue
            if field.output_only and not self._keep_output_only:
                continue
            if value is None and not field.accepts_null:
                continue
            if field.name in seen_names:
                self._reject_key(key, path, "Proto field is given twice, under two spellings.")
            elif field.oneof is not None and f"{field.oneof}|" in seen_names:
                self._reject(
                    f"{prefix}{field.name}",
                    f"Invalid value at '{path}' (oneof), oneof field '{field.oneof}' is already set."
                    f" Cannot set '{field.json_name}'",
                )
            else:
                seen_names.add(field.name)
                if field.oneof is not None:
                    seen_names.add(f"{field.oneof}|")
                self._field(field, value, message, key, prefix)

    def _misplacement_hint(self, key: str, plan: Plan, path: str) -> str:
        """Return a hint if the key is a field of an enclosing message, or of a message directly below this
        one; otherwise return ""."""
        for levels, (parent, place) in enumerate(reversed(self._parents[:-1]), 1):
            if place and key in parent.by_key:
                return f" It is a field of '{place}', {levels} level{'s' * (levels > 1)} up."
        below = (
            field.name
            for field in plan.by_number.values()
            if field.value.message is not None
            and field.shape is Shape.ONE
            and not field.output_only
            and key in field.value.plan.by_key
        )
        child = next(below, "")
        return f" It is a field of '{path}.{child}'." if child and path else ""

    def _field(self, field: Field, raw: Any, message: Message, key: str, prefix: str) -> None:
        value = field.value
        if field.shape is Shape.ONE:
            if value.read is not None:
                try:
                    setattr(message, field.name, value.read(self._convert(value, raw)))
                except plans.UnreadableValue as error:
                    if value.enum_names is not None:
                        self.unknown_enums.append(UnknownEnum(message, field.name, (*value.enum_names,)))
                    self._reject_single(field, raw, key, prefix, str(error))
                return
            if isinstance(raw, list) and value.message.full_name not in _LIST_TYPES:
                self._reject_single(field, raw, key, prefix)
                return
            child: Message = getattr(message, field.name)
            child.SetInParent()
            self.message(value.plan, raw, child, prefix + field.name)
        elif field.shape is Shape.LIST:
            if isinstance(raw, list):
                elements = cast(list[Any], raw)
                if self._has_too_many(elements, prefix + field.name):
                    return
                self._list(value, elements, getattr(message, field.name), prefix + field.name)
            else:
                self._reject_value(prefix + field.name, f"repeated {value.label}", raw)
        elif isinstance(raw, dict):
            entries = cast(dict[str, Any], raw)
            if self._has_too_many(entries, prefix + field.name):
                return
            self._map(field, entries, getattr(message, field.name), prefix + field.name)
        else:
            self._reject_value(prefix + field.name, f"map of {value.label}", raw)

    def _reject_single(self, field: Field, raw: Any, key: str, prefix: str, reason: str = "") -> None:
        if isinstance(raw, list):
            self._reject_key(key, prefix[:-1], "Proto field is not repeating, cannot start list.")
        elif isinstance(raw, dict) and field.value.message is None:
            self._reject_key(key, prefix[:-1], "Proto field is not a message, cannot start object.")
        else:
            self._reject_value(prefix + field.name, field.value.label, raw, reason)

    def _list(self, value: Value, raw: list[Any], target: Any, path: str) -> None:
        add = target.add if value.read is None else target.append
        for index, element in enumerate(raw):
            self._element(value, element, add, f"{path}[{index}]")

    def _map(self, field: Field, raw: Mapping[str, Any], target: Any, path: str) -> None:
        value, key_type = field.value, field.key
        assert key_type is not None
        assert key_type.read is not None
        add = target.__getitem__ if value.read is None else target.__setitem__
        for text, element in raw.items():
            where = f"{path}[{json.dumps(text)}]"
            try:
                key = key_type.read({"true": True, "false": False}[text] if key_type.is_bool else text)
            except (plans.UnreadableValue, KeyError):
                self._reject_value(where, key_type.label, text)
                continue
            self._element(value, element, partial(add, key), where)

    def _element(self, value: Value, raw: Any, add: Callable[..., Any], where: str) -> None:
        """Read an element of a list or map. `add`: adds the element. For a message, `add` has no argument and
        returns the empty message to fill. For all other types, its argument is the value."""
        if raw is None and not value.is_nullable:
            self._reject_value(where, value.label, raw)
        elif value.read is None:
            self.message(value.plan, raw, add(), where)
        else:
            try:
                add(value.read(self._convert(value, raw)))
            except plans.UnreadableValue as error:
                self._reject_value(where, value.label, raw, str(error))

    def _convert(self, value: Value, raw: Any) -> Any:
        """Return a number as text if the field is a string and `number_to_text` is set. Return all other
        values unchanged."""
        if self._number_to_text is None or value.read is not plans.read_text:
            return raw
        is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
        return self._number_to_text(raw) if is_number else raw

    def _well_known(self, plan: Plan, raw: Any, message: Any, path: str) -> None:
        """Read a well-known type, whose JSON form is not an object with its fields."""
        from google.protobuf import json_format

        try:
            if plan.full_name == plans.FIELD_MASK:
                message.paths.extend(plans.read_mask(raw))
                return
            # Allow more levels for stored values than for requests. Stored values may have arrived in binary
            # form, which allows deeper lists.
            remaining = MAX_DEPTH - self._depth
            depth = MAX_DEPTH if self._keep_output_only else remaining * 2 // _LEVELS_PER_VALUE
            json_format.ParseDict(raw, message, descriptor_pool=pool.TYPES, max_recursion_depth=depth)
        except Exception as error:  # Reject the client's value, which is the only possible cause.
            text = str(error) if plan.full_name not in _TIME_ERRORS else _TIME_ERRORS[plan.full_name]
            self._reject_value(path, f"type.googleapis.com/{plan.full_name}", raw, text)

    def _has_too_many(self, entries: Sized, path: str) -> bool:
        """Return whether a list or map has too many entries. If so, its error was added, and the caller must
        not read its entries."""
        if fault := _entry_count_error(path, len(entries)):
            self._reject(path, fault)
        return bool(fault)

    def _reject(self, field: str, text: str) -> None:
        self.violations.append(Violation(field, text))

    def _reject_key(self, key: str, path: str, reason: str) -> None:
        where = f" at '{path}'" if path else ""
        # Replace characters without a UTF-8 form: a key may contain any characters, but the error must be
        # valid UTF-8.
        name = key[:_MAX_EXCERPT].encode(errors="replace").decode()
        self._reject(
            f"{path}.{name}" if path else name, f'{_PAYLOAD_PREFIX}Unknown name "{name}"{where}: {reason}'
        )

    def _reject_value(self, path: str, label: str, raw: Any, reason: str = "") -> None:
        """Reject a value.

        `reason`: if it starts with a semicolon, it follows the value in the public error text. Otherwise it
        replaces the value.
        """
        try:
            tail = json.dumps(raw, default=str)
        except RecursionError:
            tail = "a value that is nested too deeply"
        tail = tail if len(tail) <= _MAX_EXCERPT else tail[:_MAX_EXCERPT] + "..."
        if reason and not reason.startswith(";"):
            tail = f"Field '{path.rpartition('.')[2]}', {reason}"
        else:
            tail += reason or _spelling_hint(label, raw, path)
        self._reject(path, f"Invalid value at '{path}' ({label}), {tail}")


_TIME_ERRORS: Final = {
    plans.TIMESTAMP: "Illegal timestamp format; timestamps must be RFC 3339 with a time zone",
    plans.DURATION: "Illegal duration format; duration must end with 's'",
}
"""The public error texts for times."""
_LIST_TYPES: Final = frozenset({plans.VALUE, plans.LIST_VALUE})


def _elements(shape: Shape, name: str, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in a field, each with its path."""
    if shape is Shape.ONE:
        yield name, content
    elif shape is Shape.LIST:
        for index, part in enumerate(content):
            yield f"{name}[{index}]", part
    else:
        for key, part in content.items():
            yield f"{name}[{json.dumps(key)}]", part


_COMMAND_FIELDS: Final = ("command", "args", "container_command", "container_args")
_SHELL_SYNTAX: Final = re.compile(r"[|&;<>]|\$\(")


def _guess_list(text: str, field: str) -> list[str]:
    """Return the list that a client probably meant by a string in place of a repeated field."""
    if field not in _COMMAND_FIELDS:
        return [text]
    if field.endswith("command") and _SHELL_SYNTAX.search(text):
        return ["bash", "-c", text]
    try:
        return shlex.split(text)
    except ValueError:  # an unterminated quote
        return text.split()


def _spelling_hint(label: str, raw: Any, path: str) -> str:
    """Return a hint on the spelling of a value with the wrong type, or "" if no hint is available. `path`:
    the position of the value. The hint follows the public error text."""
    is_short = isinstance(raw, str | int | float) and len(str(raw)) <= _MAX_EXCERPT
    match label, raw:
        case "TYPE_STRING", bool() | int() | float() if is_short:
            return f"; write it in quotes: {json.dumps(json.dumps(raw))}"
        case "TYPE_BOOL", "true" | "false" | "True" | "False":
            return f"; write it without quotes: {raw.lower()}"
        case "repeated TYPE_STRING", str() if is_short:
            return f"; write a list: {json.dumps(_guess_list(raw, path.rpartition('.')[2]))}"
        case "repeated TYPE_STRING", int() | float() if is_short and not isinstance(raw, bool):
            return f"; write a list: {json.dumps([str(raw)])}"
        case _, dict() if label.endswith(".EnvVar") and label.startswith("repeated ") and raw:
            name, value = next(iter(cast("dict[str, Any]", raw).items()))
            entry = json.dumps([{"name": name, "value": str(value)}])
            return f"; write a list: {entry}" if len(entry) <= _MAX_EXCERPT else ""
        case _:
            return ""

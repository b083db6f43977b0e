"""Reads and writes strict JSON of the public messages.

It owns the entry points: `parse` and `render` for messages, `from_public` and `to_public` for the plain
dictionaries that the other packages keep. It refuses what the public services refuse, all violations at once,
and accepts every spelling that their clients use (spec/clients#wire, spec/submit#refusals).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, assert_never, cast

import msgspec
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from trainshed.wire import counts, plans, pool, scalars
from trainshed.wire.decode import Walk
from trainshed.wire.plans import Plan, Shape, Special, Value
from trainshed.wire.status import Violation, WireError


class Form(Struct, frozen=True):
    """What a client may choose about the answer, and what a surface chooses."""

    #: Whether enums are numbers, as requested by `$alt=json;enum-encoding=int` (spec/clients#numbers).
    enums_as_ints: bool = False
    #: Whether all timestamps have nine decimals: gcloud compares those of log entries as texts
    #: (spec/clients#log-pages).
    nine_digits: bool = False


PUBLIC = Form()


def to_json(message: Message, form: Form = PUBLIC) -> Any:
    """Return the JSON value of a message: an object, or the special form of a well-known type. Keys are
    camelCase, in the order of the fields; those of maps are sorted, so that the same message always gives the
    same bytes."""
    return _message(plans.plan_for(message), message, form)


def _message(plan: Plan, message: Any, form: Form) -> Any:
    if plan.special is not None:
        return _special(plan.special, message, form)
    return _fields(plan, message, form)


def _fields(plan: Plan, message: Message, form: Form) -> dict[str, Any]:
    out: dict[str, Any] = {}
    by_number = plan.by_number
    for descriptor, content in message.ListFields():
        field = by_number[descriptor.number]
        value = field.value
        if field.shape is Shape.ONE:
            is_verbatim = value.is_verbatim
            out[field.json_name] = content if is_verbatim else _value(value, content, form)
        elif field.shape is Shape.LIST:
            if value.is_verbatim:
                out[field.json_name] = list(content)
                continue
            out[field.json_name] = [_value(value, element, form) for element in content]
        else:
            out[field.json_name] = _map(value, content, form)
    return out


def _map(value: Value, content: Mapping[Any, Any], form: Form) -> dict[str, Any]:
    return {
        (str(key).lower() if isinstance(key, bool) else str(key)): _value(value, content[key], form)
        for key in sorted(content)
    }


def _value(value: Value, content: Any, form: Form) -> Any:
    if value.read is None:
        return _message(value.plan, content, form)
    if value.write is not None:
        return value.write(content)
    if value.enum_names is not None:
        # NullValue is an enum only in name: its JSON is null.
        if value.label.endswith(".NullValue"):
            return None
        return content if form.enums_as_ints else value.enum_names.get(content, content)
    return content


def _special(special: Special, message: Any, form: Form) -> Any:
    match special:
        case Special.TIMESTAMP:
            text = message.ToJsonString()
            return scalars.nine_digits(text) if form.nine_digits else text
        case Special.DURATION:
            return message.ToJsonString()
        case Special.FIELD_MASK:
            return scalars.mask_text(list(message.paths))
        case Special.WRAPPER:
            return _value(plans.plan_for(message).by_key["value"].value, message.value, form)
        case Special.STRUCT:
            return {key: struct_value(message.fields[key]) for key in sorted(message.fields)}
        case Special.LIST_VALUE:
            return [struct_value(element) for element in message.values]
        case Special.VALUE:
            return struct_value(message)
        case Special.ANY:
            return _any(message, form)
        case _:
            assert_never(special)


def struct_value(message: Any) -> Any:
    """Return the JSON of a google.protobuf.Value; an empty one is null."""
    kind = message.WhichOneof("kind")
    if kind == "struct_value":
        fields = message.struct_value.fields
        return {key: struct_value(fields[key]) for key in sorted(fields)}
    if kind == "list_value":
        return [struct_value(element) for element in message.list_value.values]
    if kind == "number_value":
        return scalars.double_json(message.number_value)
    return None if kind in (None, "null_value") else getattr(message, kind)


def _any(message: Any, form: Form) -> dict[str, Any]:
    if not message.type_url:
        return {}
    out: dict[str, Any] = {"@type": message.type_url}
    try:
        # Those of `v1beta1` are the same messages, and the pool has them once.
        kind = message.type_url.rpartition("/")[2].replace(".v1beta1.", ".v1.")
        inner = pool.message_class(kind)()
        inner.ParseFromString(message.value)
    except (KeyError, DecodeError):
        # The type is not served, so its bytes are all that can be shown.
        return out | {"value": scalars.bytes_json(message.value)}
    plan = plans.plan_for(inner)
    content = _message(plan, inner, form)
    return out | ({"value": content} if plan.special is not None else content)


MessageType = str | type[Message]
"""A full name (`google.cloud.aiplatform.v1.CustomJob`) or a class of the private pool."""


def parse(
    message_type: MessageType, data: bytes | Mapping[str, Any], *, keep_output_only: bool = False
) -> Message:
    """Read JSON into a new message; raises WireError with every violation. Output-only fields are ignored
    unread unless they are to be kept. Without content it is an empty message."""
    kind = pool.message_class(message_type) if isinstance(message_type, str) else message_type
    raw = decode_text(data) if isinstance(data, bytes | bytearray) else data
    message = kind()
    walk = Walk(keep_output_only=keep_output_only)
    walk.message(plans.plan_for(kind), raw, message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations))
    return message


def render(message: Message, *, enums_as_ints: bool = False, nine_digits: bool = False) -> bytes:
    """Return the message as UTF-8 JSON; options as of `Form`."""
    form = Form(enums_as_ints=enums_as_ints, nine_digits=nine_digits)
    return encode_text(to_json(message, form))


def to_public(message: Message) -> dict[str, Any]:
    """Return the message as a dictionary in the public form: camelCase, enum names, int64 as strings."""
    return cast(dict[str, Any], to_json(message))


def from_public(message_type: MessageType, value: Mapping[str, Any]) -> Message:
    """Read a message in the form of `to_public`; output-only fields are kept. Raises WireError."""
    return parse(message_type, value, keep_output_only=True)


def check_received(message: Message) -> None:
    """Check a message that came in binary form as `parse` checks the same request in JSON: output-only fields
    are cleared. Raises WireError for more values than `counts` allows, and for numbers that their enums do
    not have, which are unset."""
    walk = Walk(keep_output_only=True)
    walk.received(plans.plan_for(message), message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations), message, undecided=tuple(walk.undecided))


def decode_text(data: bytes | bytearray) -> Any:
    """Decode JSON text to values; raises WireError for what is not UTF-8, not JSON, or ambiguous.

    Duplicate keys, NaN and Infinity are refused, and more values than `counts` allows; blank text is an empty
    object.
    """
    counts.check_text(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"The text is not UTF-8 (byte {error.start}).") from None
    if not text or text.isspace():
        return {}
    if text.startswith("\ufeff"):
        raise _malformed("It begins with a UTF-8 BOM.")
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg}: line {error.lineno} column {error.colno}.") from None
    except WireError:
        raise
    except RecursionError:
        raise _malformed("Message too deep. Max recursion depth reached.") from None
    except ValueError:
        # The interpreter refuses to convert integers of thousands of digits.
        raise _malformed("A number has too many digits.") from None


def encode_text(value: Any) -> bytes:
    """Encode JSON values as compact UTF-8 text."""
    return _encode(value)


def compact_text(value: Any) -> str:
    """Encode JSON values as compact text."""
    return _encode(value).decode()


_encode: Final = msgspec.json.Encoder().encode
"""Takes a fifth of the time of Python's own, which each submit pays twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _malformed(f'Duplicate name "{key[:200]}" in an object.')
            seen.add(key)
    return members


def _no_constant(name: str) -> Any:
    raise _malformed(f'{name} is not a JSON value: use "{name}" in quotes.')


_decoder: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _malformed(reason: str) -> WireError:
    text = f"Invalid JSON payload received. {reason}"
    return WireError((Violation("", text.encode(errors="replace").decode()),))


def endless(value: Any) -> Iterator[str]:
    """Yield the paths (`a.b[1]`) of the numbers in a google.protobuf.Value, or Struct, that are NaN or
    infinite; "" for the value itself."""
    for path in _endless(value):
        yield path.removeprefix(".")


def _endless(value: Any) -> Iterator[str]:
    if value.DESCRIPTOR.name == "Struct":
        for key, part in value.fields.items():
            yield from (f".{key}{path}" for path in _endless(part))
        return
    match value.WhichOneof("kind"):
        case "number_value" if not math.isfinite(value.number_value):
            yield ""
        case "struct_value":
            yield from _endless(value.struct_value)
        case "list_value":
            for index, part in enumerate(value.list_value.values):
                yield from (f"[{index}]{path}" for path in _endless(part))
        case _:
            pass

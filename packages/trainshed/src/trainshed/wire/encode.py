"""Converts messages to JSON values: camelCase keys in field order, unset fields left out.

It owns the public output form, as `decode` owns the input form. Maps are sorted by key, so that the same
message always gives the same bytes.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from trainshed.wire import plans, pool, scalars
from trainshed.wire.plans import Plan, Shape, Special, Value


class Form(Struct, frozen=True):
    """What a client may choose about the answer, and what a surface chooses."""

    #: Whether enums are numbers, as requested by `$alt=json;enum-encoding=int` (spec/clients#numbers).
    enums_as_ints: bool = False
    #: Whether all timestamps have nine decimals: gcloud compares those of log entries as texts
    #: (spec/clients#log-pages).
    nine_digits: bool = False


PUBLIC = Form()


def to_json(message: Message, form: Form = PUBLIC) -> Any:
    """Return the JSON value of a message: an object, or the special form of a well-known type."""
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
            return scalars.timestamp_text(message.seconds, message.nanos, nine=form.nine_digits)
        case Special.DURATION:
            return scalars.duration_text(message.seconds, message.nanos)
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
        inner = pool.message_class(message.type_url.rpartition("/")[2])()
        inner.ParseFromString(message.value)
    except (KeyError, DecodeError):
        # The type is not served, so its bytes are all that can be shown.
        return out | {"value": scalars.bytes_json(message.value)}
    plan = plans.plan_for(inner)
    content = _message(plan, inner, form)
    return out | ({"value": content} if plan.special is not None else content)

"""Reads decoded JSON into a message and collects every violation on the way.

It owns the walk and the public texts (facts/limits#error-texts); it reads no bytes and knows no rules beyond
the types. The order of violations is the order of the JSON text.
"""

import json
from collections.abc import Mapping, Sized
from typing import Any, Final, Literal, assert_never, cast

from google.protobuf.message import Message

from trainshed.wire import counts, plans, pool, scalars
from trainshed.wire.plans import Field, Plan, Shape, Special
from trainshed.wire.status import Undecided, Violation, WireError

MAX_DEPTH: Final = 100
"""Depth of nested objects and lists; json_format's limit, and the public services'."""

_OF_VALUE: Final = 3
"""What a level within a Value counts, since it is up to three messages: clients of gRPC read no list that has
something in it which is deeper than MAX_DEPTH."""
_SHOWN: Final = 200  # characters of an offending value that a text repeats
_PAYLOAD: Final = "Invalid JSON payload received. "


class Walk:
    """One walk over one body; `violations` and `undecided` grow on the way.

    If `keep_output_only` is false, output-only fields are ignored, whatever they hold.
    """

    def __init__(self, *, keep_output_only: bool) -> None:
        self.violations: list[Violation] = []
        self.undecided: list[Undecided] = []
        self._keep_output_only = keep_output_only
        self._depth = 0
        # Values in a message that came in binary form.
        self._values = 0

    def message(self, plan: Plan, raw: Any, message: Message, path: str) -> None:
        """Read `raw` into `message`. `path`: its place in the request, empty for the body itself."""
        if self._depth >= MAX_DEPTH:
            self._refuse(path, f"{_PAYLOAD}Message too deep. Max recursion depth reached.")
            return
        self._depth += 1
        if plan.special is not None:
            self._special(plan.special, plan, raw, message, path)
        elif isinstance(raw, dict):
            self._fields(plan, cast(dict[str, Any], raw), message, path)
        elif not path:
            self._refuse("", f"{_PAYLOAD}Root element must be a message.")
        else:
            self._invalid(path, f"type.googleapis.com/{plan.full_name}", raw)
        self._depth -= 1

    def received(self, plan: Plan, message: Message, path: str) -> None:
        """Check a message that came in binary form, in one walk, because some have thousands of parts: clear
        output-only fields, report and unset numbers that their enums do not have, report times that have no
        text, count the values. Raises WireError if there are too many."""
        if plan.special in _TIMES:
            try:
                cast(Any, message).ToJsonString()
            except ValueError:
                error = scalars.Unreadable("it is out of range")
                self._invalid(path, f"type.googleapis.com/{plan.full_name}", "", error)
        for descriptor, content in message.ListFields():
            field = plan.by_number[descriptor.number]
            if field.output_only:
                message.ClearField(field.name)
                continue
            name = f"{path}.{field.name}" if path else field.name
            if field.shape is not Shape.ONE and (fault := counts.entries_fault(name, len(content))):
                raise WireError((Violation(name, fault),))
            children = plans.children(field.shape, content)
            self._values += len(children)
            if self._values > counts.MAX_VALUES:
                raise counts.too_many_values()
            value = field.value
            if not value.is_message and value.enum_names is None:
                continue
            for index, child in enumerate(children):
                where = name if field.shape is Shape.ONE else f"{name}[{index}]"
                if value.is_message:
                    self.received(value.plan, child, where)
                elif child not in (value.enum_names or ()):
                    self._unknown_number(field, child, message, where)

    def _unknown_number(self, field: Field, number: int, message: Message, where: str) -> None:
        names = field.value.enum_names
        assert names is not None
        if field.shape is Shape.ONE:
            message.ClearField(field.name)
            self.undecided.append(Undecided(message, field.name, (*names,)))
        error = scalars.UnknownValue(scalars.enum_choices(number, reversed(names.values())))
        self._invalid(where, field.value.label, number, error)

    def _fields(self, plan: Plan, raw: Mapping[str, Any], message: Message, path: str) -> None:
        taken: set[str] = set()
        prefix = f"{path}." if path else ""
        for key, value in raw.items():
            field = plan.by_key.get(key)
            if field is None:
                self._unknown(key, path, "Cannot find field.")
                continue
            if field.output_only and not self._keep_output_only:
                continue
            if value is None and not field.takes_null:
                continue
            if field.name in taken:
                self._unknown(key, path, "Proto field is given twice, under two spellings.")
            elif field.oneof is not None and f"{field.oneof}|" in taken:
                self._refuse(
                    f"{prefix}{field.name}",
                    f"Invalid value at '{path}' (oneof), oneof field '{field.oneof}' is already set."
                    f" Cannot set '{field.json_name}'",
                )
            else:
                taken.add(field.name)
                if field.oneof is not None:
                    taken.add(f"{field.oneof}|")
                self._field(field, value, message, key, prefix)

    def _field(self, field: Field, raw: Any, message: Message, key: str, prefix: str) -> None:
        value = field.value
        if field.shape is Shape.ONE:
            if value.read is not None:
                try:
                    setattr(message, field.name, value.read(raw))
                except scalars.Unreadable as error:
                    if value.enum_names is not None:
                        self.undecided.append(Undecided(message, field.name, (*value.enum_names,)))
                    self._bad_one(field, raw, key, prefix, error)
                return
            if isinstance(raw, list) and value.special not in _TAKES_LISTS:
                self._bad_one(field, raw, key, prefix, None)
                return
            child: Message = getattr(message, field.name)
            child.SetInParent()
            self.message(value.plan, raw, child, prefix + field.name)
        elif field.shape is Shape.LIST:
            if isinstance(raw, list):
                elements = cast(list[Any], raw)
                if self._has_too_many(elements, prefix + field.name):
                    return
                self._list(field, elements, getattr(message, field.name), prefix + field.name)
            else:
                self._invalid(prefix + field.name, f"repeated {value.label}", raw)
        elif isinstance(raw, dict):
            entries = cast(dict[str, Any], raw)
            if self._has_too_many(entries, prefix + field.name):
                return
            self._map(field, entries, getattr(message, field.name), prefix + field.name)
        else:
            self._invalid(prefix + field.name, f"map of {value.label}", raw)

    def _bad_one(
        self, field: Field, raw: Any, key: str, prefix: str, error: scalars.Unreadable | None
    ) -> None:
        if isinstance(raw, list):
            self._unknown(key, prefix[:-1], "Proto field is not repeating, cannot start list.")
        elif isinstance(raw, dict) and not field.value.is_message:
            self._unknown(key, prefix[:-1], "Proto field is not a message, cannot start object.")
        else:
            self._invalid(prefix + field.name, field.value.label, raw, error)

    def _list(self, field: Field, raw: list[Any], target: Any, path: str) -> None:
        value = field.value
        for index, element in enumerate(raw):
            where = f"{path}[{index}]"
            if element is None and value.special is not Special.VALUE:
                self._invalid(where, value.label, element)
            elif value.read is None:
                self.message(value.plan, element, target.add(), where)
            else:
                try:
                    target.append(value.read(element))
                except scalars.Unreadable as error:
                    self._invalid(where, value.label, element, error)

    def _map(self, field: Field, raw: Mapping[str, Any], target: Any, path: str) -> None:
        value, key_type = field.value, field.key
        assert key_type is not None
        assert key_type.read is not None
        for text, element in raw.items():
            where = f"{path}[{json.dumps(text)}]"
            try:
                if key_type.is_bool:
                    key = {"true": True, "false": False}[text]
                else:
                    key = key_type.read(text)
            except (scalars.Unreadable, KeyError):
                self._invalid(where, key_type.label, text)
                continue
            if element is None and value.special is not Special.VALUE:
                self._invalid(where, value.label, element)
            elif value.read is None:
                self.message(value.plan, element, target[key], where)
            else:
                try:
                    target[key] = value.read(element)
                except scalars.Unreadable as error:
                    self._invalid(where, value.label, element, error)

    def _special(self, special: Special, plan: Plan, raw: Any, message: Any, path: str) -> None:
        depth = self._depth
        try:
            match special:
                case Special.TIMESTAMP:
                    scalars.read_timestamp(message, raw)
                case Special.DURATION:
                    scalars.read_duration(message, raw)
                case Special.FIELD_MASK:
                    message.paths.extend(scalars.read_mask(raw))
                case Special.WRAPPER:
                    read = plan.by_key["value"].value.read
                    assert read is not None
                    message.value = read(raw)
                case Special.STRUCT | Special.LIST_VALUE | Special.VALUE | Special.ANY:
                    self._open(special, raw, message, path)
                case _:
                    assert_never(special)
        except scalars.Unreadable as error:
            self._depth = depth
            self._invalid(path, f"type.googleapis.com/{plan.full_name}", raw, error)

    def _open(
        self,
        special: Literal[Special.STRUCT, Special.LIST_VALUE, Special.VALUE, Special.ANY],
        raw: Any,
        message: Any,
        path: str,
    ) -> None:
        """Read a message that holds any JSON. Raises Unreadable for the whole of it."""
        if special is Special.STRUCT:
            if not isinstance(raw, dict):
                raise scalars.Unreadable
            self._struct(cast(dict[str, Any], raw), message, path)
        elif special is Special.LIST_VALUE:
            if not isinstance(raw, list):
                raise scalars.Unreadable
            for element in cast(list[Any], raw):
                self._value(element, message.values.add(), path)
        elif special is Special.VALUE:
            self._value(raw, message, path)
        else:
            self._any(raw, message, path)

    def _value(self, raw: Any, message: Any, path: str) -> None:
        if self._depth >= MAX_DEPTH:
            self._refuse(path, f"{_PAYLOAD}Message too deep. Max recursion depth reached.")
            return
        self._depth += _OF_VALUE
        if raw is None:
            message.null_value = 0
        elif isinstance(raw, bool):
            message.bool_value = raw
        elif isinstance(raw, str):
            message.string_value = scalars.read_text(raw)
        elif isinstance(raw, list):
            message.list_value.SetInParent()
            for element in cast(list[Any], raw):
                self._value(element, message.list_value.values.add(), path)
        elif isinstance(raw, dict):
            message.struct_value.SetInParent()
            self._struct(cast(dict[str, Any], raw), message.struct_value, path)
        else:
            message.number_value = scalars.read_double(raw)
        self._depth -= _OF_VALUE

    def _struct(self, raw: Mapping[str, Any], message: Any, path: str) -> None:
        for key, value in raw.items():
            self._value(value, message.fields[scalars.read_text(key)], path)

    def _any(self, raw: Any, message: Any, path: str) -> None:
        if not isinstance(raw, dict):
            raise scalars.Unreadable
        members = dict(cast(dict[str, Any], raw))
        if not members:
            return
        url = members.pop("@type", None)
        if not isinstance(url, str) or "/" not in url:
            raise scalars.Unreadable("Missing @type for an any field")
        try:
            inner = pool.message_class(url.rpartition("/")[2])()
        except KeyError:
            raise scalars.Unreadable(f"Cannot find type '{url[:_SHOWN]}'") from None
        plan = plans.plan_for(inner)
        self.message(plan, members.get("value") if plan.special else members, inner, path)
        message.type_url = url
        message.value = inner.SerializeToString(deterministic=True)

    def _has_too_many(self, entries: Sized, path: str) -> bool:
        """Whether a list or map is refused unread, because it has too many entries."""
        if fault := counts.entries_fault(path, len(entries)):
            self._refuse(path, fault)
        return bool(fault)

    def _refuse(self, field: str, text: str) -> None:
        self.violations.append(Violation(field, text))

    def _unknown(self, key: str, path: str, reason: str) -> None:
        where = f" at '{path}'" if path else ""
        # A key may hold anything; the text must be valid UTF-8.
        name = key[:_SHOWN].encode(errors="replace").decode()
        self._refuse(
            f"{path}.{name}" if path else name, f'{_PAYLOAD}Unknown name "{name}"{where}: {reason}'
        )

    def _invalid(
        self, path: str, label: str, raw: Any, error: scalars.Unreadable | None = None
    ) -> None:
        tail = json.dumps(raw, default=str)
        tail = tail if len(tail) <= _SHOWN else tail[:_SHOWN] + "..."
        reason = str(error or "")
        if isinstance(error, scalars.UnknownValue):
            tail += reason
        elif reason:
            tail = f"Field '{path.rpartition('.')[2]}', {reason}"
        else:
            tail += _spelling(label, raw)
        self._refuse(path, f"Invalid value at '{path}' ({label}), {tail}")


_TIMES: Final = frozenset({Special.TIMESTAMP, Special.DURATION})
_TAKES_LISTS: Final = frozenset({Special.VALUE, Special.LIST_VALUE})


def _spelling(label: str, raw: Any) -> str:
    """Return how a value of another type should be written, to follow the public text; "" if that is not
    known."""
    is_short = len(str(raw)) <= _SHOWN
    match label, raw:
        case "TYPE_STRING", bool() | int() | float() if is_short:
            return f"; write it in quotes: {json.dumps(json.dumps(raw))}"
        case "TYPE_BOOL", "true" | "false" | "True" | "False":
            return f"; write it without quotes: {raw.lower()}"
        case "repeated TYPE_STRING", str() if is_short:
            return f"; write a list: {json.dumps([raw])}"
        case _:
            return ""

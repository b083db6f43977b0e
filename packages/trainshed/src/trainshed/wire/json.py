"""Strict JSON of the public messages, both ways.

Other packages keep messages as plain dictionaries: `from_public` and `to_public`. What the public services
refuse is refused, all violations at once and in the order of the text, with their texts
(facts/limits#error-texts), and every spelling that their clients use is read (spec/clients#wire,
spec/submit#refusals). Protobuf's own `json_format` writes; it does not read: it stops at the first fault.
What a message means is known elsewhere: here are no rules beyond its types.
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
from trainshed.wire.status import Undecided, Violation, WireError

MAX_DEPTH: Final = 100
"""Depth of nested objects and lists; json_format's limit, and the public services'."""

MAX_VALUES: Final = 50_000
"""Texts, numbers, objects and lists in one request: so that small requests cannot cause much work, they are
counted before anything is read. `core.specs` decides what a job may hold."""
MAX_ENTRIES: Final = 10_000
"""Entries of one list or map."""
_SMALL: Final = 16 << 10
"""Bytes of a request that is not counted."""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
"""A text, or a character before a value. Linear time: a text without an end extends to the end of the
data."""
_OF_VALUE: Final = 3
"""Messages in a level within a Value, of which `json_format` counts two: clients of gRPC read none that are
deeper than MAX_DEPTH."""
_SHOWN: Final = 200  # characters of an offending value that a text repeats
_PAYLOAD: Final = "Invalid JSON payload received. "
_EXACT: Final = 1e15
"""Below this every float without a fraction is one integer alone."""


def decode_text(data: bytes | bytearray) -> Any:
    """Decode JSON text to values, each of which can be stored and answered; blank text is an empty object.
    Raises WireError for what is no JSON, such as NaN or half of a surrogate pair, and for more values than
    MAX_VALUES."""
    check_count(data)
    if not data or data.isspace():
        return {}
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        text = f"Invalid JSON payload received. {error}."
        raise WireError((Violation("", text),)) from None


def check_count(data: bytes | bytearray) -> None:
    """Refuse JSON with too many values. Raises WireError. Takes milliseconds."""
    if len(data) <= _SMALL:
        return
    # This includes those within texts; most requests need no better count.
    if data.count(b",") + data.count(b"[") + data.count(b"{") < MAX_VALUES:
        return
    values = texts = 0
    for token in _TOKEN.finditer(data):
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
"""Takes a fifth of the time of Python's own, which each submit pays twice."""


def to_public(message: Message, *, enums_as_ints: bool = False) -> dict[str, Any]:
    """Return the message in the public form: camelCase, enum names or numbers (`$alt=json;enum-encoding=int`,
    spec/clients#numbers), int64 as strings. For a well-known type that is its own form, such as a text."""
    # Loaded with the first message, as protobuf is.
    from google.protobuf import json_format

    return _whole(
        json_format.MessageToDict(
            message, use_integers_for_enums=enums_as_ints, descriptor_pool=pool.TYPES
        )
    )


def _whole(value: Any) -> Any:
    """Return JSON whose numbers without a fraction are integers: protobuf has all of a Struct as floats."""
    if isinstance(value, dict):
        return {key: _whole(part) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_whole(part) for part in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def render(public: Mapping[str, Any]) -> bytes:
    """Return a message in the form of `to_public` as UTF-8 JSON. Keys are sorted, so that the same message
    always gives the same bytes: protobuf has maps in no order."""
    return _encode_sorted(public)


def from_public(
    full_name: str, value: Mapping[str, Any], *, keep_output_only: bool = True
) -> Message:
    """Read a message (`google.cloud.aiplatform.v1.CustomJob`) in the form of `to_public`, or as clients write
    it. Raises WireError with every violation. Output-only fields are ignored unread unless they are to be
    kept."""
    message = pool.message_class(full_name)()
    walk = Walk(keep_output_only=keep_output_only)
    walk.message(plans.plan_for(message), value, message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations))
    return message


def check_received(message: Message) -> None:
    """Check a message that came in binary form as the same request in JSON is checked: output-only fields
    are cleared. Raises WireError for more values than MAX_VALUES, and for numbers that their enums do
    not have, which are unset."""
    walk = Walk(keep_output_only=True)
    walk.received(plans.plan_for(message), message, "")
    if walk.violations:
        raise WireError(tuple(walk.violations), message, undecided=tuple(walk.undecided))


def _entries_fault(path: str, count: int) -> str:
    """Return the error text for a list or map of so many entries; "" if there are not too many."""
    if count <= MAX_ENTRIES:
        return ""
    return f"Invalid value at '{path}', {count} entries are given; at most {MAX_ENTRIES} are read."


def _too_many_values() -> WireError:
    text = f"Invalid JSON payload received. The request has more than {MAX_VALUES} values."
    return WireError((Violation("", text),))


class Walk:
    """One walk over one body; `violations` and `undecided` grow on the way.

    If `keep_output_only` is false, output-only fields are ignored, whatever they hold. `printed`: makes texts
    of numbers in fields that take texts; None = they are refused.
    """

    def __init__(
        self, *, keep_output_only: bool, printed: Callable[[int | float], str] | None = None
    ) -> None:
        self.violations: list[Violation] = []
        self.undecided: list[Undecided] = []
        self._keep_output_only = keep_output_only
        self._printed = printed
        self._depth = 0
        # The messages that are being read, from the body down, each with its place.
        self._above: list[tuple[Plan, str]] = []
        # Values in a message that came in binary form.
        self._values = 0

    def message(self, plan: Plan, raw: Any, message: Message, path: str) -> None:
        """Read `raw` into `message`. `path`: its place in the request, empty for the body itself."""
        if self._depth >= MAX_DEPTH:
            self._refuse(path, f"{_PAYLOAD}Message too deep. Max recursion depth reached.")
            return
        self._depth += 1
        self._above.append((plan, path))
        if plan.is_special:
            self._special(plan, raw, message, path)
        elif isinstance(raw, dict):
            self._fields(plan, cast(dict[str, Any], raw), message, path)
        elif not path:
            self._refuse("", f"{_PAYLOAD}Root element must be a message.")
        else:
            self._invalid(path, f"type.googleapis.com/{plan.full_name}", raw)
        self._above.pop()
        self._depth -= 1

    def received(self, plan: Plan, message: Message, path: str) -> None:
        """Check a message that came in binary form, in one walk, because some have thousands of parts: clear
        output-only fields, report and unset numbers that their enums do not have, report times and numbers
        that JSON has no text for, count the values. Raises WireError if there are too many."""
        if plan.full_name in _TEXTS:
            try:
                cast(Any, message).ToJsonString()
            except ValueError:
                self._refuse(path, f"Invalid value at '{path}', it is out of range")
        elif plan.full_name == plans.VALUE and not isfinite(cast(Any, message).number_value):
            self._refuse(path, f"Invalid value at '{path}', it is not a finite number")
        for descriptor, content in message.ListFields():
            field = plan.by_number[descriptor.number]
            if field.output_only:
                message.ClearField(field.name)
                continue
            name = f"{path}.{field.name}" if path else field.name
            if field.shape is not Shape.ONE and (fault := _entries_fault(name, len(content))):
                raise WireError((Violation(name, fault),))
            self._values += 1 if field.shape is Shape.ONE else len(content)
            if self._values > MAX_VALUES:
                raise _too_many_values()
            value = field.value
            if value.message is None and value.enum_names is None:
                continue
            for where, child in _parts(field.shape, name, content):
                if value.message is not None:
                    self.received(value.plan, child, where)
                elif child not in (value.enum_names or ()):
                    self._unknown_number(field, child, message, where)

    def _unknown_number(self, field: Field, number: int, message: Message, where: str) -> None:
        names = field.value.enum_names
        assert names is not None
        if field.shape is Shape.ONE:
            message.ClearField(field.name)
            self.undecided.append(Undecided(message, field.name, (*names,)))
        choices = plans.enum_choices(number, reversed(names.values()))
        self._invalid(where, field.value.label, number, choices)

    def _fields(self, plan: Plan, raw: Mapping[str, Any], message: Message, path: str) -> None:
        taken: set[str] = set()
        prefix = f"{path}." if path else ""
        for key, value in raw.items():
            field = plan.by_key.get(key)
            if field is None:
                self._unknown(key, path, f"Cannot find field.{self._elsewhere(key, plan, path)}")
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

    def _elsewhere(self, key: str, plan: Plan, path: str) -> str:
        """Return in which message around or directly below this one the key is a field; "" if in none."""
        for levels, (above, place) in enumerate(reversed(self._above[:-1]), 1):
            if place and key in above.by_key:
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
                    setattr(message, field.name, value.read(self._spelled(value, raw)))
                except plans.Unreadable as error:
                    if value.enum_names is not None:
                        self.undecided.append(Undecided(message, field.name, (*value.enum_names,)))
                    self._bad_one(field, raw, key, prefix, str(error))
                return
            if isinstance(raw, list) and value.message.full_name not in _TAKES_LISTS:
                self._bad_one(field, raw, key, prefix)
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
                self._invalid(prefix + field.name, f"repeated {value.label}", raw)
        elif isinstance(raw, dict):
            entries = cast(dict[str, Any], raw)
            if self._has_too_many(entries, prefix + field.name):
                return
            self._map(field, entries, getattr(message, field.name), prefix + field.name)
        else:
            self._invalid(prefix + field.name, f"map of {value.label}", raw)

    def _bad_one(self, field: Field, raw: Any, key: str, prefix: str, reason: str = "") -> None:
        if isinstance(raw, list):
            self._unknown(key, prefix[:-1], "Proto field is not repeating, cannot start list.")
        elif isinstance(raw, dict) and field.value.message is None:
            self._unknown(key, prefix[:-1], "Proto field is not a message, cannot start object.")
        else:
            self._invalid(prefix + field.name, field.value.label, raw, reason)

    def _list(self, value: Value, raw: list[Any], target: Any, path: str) -> None:
        into = target.add if value.read is None else target.append
        for index, element in enumerate(raw):
            self._part(value, element, into, f"{path}[{index}]")

    def _map(self, field: Field, raw: Mapping[str, Any], target: Any, path: str) -> None:
        value, key_type = field.value, field.key
        assert key_type is not None
        assert key_type.read is not None
        into = target.__getitem__ if value.read is None else target.__setitem__
        for text, element in raw.items():
            where = f"{path}[{json.dumps(text)}]"
            try:
                key = key_type.read(
                    {"true": True, "false": False}[text] if key_type.is_bool else text
                )
            except (plans.Unreadable, KeyError):
                self._invalid(where, key_type.label, text)
                continue
            self._part(value, element, partial(into, key), where)

    def _part(self, value: Value, raw: Any, into: Callable[..., Any], where: str) -> None:
        """Read an element of a list or map. `into`: of messages, returns the one to read into; else takes
        what was read."""
        if raw is None and not value.is_any_json:
            self._invalid(where, value.label, raw)
        elif value.read is None:
            self.message(value.plan, raw, into(), where)
        else:
            try:
                into(value.read(self._spelled(value, raw)))
            except plans.Unreadable as error:
                self._invalid(where, value.label, raw, str(error))

    def _spelled(self, value: Value, raw: Any) -> Any:
        """Return a value as its field takes it."""
        if self._printed is None or value.read is not plans.read_text:
            return raw
        is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
        return self._printed(raw) if is_number else raw

    def _special(self, plan: Plan, raw: Any, message: Any, path: str) -> None:
        """Read a message whose JSON is not an object of its fields."""
        from google.protobuf import json_format

        try:
            if plan.full_name == plans.FIELD_MASK:
                message.paths.extend(plans.read_mask(raw))
                return
            # What is stored may have come in binary form, where lists nest deeper.
            left = MAX_DEPTH - self._depth
            depth = MAX_DEPTH if self._keep_output_only else left * 2 // _OF_VALUE
            json_format.ParseDict(
                raw, message, descriptor_pool=pool.TYPES, max_recursion_depth=depth
            )
        except Exception as error:  # Whatever it stumbles over: a client wrote that.
            text = str(error) if plan.full_name not in _TEXTS else _TEXTS[plan.full_name]
            self._invalid(path, f"type.googleapis.com/{plan.full_name}", raw, text)

    def _has_too_many(self, entries: Sized, path: str) -> bool:
        """Whether a list or map is refused unread, because it has too many entries."""
        if fault := _entries_fault(path, len(entries)):
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

    def _invalid(self, path: str, label: str, raw: Any, reason: str = "") -> None:
        """Refuse a value. `reason`: what follows it in the public text, if that begins with a semicolon; else
        what stands in its place."""
        try:
            tail = json.dumps(raw, default=str)
        except RecursionError:
            tail = "a value that is nested too deeply"
        tail = tail if len(tail) <= _SHOWN else tail[:_SHOWN] + "..."
        if reason and not reason.startswith(";"):
            tail = f"Field '{path.rpartition('.')[2]}', {reason}"
        else:
            tail += reason or _spelling(label, raw, path)
        self._refuse(path, f"Invalid value at '{path}' ({label}), {tail}")


_TEXTS: Final = {
    plans.TIMESTAMP: "Illegal timestamp format; timestamps must be RFC 3339 with a time zone",
    plans.DURATION: "Illegal duration format; duration must end with 's'",
}
"""The public texts of times."""
_TAKES_LISTS: Final = frozenset({plans.VALUE, plans.LIST_VALUE})


def _parts(shape: Shape, name: str, content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a field that is set, one or many, each with its place."""
    if shape is Shape.ONE:
        yield name, content
    elif shape is Shape.LIST:
        for index, part in enumerate(content):
            yield f"{name}[{index}]", part
    else:
        for key, part in content.items():
            yield f"{name}[{json.dumps(key)}]", part


_COMMANDS: Final = ("command", "args", "container_command", "container_args")
_SHELL: Final = re.compile(r"[|&;<>]|\$\(")


def _items(text: str, field: str) -> list[str]:
    """Return the list that the text of a repeated field probably stands for."""
    if field not in _COMMANDS:
        return [text]
    if field.endswith("command") and _SHELL.search(text):
        return ["bash", "-c", text]
    try:
        return shlex.split(text)
    except ValueError:  # Quotes without an end.
        return text.split()


def _spelling(label: str, raw: Any, path: str) -> str:
    """Return how a value of another type should be written, to follow the public text; "" if that is not
    known. `path`: the place of the value."""
    is_short = isinstance(raw, str | int | float) and len(str(raw)) <= _SHOWN
    match label, raw:
        case "TYPE_STRING", bool() | int() | float() if is_short:
            return f"; write it in quotes: {json.dumps(json.dumps(raw))}"
        case "TYPE_BOOL", "true" | "false" | "True" | "False":
            return f"; write it without quotes: {raw.lower()}"
        case "repeated TYPE_STRING", str() if is_short:
            return f"; write a list: {json.dumps(_items(raw, path.rpartition('.')[2]))}"
        case "repeated TYPE_STRING", int() | float() if is_short and not isinstance(raw, bool):
            return f"; write a list: {json.dumps([str(raw)])}"
        case _, dict() if label.endswith(".EnvVar") and label.startswith("repeated ") and raw:
            name, value = next(iter(cast("dict[str, Any]", raw).items()))
            entry = json.dumps([{"name": name, "value": str(value)}])
            return f"; write a list: {entry}" if len(entry) <= _SHOWN else ""
        case _:
            return ""

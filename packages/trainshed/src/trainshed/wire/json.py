"""Reads and writes strict JSON of the public messages.

Other packages keep messages as plain dictionaries: `from_public` and `to_public`. What the public services
refuse is refused, all violations at once, and every spelling that their clients use is read
(spec/clients#wire, spec/submit#refusals). Protobuf's own `json_format` writes; it does not read: it stops at
the first fault.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from google.protobuf.message import Message

from trainshed.wire import plans, pool
from trainshed.wire.decode import Walk, check_count
from trainshed.wire.status import Violation, WireError

_EXACT: Final = 1e15
"""Below this every float without a fraction is one integer alone."""


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


def encode_text(value: Any) -> bytes:
    """Encode JSON values as compact UTF-8 text."""
    return _encode(value)


def compact_text(value: Any) -> str:
    """Encode JSON values as compact text with sorted keys."""
    return _encode_sorted(value).decode()


_encode_sorted: Final = msgspec.json.Encoder(order="deterministic").encode
_encode: Final = msgspec.json.Encoder().encode
"""Takes a fifth of the time of Python's own, which each submit pays twice."""

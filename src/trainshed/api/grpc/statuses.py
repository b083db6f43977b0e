"""Refusals as a gRPC status with `grpc-status-details-bin`; owns how much of one fits into a trailer.

Clients drop trailers that are too large (gRPC's default: anything above 8 KiB may go) and report that instead of
the error, so a refusal that is too long is told in short.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from trainshed.api.errors import Refusal
from trainshed.wire.status import Violation, status_message

DETAILS: Final = "grpc-status-details-bin"
"""The trailer that holds a google.rpc.Status: code and message once more, and the details."""

ROOM: Final = 7_000
"""Bytes of message and details together as they go over the wire."""
_SHORT_MESSAGE: Final = 300
_SHORT_DESCRIPTIONS: Final = (160, 80, 40)
_FIELD: Final = 200
"""Characters, also of the longest kind: the message alone always has room."""
_REST: Final = " ... (shortened to fit into a gRPC trailer; over REST the answer is whole)"


@dataclass(frozen=True, slots=True)
class Told:
    """What the caller gets: the code's number, the message and the value of the DETAILS trailer."""

    code: int
    message: str
    details: bytes


def told(refused: Refusal) -> Told:
    """The refusal as it is, or in short if that is too much: every field with less and less about it, and if even that
    has no room, the first fields and how many more there are."""
    whole = _told(refused, refused.message, refused.violations)
    if _size(whole) <= ROOM:
        return whole
    for short in _shorter(refused):
        if _size(short) <= ROOM:
            return short
    return _told(refused, _cut(refused.message, _SHORT_MESSAGE, _REST), ())


def _shorter(refused: Refusal) -> Iterator[Told]:
    """The refusal, ever shorter."""
    message = _cut(refused.message, _SHORT_MESSAGE, _REST)
    yield _told(refused, message, refused.violations)
    count = len(refused.violations)
    briefly: tuple[Violation, ...] = ()
    for size in _SHORT_DESCRIPTIONS:
        briefly = _briefly(refused.violations, size)
        yield _told(refused, message, briefly)
    for kept in _fewer(count):
        more = Violation("", f"... and {count - kept} more; over REST all are told")
        yield _told(refused, message, (*briefly[:kept], more))


def _briefly(violations: tuple[Violation, ...], size: int) -> tuple[Violation, ...]:
    return tuple(Violation(_cut(v.field, _FIELD), _cut(v.description, size)) for v in violations)


def _fewer(count: int) -> Iterator[int]:
    """Below `count`, in steps of a tenth of what is left."""
    while count > 1:
        count -= max(1, count // 10)
        yield count


def _told(refused: Refusal, message: str, violations: tuple[Violation, ...]) -> Told:
    status: Message = status_message(refused.code, message, violations, reason=refused.reason)
    return Told(refused.code.number, message, status.SerializeToString(deterministic=True))


def _size(answer: Told) -> int:
    """Bytes on the wire: messages are percent-encoded, binary trailers are base64."""
    message = answer.message.encode(errors="replace")
    plain = sum(1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3 for byte in message)
    return plain + (len(answer.details) + 2) // 3 * 4


def _cut(text: str, size: int, tail: str = "...") -> str:
    return text if len(text) <= size else text[:size] + tail

"""Read masks: which fields of a resource a list answers with."""

from typing import Any

from google.protobuf.message import Message

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.wire import pool


class Mask:
    """A FieldMask for messages of one type. Raises InvalidRequest for a path that the type has not."""

    def __init__(self, mask: Any, message_type: str, *, field: str = "read_mask") -> None:
        paths = [path for path in mask.paths if path != "*"]
        self._class = pool.message_class(message_type)
        self._mask = mask if paths and len(paths) == len(mask.paths) else None
        unknown = [path for path in paths if not _has(self._class, path)]
        if unknown:
            raise InvalidRequest(
                tuple(
                    Violation(field, f"{path!r} is no field of {message_type}.") for path in unknown
                )
            )

    def shows(self, field: str) -> bool:
        """Whether anything of the message's own field `field` is answered."""
        return self._mask is None or any(
            path.partition(".")[0] == field for path in self._mask.paths
        )

    def apply(self, message: Message) -> Message:
        """The message with the masked fields only; itself if there is no mask."""
        if self._mask is None:
            return message
        kept = self._class()
        self._mask.MergeMessage(message, kept)
        return kept


def _has(message_class: type[Message], path: str) -> bool:
    """Whether a mask can name it: a repeated field only as a whole."""
    at = message_class.DESCRIPTOR
    for name in path.split("."):
        field = at.fields_by_name.get(name) if at is not None else None
        if field is None:
            return False
        at = None if field.is_repeated else field.message_type
    return True

"""Which projects a request names: those of what it is about (`name`, `parent`, ...), not of what a job refers to.

Every method of the public APIs says what it is about in a text of the request itself, as `projects/P/...`, or in the
name of the resource that it carries; only Logging lists bare projects as well, and entries that name their logs.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NAMES: Final = frozenset({"name", "parent", "resource", "trial_name", "parent_model", "log_name"})
_LISTS: Final = frozenset({"resource_names"})
_BARE: Final = "project_ids"
_PARTS: Final = "entries"


def projects_of(request: Message) -> Iterator[str]:
    """The projects, by id or number, as often as they are named; "" for a name that has none."""
    for field, value in request.ListFields():
        if field.name in _NAMES and field.type == FieldDescriptor.TYPE_STRING:
            yield project_in(value)
        elif field.name in _LISTS:
            yield from map(project_in, value)
        elif field.name == _BARE:
            yield from value
        elif field.name == _PARTS:
            for part in value:
                yield from projects_of(part)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and "name" in _texts(value):
            yield from filter(None, [project_in(value.name)])


def project_in(name: str) -> str:
    """The project of a full resource name, "" if it has none."""
    match name.split("/"):
        case ["projects", project, *_]:
            return project
        case _:
            return ""


def _texts(value: Any) -> tuple[str, ...]:
    """The text fields of a message; none of a list or a map of them."""
    descriptor = getattr(value, "DESCRIPTOR", None)
    fields = descriptor.fields if descriptor is not None else ()
    return tuple(field.name for field in fields if field.type == FieldDescriptor.TYPE_STRING)

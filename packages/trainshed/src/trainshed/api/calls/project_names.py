"""The projects in a request's names. Finds them for the permission check, and replaces project numbers by
IDs.

A request contains its project as `projects/P/...`, in its own text fields (`name`, `parent`, ...) or in the
name of its resource. Requests of Logging may also contain bare project IDs, and entries with log names.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.core.names import ids_by_number

_NAMES: Final = frozenset(
    {
        "artifact",
        "context",
        "execution",
        "log_name",
        "name",
        "parent",
        "parent_model",
        "resource",
        "source_model",
        "tensorboard",
        "tensorboard_experiment",
        "tensorboard_run",
        "tensorboard_time_series",
        "trial_name",
    }
)


_LISTS: Final = frozenset({"artifacts", "child_contexts", "executions", "resource_names", "time_series"})
"""Repeated fields that contain names. If another message has a field of the same name with a single value,
that field is treated like a field in `_NAMES`."""


_BARE_IDS: Final = "project_ids"


_ENTRIES: Final = "entries"


_REPEATED_PARTS: Final = frozenset({_ENTRIES, "events", "requests", "write_run_data_requests"})


_NAME_FIELDS: Final = _NAMES | _LISTS


_REPLACED: Final = _NAME_FIELDS | {"experiment", "experiment_run", "model"}
"""Fields in which project numbers are replaced by IDs. They may also be in a resource within the request,
such as a job's specification."""


_REPLACED_LISTS: Final = _LISTS | {_BARE_IDS}


_FILTER: Final = "filter"


_FREE_CONTENT: Final = frozenset({"metadata", "training_task_inputs"})
"""Fields whose contents the caller chooses freely. Nothing is replaced in them."""


def replace_project_numbers(request: Message, ids: Iterable[str]) -> None:
    """Replace project numbers in the names of a request by project IDs.

    The number and the ID identify the same project. For example, programs receive the number in
    CLOUD_ML_PROJECT_ID. `ids`: the projects whose numbers are replaced; "" is ignored.
    """
    numbers = _by_number(tuple(ids))
    # First search for a project number in the serialized request. Most requests contain none, and the search
    # is cheaper than a walk through the fields.
    content = request.SerializePartialToString()
    if any(_digits(name) in content for name in numbers):
        _replace(request, numbers)


def id_of(number: str, principal: Principal, services: Services) -> str:
    """Return the ID of the project with this number. If the principal has no access to the project, return
    the number."""
    return ids_by_number(projects_known_to(principal, services)).get(number, number)


def projects_known_to(principal: Principal, services: Services) -> tuple[str, ...]:
    """Return the IDs of the projects whose numbers the principal may use."""
    book = services.access.book
    administered = (*book.projects, *book.policy.projects()) if principal.rights.everywhere else ()
    return (*principal.rights.projects, services.settings.project, *administered)


@lru_cache(1024)
def _digits(name: str) -> bytes:
    """Return the number in a name of the form `projects/NUMBER/`."""
    return name.removeprefix("projects/").removesuffix("/").encode()


@lru_cache(16)
def _by_number(ids: tuple[str, ...]) -> Mapping[str, str]:
    """Return a map of name prefixes: from `projects/NUMBER/` to `projects/ID/`."""
    return {
        f"projects/{number}/": f"projects/{project_id}/" for number, project_id in ids_by_number(ids).items()
    }


def _replace(message: Message, numbers: Mapping[str, str]) -> None:
    for part, value in message.ListFields():
        if part.name in _REPEATED_PARTS:
            for item in value:
                _replace(item, numbers)
        elif part.name in _REPLACED_LISTS and part.is_repeated:
            value[:] = [_with_id(text, numbers) for text in value]
        elif part.type == FieldDescriptor.TYPE_STRING:
            if part.name in _REPLACED and (name := _with_id(value, numbers)) != value:
                setattr(message, part.name, name)
            elif part.name == _FILTER:
                for old, new in numbers.items():
                    setattr(message, part.name, getattr(message, part.name).replace(old, new))
        elif isinstance(value, Message) and part.name not in _FREE_CONTENT:
            _replace(value, numbers)


def _with_id(name: str, numbers: Mapping[str, str]) -> str:
    """Return a name with the project's ID in place of its number. The name may also be `projects/P` or, for
    Logging, `P`."""
    for old, new in numbers.items():
        if name.startswith(old):
            return new + name[len(old) :]
        if name in (old[:-1], old[9:-1]):
            return new[9:-1] if name == old[9:-1] else new[:-1]
    return name


def projects_of(request: Message) -> Iterator[str]:
    """Yield the ID or number of the project in each name of a request; "" for a name without a project."""
    for part, value in request.ListFields():
        is_list = part.name in _LISTS and part.is_repeated
        if not is_list and part.type == FieldDescriptor.TYPE_STRING and part.name in _NAME_FIELDS:
            yield project_in(value)
        elif is_list:
            yield from map(project_in, value)
        elif part.name == _BARE_IDS:
            yield from value
        elif part.name == _ENTRIES:
            for item in value:
                yield from projects_of(item)
        elif _is_named(part):
            yield from filter(None, [project_in(value.name)])


def project_in(name: str) -> str:
    """Return the ID or number of the project in a full resource name; "" if the name contains no project."""
    match name.split("/"):
        case ["projects", project, *_]:
            return project
        case _:
            return ""


def subject_of(request: Message) -> str:
    """Return the name of the resource that a request concerns. This is the first one that exists: the `name`,
    `resource` or `parent` of the request, or the name of the resource in the request."""
    for name in ("name", "resource", "parent"):
        if text := getattr(request, name, ""):
            return str(text)
    resources = (value for part, value in request.ListFields() if _is_named(part))
    return next((str(value.name) for value in resources), "")


@lru_cache(1024)
def _is_named(part: FieldDescriptor) -> bool:
    """Whether a request field contains one resource: a message that has a text field `name`."""
    if part.type != FieldDescriptor.TYPE_MESSAGE or part.is_repeated or part.message_type is None:
        return False
    name = part.message_type.fields_by_name.get("name")
    return name is not None and name.type == FieldDescriptor.TYPE_STRING
